//! What clients of llama-server ask: `/completion`, `/infill`, `/tokenize`, `/detokenize`, `/apply-template`,
//! `/props`, `/slots`, `/lora-adapters`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::chat::Message;
use oxidize_core::lora::Adapter;
use oxidize_core::sampling::SamplingParams;
use oxidize_core::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};

use super::bounded;
use super::chat::MessageSchema;
use super::completions::Prompt;
use crate::answer::{Timings, TokenLogprob, token_logprob};
use crate::auth::Client;
use crate::body::Body;
use crate::conversation::Conversation;
use crate::error::{ApiError, ApiResult, ErrorBody};
use crate::generate::{
    self, End, Generation, Job, Part, Piece, Reading, StopReason, TokenInfo, blocking,
};
use crate::models::Loaded;
use crate::sampling::{AdapterScale, SamplingFields, one_grammar};
use crate::state::AppState;
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};
use crate::tools::{ToolChoice, Tools};

/// A text to continue, by llama-server's names.
#[derive(Debug, Deserialize, ToSchema)]
pub struct NativeRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// Text or tokens.
    #[serde(default)]
    pub prompt: Option<Prompt>,
    /// Whether the answer comes as server-sent events.
    pub stream: Option<bool>,
    /// Most tokens of the answer; -1 is until the end.
    #[schema(minimum = -1)]
    pub n_predict: Option<i32>,
    /// The same, by OpenAI's name.
    #[schema(minimum = -1)]
    pub max_tokens: Option<i32>,
    /// How many of the most likely tokens come with each token.
    #[serde(alias = "logprobs")]
    #[schema(maximum = 100)]
    pub n_probs: Option<u32>,
    /// Whether the answer's tokens come with it.
    pub return_tokens: Option<bool>,
    /// A grammar in GBNF that the answer follows.
    pub grammar: Option<String>,
    /// A JSON schema that the answer fits.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Value>,
    /// For `/infill`: what goes before the gap.
    pub input_prefix: Option<String>,
    /// For `/infill`: what goes after it.
    pub input_suffix: Option<String>,
    /// For `/infill`: other files of the project.
    pub input_extra: Option<Vec<ExtraFile>>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "its fields have their own")]
    pub sampling: SamplingFields,
}

/// A file that belongs to the same project as a gap.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ExtraFile {
    /// Its name.
    pub filename: Option<String>,
    /// What is in it.
    pub text: String,
}

/// A text that went on.
#[derive(Debug, Serialize, ToSchema)]
pub struct NativeCompletion {
    /// Always 0.
    pub index: usize,
    /// What was written.
    pub content: String,
    /// Its tokens, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<u32>,
    /// Whether this is all.
    pub stop: bool,
    /// Who answered.
    pub model: String,
    /// Tokens of the answer.
    pub tokens_predicted: usize,
    /// Tokens of the prompt.
    pub tokens_evaluated: usize,
    /// Those of them that were found in the cache.
    pub tokens_cached: usize,
    /// `eos`, `word` or `limit`; `none` while it goes on.
    pub stop_type: &'static str,
    /// The stop string that came up.
    pub stopping_word: String,
    /// Always false: a prompt that does not fit is an error.
    pub truncated: bool,
    /// How likely each token was, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub completion_probabilities: Vec<TokenLogprob>,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// Continue a text
#[utoipa::path(
    post, path = "/completion", tag = "llama-server",
    request_body = NativeRequest,
    responses(
        (status = 200, description = "The text; with `stream`, server-sent events of its pieces", content(
            (NativeCompletion = "application/json"), (StreamEvent = "text/event-stream"),
        )),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = "4XX", description = "The request cannot be served", body = ErrorBody),
        (status = "5XX", description = "The server cannot serve it now", body = ErrorBody),
    ),
)]
pub async fn completion(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<NativeRequest>,
) -> ApiResult<Response> {
    let Some(prompt) = request.prompt.clone().filter(|prompt| prompt.count() == 1) else {
        return Err(ApiError::bad_request("one prompt is needed"));
    };
    answer(state, client, request, move |model| {
        let tokens = prompt.tokens(model)?.into_iter().next();
        tokens.ok_or_else(|| ApiError::bad_request("one prompt is needed"))
    })
    .await
}

