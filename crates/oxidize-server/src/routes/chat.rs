//! OpenAI's `POST /v1/chat/completions`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::chat::{Conversation, Message};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa::ToSchema;

use super::{bounded, token_count};
use crate::answer::{FinishReason, Timings, TokenLogprob, Usage};
use crate::auth::Client;
use crate::body::Body;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::generate::{self, Chat, Completion, Delta, Generation, GenerationRequest, Update};
use crate::models::Loaded;
use crate::sampling::{ResponseFormat, SamplingFields, one_grammar};
use crate::state::{AppState, unix_time};
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};
use crate::tools::{ToolChoice, Tools};

/// Request of a chat completion.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Messages of the conversation, oldest first. A last message of the assistant is continued.
    #[schema(value_type = Vec<MessageSchema>, min_items = 1)]
    pub messages: Vec<Message>,
    /// Stream the answer as server-sent events.
    pub stream: Option<bool>,
    /// Options of a streamed response.
    pub stream_options: Option<StreamOptions>,
    /// Maximum number of tokens to generate.
    #[schema(maximum = 2147483647)]
    pub max_tokens: Option<u32>,
    /// Maximum number of tokens to generate; takes precedence over `max_tokens`.
    #[schema(maximum = 2147483647)]
    pub max_completion_tokens: Option<u32>,
    /// Number of answers.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<u32>,
    /// Return the log probability of each token.
    pub logprobs: Option<bool>,
    /// Number of most likely tokens to return at each position; needs `logprobs`.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// Format of the answer.
    pub response_format: Option<ResponseFormat>,
    /// GBNF grammar that constrains the answer.
    pub grammar: Option<String>,
    /// JSON schema that constrains the answer.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Value>,
    /// Tools that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or an object that names a function.
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    /// Allow several tool calls in one answer.
    pub parallel_tool_calls: Option<bool>,
    /// Variables for the chat template, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Reasoning effort, passed to the chat template: `low`, `medium`, `high`.
    pub reasoning_effort: Option<String>,
    /// `none` leaves reasoning in the content instead of `reasoning_content`.
    pub reasoning_format: Option<String>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub sampling: SamplingFields,
}

/// A message of a conversation. Other fields are passed to the chat template.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub struct MessageSchema {
    /// Role of the author: `system`, `developer`, `user`, `assistant` or `tool`.
    role: String,
    /// Text, or a list of parts of type `text`.
    #[schema(value_type = Option<String>)]
    content: Option<String>,
}

/// Options of a streamed response.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Send a last event with the token counts.
    #[serde(default)]
    pub include_usage: Option<bool>,
}

/// A chat completion.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Identifier of the completion.
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// Unix time of creation, in seconds.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// Name and version of the server.
    pub system_fingerprint: &'static str,
    /// Answers.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
    /// Timings of the first answer.
    pub timings: Option<Timings>,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Index of the answer.
    pub index: usize,
    /// Message of the assistant.
    pub message: ResponseMessage,
    /// Log probabilities, if requested.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
}

/// Message of the assistant.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResponseMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// Text of the answer; null if the answer consists of tool calls.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// Reasoning before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallOut>,
}

/// A tool call.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ToolCallOut {
    /// Identifier of the call.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Function and arguments.
    pub function: FunctionOut,
}

/// A function and its arguments.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FunctionOut {
    /// Name of the function.
    pub name: String,
    /// Arguments as JSON text.
    pub arguments: String,
}

/// Log probabilities of an answer's tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry per token.
    pub content: Vec<TokenLogprob>,
    /// Always null.
    pub refusal: Option<String>,
}

impl From<Vec<TokenLogprob>> for ChatLogprobs {
    fn from(content: Vec<TokenLogprob>) -> ChatLogprobs {
        ChatLogprobs {
            content,
            refusal: None,
        }
    }
}

pub(crate) const FINGERPRINT: &str = concat!("oxidize-", env!("CARGO_PKG_VERSION"));

