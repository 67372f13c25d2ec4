//! llama-server's `/completion` and `/infill`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::{ProgressOut, Timings, TokenLogprob};
use crate::auth::Client;
use crate::body::Body;
use crate::constraint::ConstraintFields;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::fields::{OtherField, RequestBody, other};
use crate::generate::{self, Delta, End, Generation, GenerationRequest, Input, Update};
use crate::models::Loaded;
use crate::prompt::{Infill, Prompt};
use crate::routes::{TokenLimit, bounded};
use crate::sampling::SamplingFields;
use crate::state::AppState;
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};

/// Request of a completion.
#[derive(Debug, Deserialize, ToSchema)]
pub struct NativeRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Prompt, as a text or as token ids.
    #[serde(default)]
    pub prompt: Option<Prompt>,
    /// Stream the answer as server-sent events.
    pub stream: Option<bool>,
    /// Maximum number of tokens to generate; -1 is no limit.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub n_predict: Option<i32>,
    /// OpenAI's name of `n_predict`.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub max_tokens: Option<i32>,
    /// Number of most likely tokens to return at each position.
    #[serde(alias = "logprobs")]
    #[schema(maximum = 100)]
    pub n_probs: Option<u32>,
    /// Return the token ids of the answer.
    pub return_tokens: Option<bool>,
    /// Report the progress of the prompt in the stream, as `prompt_progress`.
    pub return_progress: Option<bool>,
    /// Text before the gap, for `/infill`.
    pub input_prefix: Option<String>,
    /// Text after the gap, for `/infill`.
    pub input_suffix: Option<String>,
    /// Other files of the project, for `/infill`.
    pub input_extra: Option<Vec<ExtraFile>>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub constraint: ConstraintFields,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub sampling: SamplingFields,
}

impl RequestBody for NativeRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[
        other::SAMPLING,
        other::REASONING,
        other::NO_REASONING,
        other::VLLM,
        other::LLAMA_SERVER,
        other::NATIVE,
    ];
}

/// A file of the same project as the text with the gap.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ExtraFile {
    /// Name of the file.
    pub filename: Option<String>,
    /// Text of the file.
    pub text: String,
}

/// A completion, or a part of one.
#[derive(Debug, Serialize, ToSchema)]
pub struct NativeCompletion {
    /// Always 0.
    pub index: usize,
    /// Generated text.
    pub content: String,
    /// Token ids of the text, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<u32>,
    /// True for the last part.
    pub stop: bool,
    /// Name of the model.
    pub model: String,
    /// Tokens generated.
    pub tokens_predicted: usize,
    /// Tokens in the prompt.
    pub tokens_evaluated: usize,
    /// Prompt tokens found in the prefix cache.
    pub tokens_cached: usize,
    /// Reason for the end: `eos`, `word` or `limit`; `none` until then.
    pub stop_type: &'static str,
    /// The stop string that ended the answer.
    pub stopping_word: String,
    /// Always false: a prompt that exceeds the context is an error.
    pub truncated: bool,
    /// Log probability of each token, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub completion_probabilities: Vec<TokenLogprob>,
    /// Timings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    /// Progress of the prompt, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<ProgressOut>,
}

/// Create a completion
#[utoipa::path(
    post, path = "/completion", tag = "llama-server",
    request_body = NativeRequest,
    responses(
        (status = 200, description = "The completion; with `stream`, server-sent events with its parts", content(
            (NativeCompletion = "application/json"), (StreamEvent = "text/event-stream"),
        )),
        OpenAiErrors,
    ),
)]
pub async fn completion(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(mut request): Body<NativeRequest>,
) -> ApiResult<Response> {
    let prompt = request.prompt.take();
    let Some(prompt) = prompt.filter(|prompt| prompt.count() == 1) else {
        return Err(ApiError::bad_request(
            "`prompt` must be one text or one list of token ids and texts",
        ));
    };
    answer(state, client, request, prompt.into()).await
}