/// Fill a gap in a text
#[utoipa::path(
    post, path = "/infill", tag = "llama-server",
    request_body = NativeRequest,
    responses(
        (status = 200, description = "What goes into the gap", content(
            (NativeCompletion = "application/json"), (StreamEvent = "text/event-stream"),
        )),
        (status = 400, description = "The request is wrong, or the model cannot fill gaps", body = ErrorBody),
        (status = "4XX", description = "The request cannot be served", body = ErrorBody),
        (status = "5XX", description = "The server cannot serve it now", body = ErrorBody),
    ),
)]
pub async fn infill(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(mut request): Body<NativeRequest>,
) -> ApiResult<Response> {
    let prefix = request.input_prefix.take().unwrap_or_default();
    let suffix = request.input_suffix.take().unwrap_or_default();
    // What was typed on the line with the gap comes after the prefix.
    let typed = match request.prompt.take() {
        None => String::new(),
        Some(Prompt::Text(text)) => text,
        Some(_) => return Err(ApiError::bad_request("the prompt of /infill is text")),
    };
    let extra = request.input_extra.take().unwrap_or_default().into_iter();
    let files: Vec<(String, String)> = extra
        .map(|file| (file.filename.unwrap_or_else(|| "tmp".into()), file.text))
        .collect();
    answer(state, client, request, move |model| {
        crate::infill::tokens(model.tokenizer()?, &(prefix + &typed), &suffix, &files)
    })
    .await
}

async fn answer(
    state: AppState,
    client: Client,
    request: NativeRequest,
    tokens: impl FnOnce(&Loaded) -> ApiResult<Vec<u32>> + Send + 'static,
) -> ApiResult<Response> {
    let max_tokens = match request.n_predict.or(request.max_tokens) {
        None | Some(-1) => None,
        Some(n) => Some(usize::try_from(n).map_err(|_| {
            ApiError::bad_request(format!(
                "n_predict is {n}; it must be -1 (until the end) or more"
            ))
        })?),
    };
    let n_probs = request
        .n_probs
        .map(|n| bounded("n_probs", n, 0, 100))
        .transpose()?
        .filter(|&n| n > 0);
    let return_tokens = request.return_tokens.unwrap_or(false);
    let streamed = request.stream.unwrap_or(false);
    let name = request.model.clone();
    let prepare = move |model: &Loaded| {
        let mut sampling = request
            .sampling
            .params(&model.defaults, model.tokenizer()?)?;
        // Tokens are told with their probabilities or not at all.
        sampling.n_probs = n_probs.or(return_tokens.then_some(0));
        Ok(Job {
            prompts: vec![tokens(model)?],
            n: 1,
            sampling,
            grammar: one_grammar(
                None,
                request.grammar.as_deref(),
                request.json_schema.as_ref(),
            )?,
            max_tokens,
            ignore_eos: request.sampling.ignore_eos.unwrap_or(false),
            priority: request.sampling.priority,
            adapters: request.sampling.lora.clone().unwrap_or_default(),
            reading: Reading::Text,
        })
    };
    let generation = Generation::begin(&state, &client, name.as_deref(), 1, prepare).await?;
    let writer = NativeWriter {
        prompt_tokens: generation.prompt_tokens(),
        model: generation.model().clone(),
        probabilities: n_probs.is_some(),
        return_tokens,
        n_tokens: 0,
    };
    if streamed {
        return stream::respond(generation, Framing::Sse, writer).await;
    }
    let answer = generate::collect(generation).await?.into_iter().next();
    let answer = answer.ok_or_else(|| ApiError::internal("no answer"))?;
    let mut completion = writer.last(&answer.end);
    completion.content = answer.content;
    writer.add_tokens(&mut completion, &answer.tokens);
    Ok(Json(completion).into_response())
}

struct NativeWriter {
    model: Arc<Loaded>,
    prompt_tokens: usize,
    probabilities: bool,
    return_tokens: bool,
    n_tokens: usize,
}

impl NativeWriter {
    fn piece_of(&self, content: String) -> NativeCompletion {
        NativeCompletion {
            index: 0,
            content,
            tokens: Vec::new(),
            stop: false,
            model: self.model.name.clone(),
            tokens_predicted: self.n_tokens,
            tokens_evaluated: self.prompt_tokens,
            tokens_cached: 0,
            stop_type: "none",
            stopping_word: String::new(),
            truncated: false,
            completion_probabilities: Vec::new(),
            timings: None,
        }
    }

