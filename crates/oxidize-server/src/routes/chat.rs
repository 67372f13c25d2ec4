//! `POST /v1/chat/completions`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::chat::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa::ToSchema;

use super::{bounded, token_count};
use crate::answer::{ChatLogprobs, Timings, Usage, chat_logprobs, finish_reason};
use crate::auth::Client;
use crate::body::Body;
use crate::conversation::Conversation;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::generate::{self, Generation, Part, Piece, Whole};
use crate::models::Loaded;
use crate::sampling::{ResponseFormat, SamplingFields, one_grammar};
use crate::state::{AppState, unix_time};
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};
use crate::tools::{ToolChoice, Tools};

/// A conversation to continue.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// Which model; the first one where it is not said.
    pub model: Option<String>,
    /// The turns, oldest first.
    #[schema(value_type = Vec<MessageSchema>, min_items = 1)]
    pub messages: Vec<Message>,
    /// Whether the answer comes as server-sent events.
    pub stream: Option<bool>,
    /// What a stream ends with.
    pub stream_options: Option<StreamOptions>,
    /// Most tokens of the answer.
    #[schema(maximum = 2147483647)]
    pub max_tokens: Option<u32>,
    /// The same, by its newer name.
    #[schema(maximum = 2147483647)]
    pub max_completion_tokens: Option<u32>,
    /// How many answers.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<u32>,
    /// Whether log probabilities come with the answer.
    pub logprobs: Option<bool>,
    /// How many of the most likely tokens come with each token.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// The form of the answer.
    pub response_format: Option<ResponseFormat>,
    /// A grammar in GBNF that the answer follows.
    pub grammar: Option<String>,
    /// A JSON schema that the answer fits.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Value>,
    /// What the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or a function's name in OpenAI's shape.
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    /// Whether the model may call several at once.
    pub parallel_tool_calls: Option<bool>,
    /// More variables for the chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// How much a model that thinks should think.
    pub reasoning_effort: Option<String>,
    /// `none` leaves thoughts in the content.
    pub reasoning_format: Option<String>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "its fields have their own")]
    pub sampling: SamplingFields,
}

/// A turn of a conversation, for the OpenAPI document; other fields reach the chat template.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub struct MessageSchema {
    /// Who speaks: `system`, `user`, `assistant`, `tool`.
    role: String,
    /// What is said: text, or parts of type `text`.
    #[schema(value_type = Option<String>)]
    content: Option<String>,
}

/// What a stream ends with.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Whether the last event says how many tokens there were.
    #[serde(default)]
    pub include_usage: Option<bool>,
}

/// The answer to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Names it.
    pub id: String,
    /// `chat.completion`
    pub object: &'static str,
    /// When, in seconds since 1970.
    pub created: u64,
    /// Who answered.
    pub model: String,
    /// The server and its version.
    pub system_fingerprint: &'static str,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// How many tokens.
    pub usage: Usage,
    /// How long the first answer took.
    pub timings: Option<Timings>,
}

/// One answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Its place.
    pub index: usize,
    /// What was said.
    pub message: AnswerMessage,
    /// Log probabilities, if asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
}

/// What the model said.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnswerMessage {
    /// `assistant`
    pub role: &'static str,
    /// The answer; null where there are only calls.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// Thoughts before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallOut>,
}

/// A call of a tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ToolCallOut {
    /// Names the call.
    pub id: String,
    /// `function`
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is called.
    pub function: FunctionOut,
}

/// A function and its arguments.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FunctionOut {
    /// Its name.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

pub(crate) const FINGERPRINT: &str = concat!("oxidize-", env!("CARGO_PKG_VERSION"));

/// Continue a conversation
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "OpenAI",
    request_body = ChatRequest,
    responses(
        (status = 200, description = "The answer; with `stream`, server-sent events of its pieces", content(
            (ChatCompletion = "application/json"), (StreamEvent = "text/event-stream"),
        )),
        OpenAiErrors,
    ),
)]
pub async fn create(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<ChatRequest>,
) -> ApiResult<Response> {
    let streamed = request.stream.unwrap_or(false);
    let with_usage = request
        .stream_options
        .and_then(|o| o.include_usage)
        .unwrap_or(false);
    let name = request.model.clone();
    let conversation = request.conversation()?;
    let (n, logprobs) = (conversation.n, conversation.n_probs.is_some());
    let prepare = move |model: &Loaded| conversation.job(model);
    let generation = Generation::begin(&state, &client, name.as_deref(), n, prepare).await?;
    let model = generation.model().clone();
    let id = state.new_id("chatcmpl-");
    if streamed {
        let writer = ChatWriter {
            id,
            created: unix_time(),
            model,
            n,
            logprobs,
            with_usage,
            usage: Usage::default(),
        };
        return stream::respond(generation, Framing::Sse, writer).await;
    }
    let answers = generate::collect(generation).await?;
    let mut usage = Usage::default();
    answers.iter().for_each(|answer| usage.add(&answer.end, n));
    let timings = answers
        .first()
        .map(|answer| Timings::of(&answer.end.finished));
    let choices = answers
        .into_iter()
        .map(|answer| choice(&model, answer, logprobs));
    let completion = ChatCompletion {
        id,
        object: "chat.completion",
        created: unix_time(),
        model: model.name.clone(),
        system_fingerprint: FINGERPRINT,
        choices: choices.collect::<ApiResult<_>>()?,
        usage,
        timings,
    };
    Ok(Json(completion).into_response())
}

