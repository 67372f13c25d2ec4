//! Ollama's `/api/generate` and `/api/chat`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::chat::{Conversation, FunctionCall, Message, ToolCall};
use oxidize_core::grammar::Grammar;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::rfc3339;
use crate::auth::Client;
use crate::body::Body;
use crate::error::{ApiError, ApiResult, OllamaErrors};
use crate::fields::{OtherField, RequestBody, other};
use crate::generate::{self, Call, Chat, Delta, End, Generation, GenerationRequest, Input, Update};
use crate::keep_alive::KeepAlive;
use crate::models::Loaded;
use crate::prompt::{Infill, Prompt};
use crate::reasoning::apply_think;
use crate::sampling::SamplingFields;
use crate::state::{AppState, unix_time};
use crate::stream::{self, Frames, Framing, Writer};
use crate::tools::{ToolChoice, Tools};

/// Request of a completion.
#[derive(Debug, Deserialize, ToSchema)]
pub struct GenerateRequest {
    /// Name of the model.
    pub model: String,
    /// Prompt. Without one, the request only loads the model.
    pub prompt: Option<String>,
    /// Text after the completion, for models trained to fill gaps.
    pub suffix: Option<String>,
    /// System message.
    pub system: Option<String>,
    /// Use the prompt as it is, without the chat template.
    pub raw: Option<bool>,
    /// Stream the answer as lines of JSON. On by default.
    pub stream: Option<bool>,
    /// Format of the answer: `json`, or a JSON schema.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// Sampling parameters and limits.
    pub options: Option<Options>,
    /// Turns reasoning on or off, for models that support it; or a reasoning effort.
    #[schema(value_type = Option<bool>)]
    pub think: Option<Value>,
    /// Images: not supported.
    pub images: Option<Vec<String>>,
    /// Time that the model stays loaded without requests: seconds, or a text such as `5m`; 0 unloads it, a
    /// negative one keeps it.
    pub keep_alive: Option<KeepAlive>,
}

impl RequestBody for GenerateRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[other::OLLAMA];
}

/// Sampling parameters and limits.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct Options {
    /// Maximum number of tokens to generate; -1 and -2 are no limit.
    #[schema(minimum = -2, maximum = 2147483647)]
    pub num_predict: Option<i32>,
    /// Context size that the request expects; at most that of the server.
    #[schema(maximum = 2147483647)]
    pub num_ctx: Option<u32>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub sampling: SamplingFields,
}

/// Request of a chat completion.
#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaChatRequest {
    /// Name of the model.
    pub model: String,
    /// Messages of the conversation, oldest first. Without any, the request only loads the model.
    pub messages: Option<Vec<OllamaMessage>>,
    /// Tools that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// Stream the answer as lines of JSON. On by default.
    pub stream: Option<bool>,
    /// Format of the answer: `json`, or a JSON schema.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// Sampling parameters and limits.
    pub options: Option<Options>,
    /// Turns reasoning on or off, for models that support it; or a reasoning effort.
    #[schema(value_type = Option<bool>)]
    pub think: Option<Value>,
    /// Time that the model stays loaded without requests: seconds, or a text such as `5m`; 0 unloads it, a
    /// negative one keeps it.
    pub keep_alive: Option<KeepAlive>,
}

impl RequestBody for OllamaChatRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[other::OLLAMA];
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct OllamaMessage {
    /// Role of the author: `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message.
    pub content: Option<String>,
    /// Images: not supported.
    pub images: Option<Vec<String>>,
    /// Tool calls of the assistant.
    pub tool_calls: Option<Vec<OllamaCall>>,
    /// Name of the tool that returned this result.
    pub tool_name: Option<String>,
    /// Reasoning before the answer.
    pub thinking: Option<String>,
}

/// A tool call.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct OllamaCall {
    /// Function and arguments.
    pub function: OllamaFunction,
}

/// A function and its arguments.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct OllamaFunction {
    /// Name of the function.
    pub name: String,
    /// Arguments of the call.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub arguments: Value,
}