    fn last(&self, end: &End) -> NativeCompletion {
        NativeCompletion {
            stop: true,
            tokens_predicted: end.finished.generated_tokens,
            tokens_evaluated: end.finished.prompt_tokens,
            tokens_cached: end.finished.cached_tokens,
            stop_type: match end.reason {
                StopReason::StopString => "word",
                StopReason::Length => "limit",
                StopReason::Stop | StopReason::ToolCalls => "eos",
            },
            stopping_word: end.stop.clone().unwrap_or_default(),
            timings: Some(Timings::of(&end.finished)),
            ..self.piece_of(String::new())
        }
    }

    fn add_tokens(&self, completion: &mut NativeCompletion, tokens: &[TokenInfo]) {
        if self.return_tokens {
            completion.tokens = tokens.iter().map(|token| token.id).collect();
        }
        if let Ok(tokenizer) = self.model.tokenizer()
            && self.probabilities
        {
            let told = tokens.iter().map(|token| token_logprob(tokenizer, token));
            completion.completion_probabilities = told.collect();
        }
    }
}

impl Writer for NativeWriter {
    fn piece(&mut self, piece: Piece, out: &mut Frames) {
        match piece {
            Piece::Part {
                part: Part::Content(text),
                tokens,
                ..
            } => {
                self.n_tokens += 1;
                let mut completion = self.piece_of(text);
                self.add_tokens(&mut completion, &tokens);
                out.json(&completion);
            }
            Piece::Part { .. } => {}
            Piece::End(end) => {
                let mut completion = self.last(&end);
                self.add_tokens(&mut completion, &end.tokens);
                out.json(&completion);
            }
        }
    }

    fn end(&mut self, _: &mut Frames) {}

    fn error(&mut self, error: &ApiError, out: &mut Frames) {
        out.json(&error.body());
    }
}

/// A text to cut into tokens.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// The text.
    pub content: String,
    /// Whether the tokens that the model expects around a text are added.
    pub add_special: Option<bool>,
    /// Whether the names of special tokens become those tokens.
    pub parse_special: Option<bool>,
    /// Whether each token comes with its text.
    pub with_pieces: Option<bool>,
}

/// Tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenList {
    /// Ids, or with `with_pieces` objects of id and piece.
    #[schema(value_type = Vec<Object>)]
    pub tokens: Vec<Value>,
}

/// Cut a text into tokens
#[utoipa::path(
    post, path = "/tokenize", tag = "llama-server",
    request_body = TokenizeRequest,
    responses(
        (status = 200, description = "Its tokens", content_type = "application/json", body = Value),
        (status = "4XX", description = "The request cannot be served", body = ErrorBody),
        (status = "5XX", description = "The server cannot serve it now", body = ErrorBody),
    ),
)]
pub async fn tokenize(
    State(state): State<AppState>,
    Body(request): Body<TokenizeRequest>,
) -> ApiResult<Json<TokenList>> {
    let model = state.models().get(request.model.as_deref()).await?;
    blocking(move || {
        let tokenizer = model.tokenizer()?;
        let options = EncodeOptions {
            add_special: request.add_special.unwrap_or(false),
            parse_special: request.parse_special.unwrap_or(true),
        };
        let with_pieces = request.with_pieces.unwrap_or(false);
        let token = |id: u32| match tokenizer.piece(id) {
            Some(bytes) if with_pieces => {
                // A piece that is no text by itself comes as bytes.
                let piece = match std::str::from_utf8(bytes) {
                    Ok(text) => json!(text),
                    Err(_) => json!(bytes),
                };
                json!({ "id": id, "piece": piece })
            }
            _ => json!(id),
        };
        let tokens = tokenizer
            .encode(&request.content, options)
            .into_iter()
            .map(token)
            .collect();
        Ok(Json(TokenList { tokens }))
    })
    .await?
}

/// Tokens to join.
#[derive(Debug, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// A text.
#[derive(Debug, Serialize, ToSchema)]
pub struct TextBody {
    /// The text.
    pub content: String,
}