impl ChatRequest {
    /// Checks the request and takes it apart.
    pub fn conversation(self) -> ApiResult<Conversation> {
        if self.messages.is_empty() {
            return Err(ApiError::bad_request("messages is empty"));
        }
        let n_probs = match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, top) => Some(bounded("top_logprobs", top.unwrap_or(0), 0, 20)?),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                return Err(ApiError::bad_request("top_logprobs needs logprobs: true"));
            }
        };
        let limit = self.max_completion_tokens.or(self.max_tokens);
        let choice = ToolChoice::parse(self.tool_choice.as_ref())?;
        let mut template_args = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = self.reasoning_effort {
            template_args
                .entry("reasoning_effort")
                .or_insert(effort.into());
        }
        Ok(Conversation {
            tools: Tools::new(
                self.tools.unwrap_or_default(),
                choice,
                self.parallel_tool_calls.unwrap_or(true),
            )?,
            grammar: one_grammar(
                self.response_format.as_ref(),
                self.grammar.as_deref(),
                self.json_schema.as_ref(),
            )?,
            messages: self.messages,
            template_args,
            inline_reasoning: self.reasoning_format.as_deref() == Some("none"),
            max_tokens: token_count("max_tokens", limit)?,
            stream_calls: self.stream.unwrap_or(false),
            n: bounded("n", self.n.unwrap_or(1), 1, generate::MAX_CHOICES as u32)? as usize,
            n_probs,
            sampling: self.sampling,
        })
    }
}

fn choice(model: &Loaded, answer: Whole, logprobs: bool) -> ApiResult<ChatChoice> {
    let tokenizer = model.tokenizer()?;
    let calls = answer.calls.into_iter().map(|call| ToolCallOut {
        id: call.id,
        kind: "function",
        function: FunctionOut {
            name: call.name,
            arguments: call.arguments,
        },
    });
    let tool_calls: Vec<ToolCallOut> = calls.collect();
    let silent = answer.content.is_empty() && !tool_calls.is_empty();
    Ok(ChatChoice {
        index: answer.end.choice,
        message: AnswerMessage {
            role: "assistant",
            content: (!silent).then_some(answer.content),
            refusal: None,
            reasoning_content: Some(answer.reasoning).filter(|text| !text.is_empty()),
            tool_calls,
        },
        logprobs: logprobs.then(|| chat_logprobs(tokenizer, &answer.tokens)),
        finish_reason: finish_reason(answer.end.reason),
    })
}

/// A piece of an answer, as OpenAI streams it.
#[derive(Serialize)]
struct ChatChunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: ChunkDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta; 1]>,
}

#[derive(Serialize)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

struct ChatWriter {
    id: String,
    created: u64,
    model: Arc<Loaded>,
    n: usize,
    logprobs: bool,
    with_usage: bool,
    usage: Usage,
}

impl ChatWriter {
    fn chunk(&self, choices: Vec<ChunkChoice>) -> ChatChunk<'_> {
        ChatChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model.name,
            system_fingerprint: FINGERPRINT,
            choices,
            usage: None,
            timings: None,
        }
    }

    fn logprobs(&self, tokens: &[generate::TokenInfo]) -> Option<ChatLogprobs> {
        let tokenizer = self
            .model
            .tokenizer()
            .ok()
            .filter(|_| self.logprobs && !tokens.is_empty())?;
        Some(chat_logprobs(tokenizer, tokens))
    }
}

impl Writer for ChatWriter {
    fn start(&mut self, out: &mut Frames) {
        for index in 0..self.n {
            let delta = ChunkDelta {
                role: Some("assistant"),
                content: Some(String::new()),
                ..ChunkDelta::default()
            };
            out.json(&self.chunk(vec![ChunkChoice {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
            }]));
        }
    }

    fn piece(&mut self, piece: Piece, out: &mut Frames) {
        match piece {
            Piece::Part {
                choice,
                part,
                tokens,
            } => {
                let mut delta = ChunkDelta::default();
                match part {
                    Part::Reasoning(text) => delta.reasoning_content = Some(text),
                    Part::Content(text) => delta.content = Some(text),
                    Part::CallStart { index, id, name } => {
                        delta.tool_calls = Some([CallDelta {
                            index,
                            id: Some(id),
                            kind: Some("function"),
                            function: FunctionDelta {
                                name: Some(name),
                                arguments: String::new(),
                            },
                        }]);
                    }
                    Part::CallArguments { index, text } => {
                        delta.tool_calls = Some([CallDelta {
                            index,
                            id: None,
                            kind: None,
                            function: FunctionDelta {
                                name: None,
                                arguments: text,
                            },
                        }]);
                    }
                }
                out.json(&self.chunk(vec![ChunkChoice {
                    index: choice,
                    delta,
                    logprobs: self.logprobs(&tokens),
                    finish_reason: None,
                }]));
            }
            Piece::End(end) => {
                self.usage.add(&end, self.n);
                let mut chunk = self.chunk(vec![ChunkChoice {
                    index: end.choice,
                    delta: ChunkDelta::default(),
                    logprobs: self.logprobs(&end.tokens),
                    finish_reason: Some(finish_reason(end.reason)),
                }]);
                chunk.timings = Some(Timings::of(&end.finished));
                out.json(&chunk);
            }
        }
    }

    fn end(&mut self, out: &mut Frames) {
        if self.with_usage {
            let mut chunk = self.chunk(Vec::new());
            chunk.usage = Some(self.usage);
            out.json(&chunk);
        }
        out.done();
    }
}
