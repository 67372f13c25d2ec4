//! `POST /v1/completions`: text that goes on.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chat::{FINGERPRINT, StreamOptions};
use super::{bounded, token_count};
use crate::answer::{Timings, Usage, finish_reason, finite, text_of};
use crate::auth::Client;
use crate::body::Body;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::generate::{self, End, Generation, Job, Part, Piece, TokenInfo};
use crate::models::Loaded;
use crate::sampling::{ResponseFormat, SamplingFields, one_grammar};
use crate::state::{AppState, unix_time};
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};

/// Most tokens of an answer where nobody says: OpenAI's number.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A text to continue.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// Text, tokens, or several of either.
    pub prompt: Prompt,
    /// What comes after the gap, for models that fill gaps.
    pub suffix: Option<String>,
    /// Whether the answer comes as server-sent events.
    pub stream: Option<bool>,
    /// What a stream ends with.
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of the answer.
    #[schema(maximum = 2147483647)]
    pub max_tokens: Option<u32>,
    /// How many answers to each prompt.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<u32>,
    /// How many of the most likely tokens come with each token.
    #[schema(maximum = 20)]
    pub logprobs: Option<u32>,
    /// Whether the answer begins with the prompt.
    pub echo: Option<bool>,
    /// The form of the answer.
    pub response_format: Option<ResponseFormat>,
    /// A grammar in GBNF that the answer follows.
    pub grammar: Option<String>,
    /// A JSON schema that the answer fits.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Value>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "its fields have their own")]
    pub sampling: SamplingFields,
}

/// Text or tokens, once or several times.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Tokens, several times.
    TokenLists(Vec<Vec<u32>>),
}

impl Prompt {
    /// How many prompts there are.
    pub fn count(&self) -> usize {
        match self {
            Prompt::Text(_) => 1,
            Prompt::Tokens(tokens) => usize::from(!tokens.is_empty()),
            Prompt::Texts(list) => list.len(),
            Prompt::TokenLists(list) => list.len(),
        }
    }

    /// Each as tokens.
    pub fn tokens(self, model: &Loaded) -> ApiResult<Vec<Vec<u32>>> {
        let tokenizer = model.tokenizer()?;
        let encode = |text: String| tokenizer.encode(&text, EncodeOptions::default());
        let lists = match self {
            Prompt::Text(text) => vec![encode(text)],
            Prompt::Tokens(tokens) => vec![tokens],
            Prompt::Texts(texts) => texts.into_iter().map(encode).collect(),
            Prompt::TokenLists(lists) => lists,
        };
        // A text of nothing is where every text begins, if the model has a token for that.
        let or_start = |tokens: Vec<u32>| match tokens.is_empty() {
            true => tokenizer.bos().into_iter().collect(),
            false => tokens,
        };
        Ok(lists.into_iter().map(or_start).collect())
    }
}

/// Texts that went on.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion {
    /// Names it.
    pub id: String,
    /// `text_completion`
    pub object: &'static str,
    /// When, in seconds since 1970.
    pub created: u64,
    /// Who answered.
    pub model: String,
    /// The server and its version.
    pub system_fingerprint: &'static str,
    /// The answers.
    pub choices: Vec<CompletionChoice>,
    /// How many tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// How long the first answer took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// One answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// What was written.
    pub text: String,
    /// Its place.
    pub index: usize,
    /// Log probabilities, if asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null while it goes on.
    pub finish_reason: Option<&'static str>,
}

/// Log probabilities in OpenAI's older shape.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Each token's text.
    pub tokens: Vec<String>,
    /// Each token's log probability.
    pub token_logprobs: Vec<f32>,
    /// The most likely tokens in each place.
    #[schema(value_type = Vec<Object>)]
    pub top_logprobs: Vec<Map<String, Value>>,
    /// Where in the text each token begins.
    pub text_offset: Vec<usize>,
}