/// Join tokens to a text
#[utoipa::path(
    post, path = "/detokenize", tag = "llama-server",
    request_body = DetokenizeRequest,
    responses(
        (status = 200, description = "Their text", body = TextBody),
        (status = "4XX", description = "The request cannot be served", body = ErrorBody),
        (status = "5XX", description = "The server cannot serve it now", body = ErrorBody),
    ),
)]
pub async fn detokenize(
    State(state): State<AppState>,
    Body(request): Body<DetokenizeRequest>,
) -> ApiResult<Json<TextBody>> {
    let model = state.models().get(request.model.as_deref()).await?;
    let n_vocab = model.model().n_vocab();
    if let Some(token) = request
        .tokens
        .iter()
        .find(|&&token| token as usize >= n_vocab)
    {
        let message = format!("token {token} is out of range: the vocabulary has {n_vocab} tokens");
        return Err(ApiError::bad_request(message));
    }
    let work = move || {
        Ok(Json(TextBody {
            content: model.tokenizer()?.decode(&request.tokens),
        }))
    };
    blocking(work).await?
}

/// A conversation to render.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TemplateRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// The turns, oldest first.
    #[schema(value_type = Vec<MessageSchema>)]
    pub messages: Vec<Message>,
    /// What the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// More variables for the chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// The text that a model continues.
#[derive(Debug, Serialize, ToSchema)]
pub struct PromptBody {
    /// The text.
    pub prompt: String,
}

/// Render a conversation with the model's chat template
#[utoipa::path(
    post, path = "/apply-template", tag = "llama-server",
    request_body = TemplateRequest,
    responses(
        (status = 200, description = "The text that the model would continue", body = PromptBody),
        (status = "4XX", description = "The request cannot be served", body = ErrorBody),
        (status = "5XX", description = "The server cannot serve it now", body = ErrorBody),
    ),
)]
pub async fn apply_template(
    State(state): State<AppState>,
    Body(request): Body<TemplateRequest>,
) -> ApiResult<Json<PromptBody>> {
    let model = state.models().get(request.model.as_deref()).await?;
    let conversation = Conversation {
        messages: request.messages,
        tools: Tools::new(request.tools.unwrap_or_default(), ToolChoice::Auto, true)?,
        template_args: request.chat_template_kwargs.unwrap_or_default(),
        ..Conversation::default()
    };
    blocking(move || {
        Ok(Json(PromptBody {
            prompt: conversation.prompt(&model)?,
        }))
    })
    .await?
}

/// Which model is meant.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ModelQuery {
    /// Its name; the first one where it is not said.
    pub model: Option<String>,
}

/// What the server is.
#[derive(Debug, Serialize, ToSchema)]
pub struct Props {
    /// How tokens are chosen where nobody says.
    #[schema(value_type = Object)]
    pub default_generation_settings: Value,
    /// How many requests run at once.
    pub total_slots: usize,
    /// What the model is called.
    pub model_alias: String,
    /// The model's chat template.
    pub chat_template: String,
    /// What the template knows of.
    #[schema(value_type = Object)]
    pub chat_template_caps: Value,
    /// The token that begins a text.
    pub bos_token: String,
    /// The token that ends one.
    pub eos_token: String,
    /// The server and its version.
    pub build_info: &'static str,
}

/// Describe the server and a model
#[utoipa::path(
    get, path = "/props", tag = "llama-server",
    params(ModelQuery),
    responses(
        (status = 200, description = "What they are", body = Props),
        (status = "4XX", description = "There is no such model", body = ErrorBody),
        (status = "5XX", description = "The server cannot serve it now", body = ErrorBody),
    ),
)]
pub async fn props(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
) -> ApiResult<Json<Props>> {
    let model = state.models().get(query.model.as_deref()).await?;
    let tokenizer = model.tokenizer()?;
    let text = |id: Option<u32>| {
        id.and_then(|id| tokenizer.token_text(id))
            .unwrap_or_default()
            .to_owned()
    };
    let capabilities = model.template.capabilities();
    Ok(Json(Props {
        default_generation_settings: json!({
            "n_ctx": model.n_ctx(),
            "params": settings(&model.defaults),
        }),
        total_slots: model.slots,
        model_alias: model.name.clone(),
        chat_template: model.template.source().to_owned(),
        chat_template_caps: json!({
            "supports_system_role": capabilities.system_role,
            "supports_tools": capabilities.tools,
            "supports_tool_calls": capabilities.tool_calls,
            "supports_reasoning": capabilities.reasoning,
        }),
        bos_token: text(tokenizer.bos()),
        eos_token: text(tokenizer.eos()),
        build_info: super::chat::FINGERPRINT,
    }))
}