/// A part of an answer. The last one has token counts and times in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Line {
    /// Name of the model.
    pub model: String,
    /// Time of creation, in RFC 3339.
    pub created_at: String,
    /// Generated text, for `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Reasoning, for `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Message of the assistant, for `/api/chat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<LineMessage>,
    /// True for the last part.
    pub done: bool,
    /// Reason for the end: `stop`, `length`, `load` or `unload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    /// Total time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<u64>,
    /// Time of loading the model and waiting for a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_duration: Option<u64>,
    /// Tokens in the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_count: Option<usize>,
    /// Prompt processing time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_duration: Option<u64>,
    /// Tokens generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_count: Option<usize>,
    /// Generation time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_duration: Option<u64>,
}

/// A part of the assistant's message.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct LineMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// Generated text.
    pub content: String,
    /// Reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<OllamaCall>,
}

/// Generate a completion
#[utoipa::path(
    post, path = "/api/generate", tag = "Ollama",
    request_body = GenerateRequest,
    responses(
        (status = 200, description = "The answer, as lines of JSON unless `stream` is false", content(
            (Line = "application/json"), (String = "application/x-ndjson"),
        )),
        OllamaErrors,
    ),
)]
pub async fn generate(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<GenerateRequest>,
) -> ApiResult<Response> {
    refuse_images(request.images.as_deref())?;
    let prompt = request.prompt.clone().unwrap_or_default();
    let keep_alive = KeepAlive::checked(request.keep_alive)?;
    let num_ctx = request.options.as_ref().and_then(|options| options.num_ctx);
    check_context(&state, &request.model, num_ctx).await?;
    if prompt.is_empty() && request.suffix.is_none() {
        return load(&state, &request.model, keep_alive, false).await;
    }
    let options = request.options.unwrap_or_default();
    let input = match request.suffix {
        Some(suffix) => Input::from(Infill {
            prefix: prompt,
            suffix,
            ..Infill::default()
        }),
        None if request.raw.unwrap_or(false) => Prompt::from(prompt).into(),
        None => {
            let system = request.system.map(|text| Message::new("system", text));
            let mut conversation = Conversation::from_iter(system).user(prompt);
            apply_think(&mut conversation, request.think.as_ref())?;
            let chat = Chat {
                conversation,
                ..Chat::default()
            };
            chat.into()
        }
    };
    let generation = GenerationRequest {
        model: Some(request.model),
        grammar: grammar(request.format.as_ref())?,
        max_tokens: options.max_tokens()?,
        sampling: options.sampling,
        ..GenerationRequest::new(input)
    };
    let streamed = request.stream.unwrap_or(true);
    let generation = Generation::begin(&state, &client, generation).await?;
    generation.model().set_keep_alive(keep_alive);
    answer(generation, false, streamed).await
}

/// Generate a chat completion
#[utoipa::path(
    post, path = "/api/chat", tag = "Ollama",
    request_body = OllamaChatRequest,
    responses(
        (status = 200, description = "The answer, as lines of JSON unless `stream` is false", content(
            (Line = "application/json"), (String = "application/x-ndjson"),
        )),
        OllamaErrors,
    ),
)]
pub async fn chat(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<OllamaChatRequest>,
) -> ApiResult<Response> {
    let messages = request.messages.unwrap_or_default();
    let keep_alive = KeepAlive::checked(request.keep_alive)?;
    let num_ctx = request.options.as_ref().and_then(|options| options.num_ctx);
    check_context(&state, &request.model, num_ctx).await?;
    if messages.is_empty() {
        return load(&state, &request.model, keep_alive, true).await;
    }
    let options = request.options.unwrap_or_default();
    let messages = messages.into_iter().map(OllamaMessage::message);
    let mut conversation = Conversation::from(messages.collect::<ApiResult<Vec<_>>>()?);
    apply_think(&mut conversation, request.think.as_ref())?;
    let chat = Chat {
        conversation,
        tools: Tools::new(request.tools.unwrap_or_default(), ToolChoice::Auto, true)?,
        ..Chat::default()
    };
    let generation = GenerationRequest {
        model: Some(request.model),
        grammar: grammar(request.format.as_ref())?,
        max_tokens: options.max_tokens()?,
        sampling: options.sampling,
        ..GenerationRequest::new(chat)
    };
    let generation = Generation::begin(&state, &client, generation).await?;
    generation.model().set_keep_alive(keep_alive);
    answer(generation, true, request.stream.unwrap_or(true)).await
}