/// Fill a gap in a text (fill-in-the-middle)
#[utoipa::path(
    post, path = "/infill", tag = "llama-server",
    request_body = NativeRequest,
    responses(
        (status = 200, description = "The text that fills the gap; with `stream`, server-sent events with its parts", content(
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
    let mut prefix = request.input_prefix.take().unwrap_or_default();
    let suffix = request.input_suffix.take().unwrap_or_default();
    // The prompt is the start of the line with the gap: it follows the prefix.
    if let Some(prompt) = request.prompt.take() {
        let wrong = || ApiError::bad_request("the prompt of /infill must be a text");
        prefix.push_str(&prompt.into_text().ok_or_else(wrong)?);
    }
    let extra = request.input_extra.take().unwrap_or_default().into_iter();
    let files = extra.map(|file| (file.filename.unwrap_or_else(|| "tmp".into()), file.text));
    let infill = Infill {
        prefix,
        suffix,
        files: files.collect(),
    };
    answer(state, client, request, infill.into()).await
}

async fn answer(
    state: AppState,
    client: Client,
    request: NativeRequest,
    input: Input,
) -> ApiResult<Response> {
    let max_tokens = request.n_predict.or(request.max_tokens);
    let max_tokens = TokenLimit::new("n_predict", max_tokens)?.or(None);
    let n_probs = request
        .n_probs
        .map(|n| bounded("n_probs", n, 0, 100))
        .transpose()?
        .filter(|&n| n > 0);
    let return_tokens = request.return_tokens.unwrap_or(false);
    let streamed = request.stream.unwrap_or(false);
    let request = GenerationRequest {
        model: request.model,
        sampling: request.sampling,
        // Token ids come with log probabilities.
        n_probs: n_probs.or(return_tokens.then_some(0)),
        grammar: request.constraint.grammar()?,
        max_tokens,
        progress: streamed && request.return_progress.unwrap_or(false),
        ..GenerationRequest::new(input)
    };
    let generation = Generation::begin(&state, &client, request).await?;
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
    writer.add_tokens(&mut completion, answer.logprobs);
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
    fn part(&self, content: String) -> NativeCompletion {
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
            prompt_progress: None,
        }
    }

    fn last(&self, end: &End) -> NativeCompletion {
        NativeCompletion {
            stop: true,
            tokens_predicted: end.completion.generated_tokens,
            tokens_evaluated: end.completion.prompt_tokens,
            tokens_cached: end.completion.cached_tokens,
            stop_type: end.reason.llama_server(),
            stopping_word: end.reason.stop_string().unwrap_or_default().to_owned(),
            timings: Some(Timings::of(&end.completion)),
            ..self.part(String::new())
        }
    }

    fn add_tokens(&self, completion: &mut NativeCompletion, tokens: Vec<TokenLogprob>) {
        if self.return_tokens {
            completion.tokens = tokens.iter().map(|token| token.id).collect();
        }
        if self.probabilities {
            completion.completion_probabilities = tokens;
        }
    }
}

impl Writer for NativeWriter {
    fn update(&mut self, update: Update, out: &mut Frames) {
        match update {
            Update::Progress { progress, .. } => {
                let mut completion = self.part(String::new());
                completion.prompt_progress = Some(progress.into());
                out.json(&completion);
            }
            Update::Prompt { .. } => {}
            Update::Delta {
                delta: Delta::Content(text),
                logprobs,
                ..
            } => {
                self.n_tokens += 1;
                let mut completion = self.part(text);
                self.add_tokens(&mut completion, logprobs);
                out.json(&completion);
            }
            Update::Delta { .. } => {}
            Update::End(end) => {
                let mut completion = self.last(&end);
                self.add_tokens(&mut completion, end.logprobs);
                out.json(&completion);
            }
        }
    }

    fn end(&mut self, _: &mut Frames) {}

    fn error(&mut self, error: &ApiError, out: &mut Frames) {
        out.json(&error.body());
    }
}