fn settings(params: &SamplingParams) -> Value {
    json!({
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": params.typical_p,
        "repeat_penalty": params.repeat_penalty,
        "repeat_last_n": params.repeat_last_n,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "samplers": params.samplers.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
    })
}

/// A place for a request.
#[derive(Debug, Serialize, ToSchema)]
pub struct Slot {
    /// Its number.
    pub id: usize,
    /// The model that it belongs to.
    pub model: String,
    /// Most tokens of a request.
    pub n_ctx: usize,
    /// Whether a request is in it.
    pub is_processing: bool,
    /// The request.
    pub id_task: Option<u64>,
    /// Tokens of its prompt.
    pub n_prompt_tokens: usize,
    /// Tokens of its answer so far.
    pub n_decoded: usize,
    /// Seconds since it came.
    pub seconds: f64,
}

/// What runs
///
/// Requests that wait come after those that run; none of them says what it is about.
#[utoipa::path(
    get, path = "/slots", tag = "llama-server",
    responses((status = 200, description = "Every slot", body = Vec<Slot>)),
)]
pub async fn slots(State(state): State<AppState>) -> Json<Vec<Slot>> {
    let mut slots = Vec::new();
    for model in state
        .models()
        .entries()
        .iter()
        .filter_map(|entry| entry.loaded())
    {
        let running = model.running.list();
        for id in 0..model.slots.max(running.len()) {
            let progress = running.get(id);
            slots.push(Slot {
                id,
                model: model.name.clone(),
                n_ctx: model.n_ctx(),
                is_processing: progress.is_some(),
                id_task: progress.map(|progress| progress.id),
                n_prompt_tokens: progress.map_or(0, |progress| progress.prompt_tokens),
                n_decoded: progress
                    .map_or(0, |progress| progress.generated.load(Ordering::Relaxed)),
                seconds: progress.map_or(0.0, |progress| progress.since.elapsed().as_secs_f64()),
            });
        }
    }
    Json(slots)
}

/// An adapter of a model's weights.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoraAdapter {
    /// Its number.
    pub id: usize,
    /// The name of its file.
    pub path: String,
    /// How strongly it counts where a request does not say.
    pub scale: f32,
}

/// List LoRA adapters
#[utoipa::path(
    get, path = "/lora-adapters", tag = "llama-server",
    params(ModelQuery),
    responses(
        (status = 200, description = "Those that were loaded with the model", body = Vec<LoraAdapter>),
        (status = "4XX", description = "There is no such model", body = ErrorBody),
        (status = "5XX", description = "The server cannot serve it now", body = ErrorBody),
    ),
)]
pub async fn lora_adapters(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
) -> ApiResult<Json<Vec<LoraAdapter>>> {
    let model = state.models().get(query.model.as_deref()).await?;
    Ok(Json(list_adapters(&model)))
}

fn list_adapters(model: &Loaded) -> Vec<LoraAdapter> {
    let adapters = model.model().adapters().iter();
    let scaled = adapters.zip(model.adapter_scales()).enumerate();
    // Where files lie is nobody's business but the operator's.
    let name = |path: &std::path::Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let entry = |(id, (adapter, scale)): (usize, (&Adapter, f32))| LoraAdapter {
        id,
        path: name(adapter.path()).unwrap_or_default(),
        scale,
    };
    scaled.map(entry).collect()
}

/// Set how strongly LoRA adapters count
///
/// Holds for requests from now on; those that are not named count for nothing.
#[utoipa::path(
    post, path = "/lora-adapters", tag = "llama-server",
    params(ModelQuery),
    request_body = Vec<AdapterScale>,
    responses(
        (status = 200, description = "The adapters as they are now", body = Vec<LoraAdapter>),
        (status = 400, description = "There is no such adapter", body = ErrorBody),
        (status = "4XX", description = "The request cannot be served", body = ErrorBody),
        (status = "5XX", description = "The server cannot serve it now", body = ErrorBody),
    ),
)]
pub async fn scale_adapters(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
    Body(asked): Body<Vec<AdapterScale>>,
) -> ApiResult<Json<Vec<LoraAdapter>>> {
    let model = state.models().get(query.model.as_deref()).await?;
    let nothing = vec![0.0; model.adapter_scales().len()];
    model.set_adapter_scales(generate::adapter_scales(nothing, &asked)?);
    Ok(Json(list_adapters(&model)))
}