impl Options {
    fn max_tokens(&self) -> ApiResult<Option<usize>> {
        match self.num_predict {
            None | Some(-2 | -1) => Ok(None),
            Some(n) => {
                let wrong =
                    |_| ApiError::bad_request(format!("num_predict is {n}; it must be -2 or more"));
                usize::try_from(n).map(Some).map_err(wrong)
            }
        }
    }
}

impl OllamaMessage {
    fn message(self) -> ApiResult<Message> {
        refuse_images(self.images.as_deref())?;
        let calls = self.tool_calls.filter(|calls| !calls.is_empty());
        let calls = calls.map(|calls| {
            let call = |call: OllamaCall| ToolCall {
                id: None,
                kind: "function".into(),
                function: FunctionCall {
                    name: call.function.name,
                    arguments: call.function.arguments,
                },
            };
            calls.into_iter().map(call).collect()
        });
        let mut message = Message::new(self.role, self.content.unwrap_or_default());
        message.tool_calls = calls;
        message.name = self.tool_name;
        message.reasoning_content = self.thinking;
        Ok(message)
    }
}

/// Refuses images, which models of text cannot see.
fn refuse_images(images: Option<&[String]>) -> ApiResult<()> {
    match images {
        None | Some([]) => Ok(()),
        Some(_) => Err(ApiError::not_supported("`images` are not supported")),
    }
}

/// Refuses a request that expects a larger context than the model is served with.
pub(super) async fn check_context(
    state: &AppState,
    name: &str,
    num_ctx: Option<u32>,
) -> ApiResult<()> {
    let Some(num_ctx) = num_ctx else {
        return Ok(());
    };
    let model = state.models().get(Some(name)).await?;
    let n_ctx = match model.n_ctx() {
        // A model of embeddings has no engine.
        0 => model.model().hparams().n_ctx_train,
        n_ctx => n_ctx,
    };
    if num_ctx as usize > n_ctx {
        return Err(ApiError::not_supported(format!(
            "`options.num_ctx` is {num_ctx}, but the server runs {name} with a context of {n_ctx} tokens; start it with -c {num_ctx}"
        )));
    }
    Ok(())
}

fn grammar(format: Option<&Value>) -> ApiResult<Option<Grammar>> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) if word.is_empty() => Ok(None),
        Some(Value::String(word)) if word == "json" => Ok(Some(Grammar::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema.clone()))),
        Some(_) => Err(ApiError::bad_request(
            "format must be \"json\" or a JSON schema",
        )),
    }
}

/// Loads a model without generating anything, or unloads it.
async fn load(
    state: &AppState,
    name: &str,
    keep_alive: Option<KeepAlive>,
    chat: bool,
) -> ApiResult<Response> {
    let start = Instant::now();
    let unload = keep_alive.as_ref().is_some_and(KeepAlive::is_zero);
    if !unload {
        state.models().get(Some(name)).await?;
    }
    state.models().keep(name, keep_alive).await?;
    let line = Line {
        model: state.models().entry(Some(name))?.spec.name.clone(),
        created_at: rfc3339(unix_time()),
        response: (!chat).then(String::new),
        message: chat.then(|| LineMessage {
            role: "assistant",
            ..LineMessage::default()
        }),
        done: true,
        done_reason: Some(if unload { "unload" } else { "load" }),
        load_duration: Some(start.elapsed().as_nanos() as u64),
        ..Line::default()
    };
    Ok(Json(line).into_response())
}