/// Create a chat completion
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "OpenAI",
    request_body = ChatRequest,
    responses(
        (status = 200, description = "The completion; with `stream`, server-sent events with its parts", content(
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
    let request = request.into_generation()?;
    let (n, logprobs) = (request.n, request.n_probs.is_some());
    let generation = Generation::begin(&state, &client, request).await?;
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
        .map(|answer| Timings::of(&answer.end.completion));
    let choices = answers
        .into_iter()
        .map(|answer| ChatChoice::new(answer, logprobs));
    let completion = ChatCompletion {
        id,
        object: "chat.completion",
        created: unix_time(),
        model: model.name.clone(),
        system_fingerprint: FINGERPRINT,
        choices: choices.collect(),
        usage,
        timings,
    };
    Ok(Json(completion).into_response())
}

impl ChatRequest {
    /// Checks the request and converts it to the form that all APIs share.
    pub fn into_generation(self) -> ApiResult<GenerationRequest> {
        if self.messages.is_empty() {
            return Err(ApiError::bad_request("messages must not be empty"));
        }
        let n_probs = match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, top) => Some(bounded("top_logprobs", top.unwrap_or(0), 0, 20)?),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                return Err(ApiError::bad_request(
                    "top_logprobs needs logprobs to be true",
                ));
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
        let chat = Chat {
            conversation: Conversation {
                messages: self.messages,
                template_args,
                ..Conversation::default()
            },
            tools: Tools::new(
                self.tools.unwrap_or_default(),
                choice,
                self.parallel_tool_calls.unwrap_or(true),
            )?,
            inline_reasoning: self.reasoning_format.as_deref() == Some("none"),
            stream_calls: self.stream.unwrap_or(false),
        };
        Ok(GenerationRequest {
            model: self.model,
            input: chat.into(),
            n: bounded("n", self.n.unwrap_or(1), 1, generate::MAX_ANSWERS as u32)? as usize,
            sampling: self.sampling,
            n_probs,
            grammar: one_grammar(
                self.response_format.as_ref(),
                self.grammar.as_deref(),
                self.json_schema.as_ref(),
            )?,
            max_tokens: token_count("max_tokens", limit)?,
        })
    }
}

impl ChatChoice {
    fn new(answer: Completion, logprobs: bool) -> ChatChoice {
        let calls = answer.calls.into_iter().map(|call| ToolCallOut {
            id: call.id,
            kind: "function",
            function: FunctionOut {
                name: call.name,
                arguments: call.arguments,
            },
        });
        let tool_calls: Vec<ToolCallOut> = calls.collect();
        let only_calls = answer.content.is_empty() && !tool_calls.is_empty();
        ChatChoice {
            index: answer.end.choice,
            message: ResponseMessage {
                role: "assistant",
                content: (!only_calls).then_some(answer.content),
                refusal: None,
                reasoning_content: Some(answer.reasoning).filter(|text| !text.is_empty()),
                tool_calls,
            },
            logprobs: logprobs.then(|| answer.logprobs.into()),
            finish_reason: answer.end.reason.openai(),
        }
    }
}

/// A chunk of a streamed chat completion.
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

    /// The chunk of one choice.
    fn choice(
        &self,
        index: usize,
        delta: ChunkDelta,
        logprobs: Vec<TokenLogprob>,
        reason: Option<&FinishReason>,
    ) -> ChatChunk<'_> {
        self.chunk(vec![ChunkChoice {
            index,
            delta,
            logprobs: (self.logprobs && !logprobs.is_empty()).then(|| logprobs.into()),
            finish_reason: reason.map(FinishReason::openai),
        }])
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
            out.json(&self.choice(index, delta, Vec::new(), None));
        }
    }

    fn update(&mut self, update: Update, out: &mut Frames) {
        match update {
            Update::Delta {
                choice,
                delta,
                logprobs,
            } => {
                let mut chunk = ChunkDelta::default();
                match delta {
                    Delta::Reasoning(text) => chunk.reasoning_content = Some(text),
                    Delta::Content(text) => chunk.content = Some(text),
                    Delta::CallStart { index, id, name } => {
                        chunk.tool_calls = Some([CallDelta {
                            index,
                            id: Some(id),
                            kind: Some("function"),
                            function: FunctionDelta {
                                name: Some(name),
                                arguments: String::new(),
                            },
                        }]);
                    }
                    Delta::CallArguments { index, text } => {
                        chunk.tool_calls = Some([CallDelta {
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
                out.json(&self.choice(choice, chunk, logprobs, None));
            }
            Update::End(end) => {
                self.usage.add(&end, self.n);
                let delta = ChunkDelta::default();
                let mut chunk = self.choice(end.choice, delta, end.logprobs, Some(&end.reason));
                chunk.timings = Some(Timings::of(&end.completion));
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
