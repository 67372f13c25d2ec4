//! OpenAI's `POST /v1/chat/completions`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::chat::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use utoipa::ToSchema;

use super::conversation::conversation;
use super::{TokenLimit, bounded, prompt_logprobs};
use crate::answer::{FinishReason, ProgressOut, PromptLogprob, Timings, TokenLogprob, Usage};
use crate::auth::Client;
use crate::body::Body;
use crate::constraint::ConstraintFields;
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::fields::{OtherField, RequestBody, other};
use crate::generate::{
    self, Chat, Completion, Delta, Generation, GenerationRequest, Search, SearchFields, Update,
};
use crate::models::Loaded;
use crate::reasoning::ReasoningFields;
use crate::sampling::SamplingFields;
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
    /// Maximum number of tokens to generate; -1 is no limit.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub max_tokens: Option<i32>,
    /// Maximum number of tokens to generate; takes precedence over `max_tokens`.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub max_completion_tokens: Option<i32>,
    /// Number of answers.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<u32>,
    /// Return the log probability of each token.
    pub logprobs: Option<bool>,
    /// Number of most likely tokens to return at each position; needs `logprobs`.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// Number of most likely tokens to return at each position of the prompt.
    #[schema(maximum = 20)]
    pub prompt_logprobs: Option<u32>,
    /// Report the progress of the prompt in the stream, as `prompt_progress`.
    pub return_progress: Option<bool>,
    /// Tools that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or an object that names a function.
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    /// Allow several tool calls in one answer.
    pub parallel_tool_calls: Option<bool>,
    /// Older form of `tools`: the functions that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub functions: Option<Vec<Value>>,
    /// Older form of `tool_choice`: `auto`, `none`, or an object that names a function.
    #[schema(value_type = Option<Object>)]
    pub function_call: Option<Value>,
    /// Continue the last message, which must be the assistant's. By default, a last message of the assistant is
    /// continued.
    pub continue_final_message: Option<bool>,
    /// Begin the turn of the assistant after the messages. On by default.
    pub add_generation_prompt: Option<bool>,
    /// Documents for templates of models that answer from documents.
    #[schema(value_type = Option<Vec<Object>>)]
    pub documents: Option<Vec<Value>>,
    /// Variables for the chat template, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// `none` leaves reasoning in the content instead of `reasoning_content`.
    pub reasoning_format: Option<String>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub reasoning: ReasoningFields,
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

impl RequestBody for ChatRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[
        other::SAMPLING,
        other::REASONING,
        other::OPENAI,
        other::VLLM,
        other::VLLM_CHAT,
        other::LLAMA_SERVER,
    ];
}

/// A message of a conversation. Other fields are passed to the chat template.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
pub struct MessageSchema {
    /// Role of the author: `system`, `developer`, `user`, `assistant` or `tool`.
    role: String,
    /// Text, or a list of parts of type `text`.
    content: Option<ContentSchema>,
    /// Other fields.
    #[serde(flatten)]
    #[schema(value_type = std::collections::HashMap<String, Object>)]
    other: Map<String, Value>,
}

/// Content of a message.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
pub enum ContentSchema {
    /// Text.
    Text(String),
    /// List of parts.
    #[schema(value_type = Vec<Object>)]
    Parts(Vec<Value>),
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
    /// Log probabilities of the prompt's tokens, if requested, in vLLM's format.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<Vec<Value>>,
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
    /// `stop`, `length`, `tool_calls` or, for a request with `functions`, `function_call`.
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
    /// The call, for a request with `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionOut>,
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
    let calls = CallFormat::of(&request);
    let request = request.into_generation()?;
    if streamed && request.search != Search::Off {
        return Err(not_streamed());
    }
    let (n, logprobs) = (request.n, request.n_probs.is_some());
    let with_prompt = request.prompt_logprobs.is_some();
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
            with_prompt,
            calls,
            with_usage,
            usage: Usage::default(),
        };
        return stream::respond(generation, Framing::Sse, writer).await;
    }
    let mut answers = generate::collect(generation).await?;
    let prompt = answers
        .first_mut()
        .map(|answer| std::mem::take(&mut answer.prompt));
    let mut usage = Usage::default();
    answers.iter().for_each(|answer| usage.add(&answer.end, n));
    let timings = answers
        .first()
        .map(|answer| Timings::of(&answer.end.completion));
    let choices = answers
        .into_iter()
        .map(|answer| ChatChoice::new(answer, logprobs, calls));
    let completion = ChatCompletion {
        id,
        object: "chat.completion",
        created: unix_time(),
        model: model.name.clone(),
        system_fingerprint: FINGERPRINT,
        choices: choices.collect(),
        usage,
        timings,
        prompt_logprobs: prompt.filter(|_| with_prompt).map(as_vllm),
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
        let n = bounded("n", self.n.unwrap_or(1), 1, generate::MAX_ANSWERS as u32)? as usize;
        let tools = match self.functions {
            Some(_) if self.tools.is_some() => {
                return Err(ApiError::bad_request(
                    "`functions` is the older form of `tools`; set only one of them",
                ));
            }
            Some(functions) => {
                let choice = ToolChoice::parse(self.function_call.as_ref())?;
                let tool = |function: Value| json!({ "type": "function", "function": function });
                // An answer has one `function_call`.
                Tools::new(functions.into_iter().map(tool).collect(), choice, false)?
            }
            None if self
                .function_call
                .is_some_and(|call| call != "none" && call != "auto") =>
            {
                return Err(ApiError::bad_request("`function_call` needs `functions`"));
            }
            None => Tools::new(
                self.tools.unwrap_or_default(),
                ToolChoice::parse(self.tool_choice.as_ref())?,
                self.parallel_tool_calls.unwrap_or(true),
            )?,
        };
        let mut conversation = conversation(
            self.messages,
            self.chat_template_kwargs.unwrap_or_default(),
            self.continue_final_message,
            self.add_generation_prompt,
            self.documents,
        )?;
        self.reasoning.apply(&mut conversation)?;
        let chat = Chat {
            conversation,
            hide_reasoning: self.reasoning.is_hidden(),
            tools,
            inline_reasoning: self.reasoning_format.as_deref() == Some("none"),
            stream_calls: self.stream.unwrap_or(false),
        };
        Ok(GenerationRequest {
            model: self.model,
            input: chat.into(),
            n,
            search: self.search.search(n)?,
            sampling: self.sampling,
            n_probs,
            grammar: self.constraint.grammar()?,
            max_tokens: TokenLimit::new("max_tokens", limit)?.or(None),
            prompt_logprobs: prompt_logprobs(self.prompt_logprobs)?,
            progress: self.return_progress.unwrap_or(false) && self.stream.unwrap_or(false),
        })
    }
}