async fn answer(generation: Generation, chat: bool, streamed: bool) -> ApiResult<Response> {
    let mut writer = LineWriter {
        model: generation.model().clone(),
        chat,
        calls: Vec::new(),
    };
    if streamed {
        return stream::respond(generation, Framing::Lines, writer).await;
    }
    let answer = generate::collect_one(generation).await?;
    writer.calls = answer.calls;
    let mut line = writer.last(&answer.end);
    let reasoning = Some(answer.reasoning).filter(|text| !text.is_empty());
    match &mut line.message {
        Some(message) => {
            message.content = answer.content;
            message.thinking = reasoning;
        }
        None => {
            line.response = Some(answer.content);
            line.thinking = reasoning;
        }
    }
    Ok(Json(line).into_response())
}

struct LineWriter {
    model: Arc<Loaded>,
    chat: bool,
    /// Calls are sent whole, in one line.
    calls: Vec<Call>,
}

impl LineWriter {
    fn line(&self) -> Line {
        let message = LineMessage {
            role: "assistant",
            ..LineMessage::default()
        };
        Line {
            model: self.model.name.clone(),
            created_at: rfc3339(unix_time()),
            response: (!self.chat).then(String::new),
            message: self.chat.then_some(message),
            ..Line::default()
        }
    }

    fn last(&mut self, end: &End) -> Line {
        let mut line = self.line();
        let timings = &end.completion.timings;
        let ns = |duration: std::time::Duration| Some(duration.as_nanos() as u64);
        if let Some(message) = &mut line.message {
            message.tool_calls = self.calls.drain(..).filter_map(OllamaCall::whole).collect();
        }
        Line {
            done: true,
            done_reason: Some(end.reason.ollama()),
            total_duration: ns(timings.queued + timings.prompt + timings.generation),
            load_duration: ns(timings.queued),
            prompt_eval_count: Some(end.completion.prompt_tokens),
            prompt_eval_duration: ns(timings.prompt),
            eval_count: Some(end.completion.generated_tokens),
            eval_duration: ns(timings.generation),
            ..line
        }
    }
}

impl OllamaCall {
    /// A call; `None` if its arguments were cut off.
    fn whole(call: Call) -> Option<OllamaCall> {
        let arguments = serde_json::from_str(&call.arguments).ok()?;
        Some(OllamaCall {
            function: OllamaFunction {
                name: call.name,
                arguments,
            },
        })
    }
}

impl Writer for LineWriter {
    fn update(&mut self, update: Update, out: &mut Frames) {
        let mut line = self.line();
        match update {
            Update::Progress { .. } | Update::Prompt { .. } => return,
            Update::Delta {
                delta: Delta::Content(text),
                ..
            } => match &mut line.message {
                Some(message) => message.content = text,
                None => line.response = Some(text),
            },
            Update::Delta {
                delta: Delta::Reasoning(text),
                ..
            } => match &mut line.message {
                Some(message) => message.thinking = Some(text),
                None => line.thinking = Some(text),
            },
            Update::Delta {
                delta: Delta::CallStart { id, name, .. },
                ..
            } => {
                self.calls.push(Call {
                    id,
                    name,
                    arguments: String::new(),
                });
                return;
            }
            Update::Delta {
                delta: Delta::CallArguments { text, .. },
                ..
            } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
                return;
            }
            Update::End(end) => {
                if self.chat && !self.calls.is_empty() {
                    if let Some(message) = &mut line.message {
                        message.tool_calls =
                            self.calls.drain(..).filter_map(OllamaCall::whole).collect();
                    }
                    out.json(&line);
                }
                line = self.last(&end);
            }
        }
        out.json(&line);
    }

    fn end(&mut self, _: &mut Frames) {}

    fn error(&mut self, error: &ApiError, out: &mut Frames) {
        out.json(&json!({ "error": error.message }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_become_grammars() {
        assert_eq!(grammar(None).unwrap(), None);
        assert_eq!(
            grammar(Some(&json!("json"))).unwrap(),
            Some(Grammar::JsonObject)
        );
        assert!(matches!(
            grammar(Some(&json!({}))).unwrap(),
            Some(Grammar::JsonSchema(_))
        ));
        assert!(grammar(Some(&json!("xml"))).is_err());
    }
}