/// Continue a text
#[utoipa::path(
    post, path = "/v1/completions", tag = "OpenAI",
    request_body = CompletionRequest,
    responses(
        (status = 200, description = "The text; with `stream`, server-sent events of its pieces", content(
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
    let n = bounded("n", request.n.unwrap_or(1), 1, generate::MAX_CHOICES as u32)? as usize;
    let count = request.prompt.count().saturating_mul(n);
    let n_probs = request
        .logprobs
        .map(|top| bounded("logprobs", top, 0, 20))
        .transpose()?;
    let streamed = request.stream.unwrap_or(false);
    let with_usage = request
        .stream_options
        .and_then(|o| o.include_usage)
        .unwrap_or(false);
    let echo = request
        .echo
        .unwrap_or(false)
        .then(|| request.prompt.clone());
    let name = request.model.clone();
    let prepare = move |model: &Loaded| request.job(model, n, n_probs);
    let generation = Generation::begin(&state, &client, name.as_deref(), count, prepare).await?;
    let model = generation.model().clone();
    let writer = CompletionWriter {
        id: state.new_id("cmpl-"),
        created: unix_time(),
        echo: echoes(&model, echo)?,
        offsets: vec![0; count],
        model,
        n,
        logprobs: n_probs.is_some(),
        with_usage,
        usage: Usage::default(),
    };
    if streamed {
        return stream::respond(generation, Framing::Sse, writer).await;
    }
    let answers = generate::collect(generation).await?;
    let mut writer = writer;
    let timings = answers
        .first()
        .map(|answer| Timings::of(&answer.end.finished));
    let mut choices = Vec::new();
    for answer in answers {
        writer.usage.add(&answer.end, n);
        let logprobs = writer.logprobs(answer.end.choice, &answer.tokens);
        choices.push(CompletionChoice {
            text: writer.echo_of(answer.end.choice) + &answer.content,
            index: answer.end.choice,
            logprobs,
            finish_reason: Some(finish_reason(answer.end.reason)),
        });
    }
    let mut completion = writer.completion(choices);
    completion.usage = Some(writer.usage);
    completion.timings = timings;
    Ok(Json(completion).into_response())
}

impl CompletionRequest {
    fn job(self, model: &Loaded, n: usize, n_probs: Option<u32>) -> ApiResult<Job> {
        let mut job = Job::new(model, &self.sampling)?;
        job.sampling.n_probs = n_probs;
        let grammar = one_grammar(
            self.response_format.as_ref(),
            self.grammar.as_deref(),
            self.json_schema.as_ref(),
        )?;
        let prompts = match self.suffix.filter(|suffix| !suffix.is_empty()) {
            None => self.prompt.tokens(model)?,
            Some(suffix) => {
                let Prompt::Text(prefix) = &self.prompt else {
                    return Err(ApiError::bad_request(
                        "a suffix goes with one prompt of text",
                    ));
                };
                vec![crate::infill::tokens(
                    model.tokenizer()?,
                    prefix,
                    &suffix,
                    &[],
                )?]
            }
        };
        Ok(Job {
            prompts,
            n,
            grammar,
            max_tokens: token_count("max_tokens", self.max_tokens)?.or(Some(DEFAULT_MAX_TOKENS)),
            ..job
        })
    }
}

/// The text of each prompt, for answers that begin with it.
fn echoes(model: &Loaded, prompt: Option<Prompt>) -> ApiResult<Vec<String>> {
    let tokenizer = model.tokenizer()?;
    Ok(match prompt {
        None => Vec::new(),
        Some(Prompt::Text(text)) => vec![text],
        Some(Prompt::Texts(texts)) => texts,
        Some(Prompt::Tokens(tokens)) => vec![tokenizer.decode(&tokens)],
        Some(Prompt::TokenLists(lists)) => lists
            .iter()
            .map(|tokens| tokenizer.decode(tokens))
            .collect(),
    })
}

struct CompletionWriter {
    id: String,
    created: u64,
    model: Arc<Loaded>,
    echo: Vec<String>,
    /// Characters of each answer so far.
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

    fn logprobs(&mut self, choice: usize, tokens: &[TokenInfo]) -> Option<CompletionLogprobs> {
        if !self.logprobs {
            return None;
        }
        let tokenizer = self.model.tokenizer().ok()?;
        let offset = self.offsets.get_mut(choice)?;
        let mut logprobs = CompletionLogprobs::default();
        for token in tokens {
            let text = text_of(tokenizer, token.id);
            logprobs.text_offset.push(*offset);
            *offset += text.chars().count();
            logprobs.tokens.push(text);
            logprobs
                .token_logprobs
                .push(finite(token.logprob.unwrap_or(f32::NEG_INFINITY)));
            let top = token
                .top
                .iter()
                .map(|&(id, logprob)| (text_of(tokenizer, id), finite(logprob).into()));
            logprobs.top_logprobs.push(top.collect());
        }
        Some(logprobs)
    }

    fn last(&mut self, end: &End) -> Completion {
        self.usage.add(end, self.n);
        let logprobs = self.logprobs(end.choice, &end.tokens);
        let mut chunk = self.completion(vec![CompletionChoice {
            text: String::new(),
            index: end.choice,
            logprobs,
            finish_reason: Some(finish_reason(end.reason)),
        }]);
        chunk.timings = Some(Timings::of(&end.finished));
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

    fn piece(&mut self, piece: Piece, out: &mut Frames) {
        match piece {
            Piece::Part {
                choice,
                part: Part::Content(text),
                tokens,
            } => {
                let logprobs = self.logprobs(choice, &tokens);
                out.json(&self.completion(vec![CompletionChoice {
                    text,
                    index: choice,
                    logprobs,
                    finish_reason: None,
                }]));
            }
            Piece::Part { .. } => {}
            Piece::End(end) => {
                let last = self.last(&end);
                out.json(&last);
            }
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