/// The error of a request that cannot be streamed.
pub(super) fn not_streamed() -> ApiError {
    ApiError::not_supported(
        "use_beam_search and best_of are not supported with stream: no answer is final before all are",
    )
}

/// Log probabilities of a prompt in vLLM's format.
pub(super) fn as_vllm(prompt: Vec<PromptLogprob>) -> Vec<Value> {
    prompt.iter().map(PromptLogprob::vllm).collect()
}

/// Form of the calls in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallFormat {
    /// `tool_calls`.
    Tools,
    /// `function_call`, for requests with `functions`.
    Function,
}

impl CallFormat {
    fn of(request: &ChatRequest) -> CallFormat {
        match request.functions {
            Some(_) => CallFormat::Function,
            None => CallFormat::Tools,
        }
    }

    fn reason(self, reason: &FinishReason) -> &'static str {
        match (self, reason) {
            (CallFormat::Function, FinishReason::ToolCalls) => "function_call",
            (_, reason) => reason.openai(),
        }
    }
}

impl ChatChoice {
    fn new(answer: Completion, logprobs: bool, format: CallFormat) -> ChatChoice {
        let calls = answer.calls.into_iter().map(|call| ToolCallOut {
            id: call.id,
            kind: "function",
            function: FunctionOut {
                name: call.name,
                arguments: call.arguments,
            },
        });
        let mut tool_calls: Vec<ToolCallOut> = calls.collect();
        let only_calls = answer.content.is_empty() && !tool_calls.is_empty();
        let function_call = match format {
            CallFormat::Tools => None,
            CallFormat::Function => tool_calls.drain(..).next().map(|call| call.function),
        };
        ChatChoice {
            index: answer.end.choice,
            message: ResponseMessage {
                role: "assistant",
                content: (!only_calls).then_some(answer.content),
                refusal: None,
                reasoning_content: Some(answer.reasoning).filter(|text| !text.is_empty()),
                tool_calls,
                function_call,
            },
            logprobs: logprobs.then(|| answer.logprobs.into()),
            finish_reason: format.reason(&answer.end.reason),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<ProgressOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Value>>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<FunctionDelta>,
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
    with_prompt: bool,
    calls: CallFormat,
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
            prompt_progress: None,
            prompt_logprobs: None,
        }
    }

    /// The delta of a call.
    fn call(&self, delta: CallDelta) -> ChunkDelta {
        match self.calls {
            CallFormat::Tools => ChunkDelta {
                tool_calls: Some([delta]),
                ..ChunkDelta::default()
            },
            CallFormat::Function => ChunkDelta {
                function_call: Some(delta.function),
                ..ChunkDelta::default()
            },
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
            finish_reason: reason.map(|reason| self.calls.reason(reason)),
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
            Update::Progress { choice, progress } => {
                let mut chunk = self.choice(choice, ChunkDelta::default(), Vec::new(), None);
                chunk.prompt_progress = Some(progress.into());
                out.json(&chunk);
            }
            Update::Prompt { choice: 0, tokens } if self.with_prompt => {
                let mut chunk = self.choice(0, ChunkDelta::default(), Vec::new(), None);
                chunk.prompt_logprobs = Some(as_vllm(tokens));
                out.json(&chunk);
            }
            Update::Prompt { .. } => {}
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
                        chunk = self.call(CallDelta {
                            index,
                            id: Some(id),
                            kind: Some("function"),
                            function: FunctionDelta {
                                name: Some(name),
                                arguments: String::new(),
                            },
                        });
                    }
                    Delta::CallArguments { index, text } => {
                        chunk = self.call(CallDelta {
                            index,
                            id: None,
                            kind: None,
                            function: FunctionDelta {
                                name: None,
                                arguments: text,
                            },
                        });
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
