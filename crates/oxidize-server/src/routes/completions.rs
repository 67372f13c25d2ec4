//! OpenAI's `POST /v1/completions`: the continuation of a text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chat::{FINGERPRINT, StreamOptions};
use super::{bounded, token_count};
use crate::answer::{FinishReason, Timings, TokenLogprob, Usage};
use crate::auth::Client;
use crate::body::Body;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::generate::{self, Delta, End, Generation, GenerationRequest, Update};
use crate::models::Loaded;
use crate::prompt::{Infill, Prompt};
use crate::sampling::{ResponseFormat, SamplingFields, one_grammar};
use crate::state::{AppState, unix_time};
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};

/// Default of `max_tokens`, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Request of a completion.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Prompt: a text, token ids, or a list of either.
    pub prompt: Prompt,
    /// Text after the completion, for models trained to fill gaps.
    pub suffix: Option<String>,
    /// Stream the answer as server-sent events.
    pub stream: Option<bool>,
    /// Options of a streamed response.
    pub stream_options: Option<StreamOptions>,
    /// Maximum number of tokens to generate.
    #[schema(maximum = 2147483647)]
    pub max_tokens: Option<u32>,
    /// Number of answers to each prompt.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<u32>,
    /// Number of most likely tokens to return at each position.
    #[schema(maximum = 20)]
    pub logprobs: Option<u32>,
    /// Return the prompt before the answer.
    pub echo: Option<bool>,
    /// Format of the answer.
    pub response_format: Option<ResponseFormat>,
    /// GBNF grammar that constrains the answer.
    pub grammar: Option<String>,
    /// JSON schema that constrains the answer.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Value>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub sampling: SamplingFields,
}

/// A completion.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion {
    /// Identifier of the completion.
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Unix time of creation, in seconds.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// Name and version of the server.
    pub system_fingerprint: &'static str,
    /// Answers.
    pub choices: Vec<CompletionChoice>,
    /// Token counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Timings of the first answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Generated text.
    pub text: String,
    /// Index of the answer.
    pub index: usize,
    /// Log probabilities, if requested.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null until the answer ends.
    pub finish_reason: Option<&'static str>,
}

/// Log probabilities in the format of OpenAI's completions.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Text of each token.
    pub tokens: Vec<String>,
    /// Log probability of each token.
    pub token_logprobs: Vec<f32>,
    /// The most likely tokens at each position.
    #[schema(value_type = Vec<Object>)]
    pub top_logprobs: Vec<Map<String, Value>>,
    /// Offset of each token in the text, in characters.
    pub text_offset: Vec<usize>,
}

/// Create a completion
#[utoipa::path(
    post, path = "/v1/completions", tag = "OpenAI",
    request_body = CompletionRequest,
    responses(
        (status = 200, description = "The completion; with `stream`, server-sent events with its parts", content(
            (Completion = "application/json"), (StreamEvent = "text/event-stream"),
        )),
        OpenAiErrors,
    ),
)]
pub async fn create(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<CompletionRequest>,
) -> ApiResult<Response> {
    let streamed = request.stream.unwrap_or(false);
    let with_usage = request
        .stream_options
        .and_then(|o| o.include_usage)
        .unwrap_or(false);
    let echo = request
        .echo
        .unwrap_or(false)
        .then(|| request.prompt.clone());
    let request = request.into_generation()?;
    let (n, count, logprobs) = (request.n, request.n_answers(), request.n_probs.is_some());
    let generation = Generation::begin(&state, &client, request).await?;
    let model = generation.model().clone();
    let echo = match echo {
        Some(prompt) => prompt.texts(model.tokenizer()?),
        None => Vec::new(),
    };
    let mut writer = CompletionWriter {
        id: state.new_id("cmpl-"),
        created: unix_time(),
        echo,
        offsets: vec![0; count],
        model,
        n,
        logprobs,
        with_usage,
        usage: Usage::default(),
    };
    if streamed {
        return stream::respond(generation, Framing::Sse, writer).await;
    }
    let answers = generate::collect(generation).await?;
    let timings = answers
        .first()
        .map(|answer| Timings::of(&answer.end.completion));
    let mut choices = Vec::new();
    for answer in answers {
        writer.usage.add(&answer.end, n);
        let logprobs = writer.logprobs(answer.end.choice, answer.logprobs);
        choices.push(CompletionChoice {
            text: writer.echo_of(answer.end.choice) + &answer.content,
            index: answer.end.choice,
            logprobs,
            finish_reason: Some(answer.end.reason.openai()),
        });
    }
    let mut completion = writer.completion(choices);
    completion.usage = Some(writer.usage);
    completion.timings = timings;
    Ok(Json(completion).into_response())
}

