//! OpenAI's `POST /v1/completions`: the continuation of a text.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chat::{FINGERPRINT, StreamOptions, as_vllm, not_streamed};
use super::{TokenLimit, bounded, prompt_logprobs};
use crate::answer::{
    FinishReason, ProgressOut, PromptLogprob, Timings, TokenLogprob, TopLogprob, Usage,
};
use crate::auth::Client;
use crate::body::Body;
use crate::constraint::ConstraintFields;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::fields::{OtherField, RequestBody, other};
use crate::generate::{
    self, Delta, End, Generation, GenerationRequest, Search, SearchFields, Update,
};
use crate::models::Loaded;
use crate::prompt::{Infill, Prompt};
use crate::sampling::SamplingFields;
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
    /// Maximum number of tokens to generate; -1 is no limit, 0 scores the prompt alone. 16 by default.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub max_tokens: Option<i32>,
    /// Number of answers to each prompt.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<u32>,
    /// Number of most likely tokens to return at each position, with `echo` also of the prompt.
    #[schema(maximum = 20)]
    pub logprobs: Option<u32>,
    /// Return the prompt before the answer.
    pub echo: Option<bool>,
    /// Number of most likely tokens to return at each position of the prompt, as `prompt_logprobs`.
    #[schema(maximum = 20)]
    pub prompt_logprobs: Option<u32>,
    /// Report the progress of the prompt in the stream, as `prompt_progress`.
    pub return_progress: Option<bool>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub constraint: ConstraintFields,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub search: SearchFields,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub sampling: SamplingFields,
}

impl RequestBody for CompletionRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[
        other::SAMPLING,
        other::REASONING,
        other::NO_REASONING,
        other::OPENAI,
        other::VLLM,
        other::VLLM_COMPLETIONS,
        other::LLAMA_SERVER,
    ];
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
    /// Progress of the prompt, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<ProgressOut>,
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
    /// Log probabilities of the prompt's tokens, if requested, in vLLM's format.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<Vec<Value>>,
}

/// Log probabilities in the format of OpenAI's completions.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Text of each token.
    pub tokens: Vec<String>,
    /// Log probability of each token; null for the first token of a prompt.
    pub token_logprobs: Vec<Option<f64>>,
    /// The most likely tokens at each position; null for the first token of a prompt.
    #[schema(value_type = Vec<Option<Object>>)]
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
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
    let with_prompt = request.prompt_logprobs.is_some();
    let request = request.into_generation()?;
    if streamed && request.search != Search::Off {
        return Err(not_streamed());
    }
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
        with_prompt,
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
        let choice = answer.end.choice;
        let scored = if writer.echo.is_empty() {
            &[][..]
        } else {
            &answer.prompt
        };
        let logprobs = writer.logprobs(choice, scored, answer.logprobs);
        choices.push(CompletionChoice {
            text: writer.echo_of(answer.end.choice) + &answer.content,
            index: answer.end.choice,
            logprobs,
            finish_reason: Some(answer.end.reason.openai()),
            prompt_logprobs: with_prompt.then(|| as_vllm(answer.prompt)),
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
        let echoed = n_probs.filter(|_| self.echo.unwrap_or(false));
        // One computation serves both fields.
        let prompt_logprobs = prompt_logprobs(self.prompt_logprobs)?.max(echoed);
        let input = match self.suffix.filter(|suffix| !suffix.is_empty()) {
            None => self.prompt.into(),
            Some(suffix) => {
                let prefix = self.prompt.into_text();
                let wrong = || ApiError::bad_request("`suffix` needs a single prompt of text");
                let infill = Infill {
                    prefix: prefix.ok_or_else(wrong)?,
                    suffix,
                    ..Infill::default()
                };
                infill.into()
            }
        };
        Ok(GenerationRequest {
            model: self.model,
            input,
            n,
            search: self.search.search(n)?,
            sampling: self.sampling,
            n_probs,
            grammar: self.constraint.grammar()?,
            max_tokens: TokenLimit::new("max_tokens", self.max_tokens)?
                .or(Some(DEFAULT_MAX_TOKENS)),
            prompt_logprobs,
            progress: self.return_progress.unwrap_or(false) && self.stream.unwrap_or(false),
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
    with_prompt: bool,
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
            prompt_progress: None,
        }
    }

    fn echo_of(&self, choice: usize) -> String {
        self.echo
            .get(choice / self.n.max(1))
            .cloned()
            .unwrap_or_default()
    }

    /// Log probabilities of tokens of a prompt and of the answer after it.
    fn logprobs(
        &mut self,
        choice: usize,
        prompt: &[PromptLogprob],
        tokens: Vec<TokenLogprob>,
    ) -> Option<CompletionLogprobs> {
        if !self.logprobs {
            return None;
        }
        let offset = self.offsets.get_mut(choice)?;
        let mut logprobs = CompletionLogprobs::default();
        let prompt = prompt.iter().map(|token| {
            let top = token.rank.map(|_| token.top.as_slice());
            (token.token.token.as_str(), token.logprob(), top)
        });
        let answer = tokens.iter().map(|token| {
            let top = Some(token.top_logprobs.as_slice());
            (token.token.as_str(), Some(token.logprob), top)
        });
        for (text, logprob, top) in prompt.chain(answer) {
            logprobs.text_offset.push(*offset);
            *offset += text.chars().count();
            logprobs.tokens.push(text.to_owned());
            // As f64 like those in `top_logprobs`, so that clients can compare them.
            logprobs.token_logprobs.push(logprob.map(f64::from));
            let named = |top: &TopLogprob| (top.token.clone(), top.logprob.into());
            let top = top.map(|top| top.iter().map(named).collect());
            logprobs.top_logprobs.push(top);
        }
        Some(logprobs)
    }

    /// True if the log probabilities of the prompt come with its text.
    fn scores_echo(&self) -> bool {
        self.logprobs && !self.echo.is_empty()
    }

    /// The part of one choice.
    fn choice(
        &mut self,
        index: usize,
        text: String,
        tokens: Vec<TokenLogprob>,
        reason: Option<&FinishReason>,
    ) -> Completion {
        let logprobs = self.logprobs(index, &[], tokens);
        self.completion(vec![CompletionChoice {
            text,
            index,
            logprobs,
            finish_reason: reason.map(FinishReason::openai),
            prompt_logprobs: None,
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
        if self.scores_echo() {
            return;
        }
        for index in 0..self.echo.len() * self.n {
            let text = self.echo_of(index);
            out.json(&self.completion(vec![CompletionChoice {
                text,
                index,
                logprobs: None,
                finish_reason: None,
                prompt_logprobs: None,
            }]));
        }
    }

    fn update(&mut self, update: Update, out: &mut Frames) {
        match update {
            Update::Progress { choice, progress } => {
                let mut part = self.choice(choice, String::new(), Vec::new(), None);
                part.prompt_progress = Some(progress.into());
                out.json(&part);
            }
            Update::Prompt { choice, tokens } => {
                let scores_echo = self.scores_echo();
                let (text, logprobs) = match scores_echo {
                    true => (
                        self.echo_of(choice),
                        self.logprobs(choice, &tokens, Vec::new()),
                    ),
                    false => (String::new(), None),
                };
                out.json(&self.completion(vec![CompletionChoice {
                    text,
                    index: choice,
                    logprobs,
                    finish_reason: None,
                    prompt_logprobs: self.with_prompt.then(|| as_vllm(tokens)),
                }]));
            }
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
