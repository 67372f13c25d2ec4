//! llama-server's `/completion` and `/infill`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::answer::{Timings, TokenLogprob, token_logprob};
use crate::auth::Client;
use crate::body::Body;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::generate::{self, End, Generation, Job, Part, Piece, StopReason, TokenInfo};
use crate::models::Loaded;
use crate::routes::bounded;
use crate::routes::completions::Prompt;
use crate::sampling::{SamplingFields, one_grammar};
use crate::state::AppState;
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};

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
    #[schema(minimum = -1, maximum = 2147483647)]
    pub n_predict: Option<i32>,
    /// The same, by OpenAI's name.
    #[schema(minimum = -1, maximum = 2147483647)]
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
        OpenAiErrors,
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
        OpenAiErrors,
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
        let mut job = Job::new(model, &request.sampling)?;
        // Tokens are told with their probabilities or not at all.
        job.sampling.n_probs = n_probs.or(return_tokens.then_some(0));
        Ok(Job {
            prompts: vec![tokens(model)?],
            grammar: one_grammar(
                None,
                request.grammar.as_deref(),
                request.json_schema.as_ref(),
            )?,
            max_tokens,
            ..job
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
    let answer = generate::collect_one(generation).await?;
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