impl CompletionRequest {
    fn into_generation(self) -> ApiResult<GenerationRequest> {
        let n = bounded("n", self.n.unwrap_or(1), 1, generate::MAX_ANSWERS as u32)? as usize;
        let n_probs = self
            .logprobs
            .map(|top| bounded("logprobs", top, 0, 20))
            .transpose()?;
        let input = match (self.suffix.filter(|suffix| !suffix.is_empty()), self.prompt) {
            (None, prompt) => prompt.into(),
            (Some(suffix), Prompt::Text(prefix)) => {
                let infill = Infill {
                    prefix,
                    suffix,
                    ..Infill::default()
                };
                infill.into()
            }
            (Some(_), _) => {
                return Err(ApiError::bad_request(
                    "suffix needs a single prompt of text",
                ));
            }
        };
        Ok(GenerationRequest {
            model: self.model,
            input,
            n,
            sampling: self.sampling,
            n_probs,
            grammar: one_grammar(
                self.response_format.as_ref(),
                self.grammar.as_deref(),
                self.json_schema.as_ref(),
            )?,
            max_tokens: token_count("max_tokens", self.max_tokens)?.or(Some(DEFAULT_MAX_TOKENS)),
        })
    }
}

struct CompletionWriter {
    id: String,
    created: u64,
    model: Arc<Loaded>,
    /// Text of each prompt, if answers begin with it.
    echo: Vec<String>,
    /// Length of each answer so far, in characters.
    offsets: Vec<usize>,
    n: usize,
    logprobs: bool,
    with_usage: bool,
    usage: Usage,
}

impl CompletionWriter {
    fn completion(&self, choices: Vec<CompletionChoice>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.name.clone(),
            system_fingerprint: FINGERPRINT,
            choices,
            usage: None,
            timings: None,
        }
    }

    fn echo_of(&self, choice: usize) -> String {
        self.echo
            .get(choice / self.n.max(1))
            .cloned()
            .unwrap_or_default()
    }

    fn logprobs(&mut self, choice: usize, tokens: Vec<TokenLogprob>) -> Option<CompletionLogprobs> {
        if !self.logprobs {
            return None;
        }
        let offset = self.offsets.get_mut(choice)?;
        let mut logprobs = CompletionLogprobs::default();
        for token in tokens {
            logprobs.text_offset.push(*offset);
            *offset += token.token.chars().count();
            logprobs.tokens.push(token.token);
            logprobs.token_logprobs.push(token.logprob);
            let top = token.top_logprobs.into_iter();
            let top = top.map(|top| (top.token, top.logprob.into()));
            logprobs.top_logprobs.push(top.collect());
        }
        Some(logprobs)
    }

    /// The part of one choice.
    fn choice(
        &mut self,
        index: usize,
        text: String,
        tokens: Vec<TokenLogprob>,
        reason: Option<&FinishReason>,
    ) -> Completion {
        let logprobs = self.logprobs(index, tokens);
        self.completion(vec![CompletionChoice {
            text,
            index,
            logprobs,
            finish_reason: reason.map(FinishReason::openai),
        }])
    }

    fn last(&mut self, end: End) -> Completion {
        self.usage.add(&end, self.n);
        let mut chunk = self.choice(end.choice, String::new(), end.logprobs, Some(&end.reason));
        chunk.timings = Some(Timings::of(&end.completion));
        chunk
    }
}

impl Writer for CompletionWriter {
    fn start(&mut self, out: &mut Frames) {
        for index in 0..self.echo.len() * self.n {
            let text = self.echo_of(index);
            out.json(&self.completion(vec![CompletionChoice {
                text,
                index,
                logprobs: None,
                finish_reason: None,
            }]));
        }
    }

    fn update(&mut self, update: Update, out: &mut Frames) {
        match update {
            Update::Delta {
                choice,
                delta: Delta::Content(text),
                logprobs,
            } => out.json(&self.choice(choice, text, logprobs, None)),
            Update::Delta { .. } => {}
            Update::End(end) => out.json(&self.last(*end)),
        }
    }

    fn end(&mut self, out: &mut Frames) {
        if self.with_usage {
            let mut chunk = self.completion(Vec::new());
            chunk.usage = Some(self.usage);
            out.json(&chunk);
        }
        out.done();
    }
}
