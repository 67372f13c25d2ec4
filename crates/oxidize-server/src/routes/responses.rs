//! OpenAI's `POST /v1/responses`, stateless: each request contains its whole conversation.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::chat::{Content, ContentPart, Conversation, FunctionCall, Message, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::TokenLimit;
use crate::answer::FinishReason;
use crate::auth::Client;
use crate::body::Body;
use crate::constraint::{ConstraintFields, ResponseFormat};
use crate::error::{ApiError, ApiResult, OpenAiErrors};
use crate::fields::{OtherField, RequestBody, other};
use crate::generate::{Chat, Delta, End, Generation, GenerationRequest, Update};
use crate::models::Loaded;
use crate::reasoning::ReasoningFields;
use crate::sampling::SamplingFields;
use crate::state::{AppState, unix_time};
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};
use crate::tools::{ToolChoice, Tools};

/// Request of a response.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ResponseRequest {
    /// Name of the model. Defaults to the first model.
    pub model: Option<String>,
    /// Text of the user, or the items of a conversation.
    pub input: Input,
    /// System message before the conversation.
    pub instructions: Option<String>,
    /// Maximum number of tokens to generate.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub max_output_tokens: Option<i32>,
    /// Stream the answer as server-sent events.
    pub stream: Option<bool>,
    /// Tools that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or an object that names a function.
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    /// Allow several tool calls in one answer.
    pub parallel_tool_calls: Option<bool>,
    /// Format of the answer.
    pub text: Option<TextOptions>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub reasoning: ReasoningFields,
    /// Not supported: responses are not stored.
    pub previous_response_id: Option<String>,
    /// Returned unchanged in the response.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub constraint: ConstraintFields,
    #[serde(flatten)]
    #[allow(missing_docs, reason = "flattened: its fields are documented")]
    pub sampling: SamplingFields,
}

impl RequestBody for ResponseRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[
        other::SAMPLING,
        other::REASONING,
        other::VLLM,
        other::LLAMA_SERVER,
        other::RESPONSES,
    ];
}

/// Text of the user, or the items of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Input {
    /// Text of the user.
    Text(String),
    /// Messages, function calls and their outputs.
    #[schema(value_type = Vec<Object>)]
    Items(Vec<Value>),
}

/// Options for the text of an answer.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TextOptions {
    /// Format of the answer: `text`, `json_object` or `json_schema`.
    pub format: Option<ResponseFormat>,
}

/// Create a response
#[utoipa::path(
    post, path = "/v1/responses", tag = "OpenAI",
    request_body = ResponseRequest,
    responses(
        (status = 200, description = "The response; with `stream`, server-sent events with its parts", content(
            (Value = "application/json"), (StreamEvent = "text/event-stream"),
        )),
        OpenAiErrors,
    ),
)]
pub async fn create(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<ResponseRequest>,
) -> ApiResult<Response> {
    if request.previous_response_id.is_some() {
        return Err(ApiError::not_supported(
            "previous_response_id is not supported, as responses are not stored; send the conversation as input",
        ));
    }
    let streamed = request.stream.unwrap_or(false);
    let echoed = request.echoed();
    let request = request.into_generation()?;
    let generation = Generation::begin(&state, &client, request).await?;
    let mut writer = ResponseWriter {
        id: state.new_id(""),
        created: unix_time(),
        model: generation.model().clone(),
        echoed,
        output: Vec::new(),
        open: None,
        n_events: 0,
        end: None,
    };
    if streamed {
        return stream::respond(generation, Framing::Sse, writer).await;
    }
    let mut generation = generation;
    let mut frames = Frames::discard();
    while let Some(update) = futures_util::StreamExt::next(&mut generation).await {
        writer.update(update?, &mut frames);
    }
    let status = writer.status();
    Ok(Json(writer.response(status)).into_response())
}

impl ResponseRequest {
    /// Fields of the request that the response repeats.
    fn echoed(&self) -> Map<String, Value> {
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        let echoed = json!({
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "reasoning": { "effort": self.reasoning.effort(), "summary": null },
            "store": false,
            "temperature": self.sampling.temperature,
            "text": { "format": { "type": format.map_or("text", |format| &format.kind) } },
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": self.tools.clone().unwrap_or_default(),
            "top_p": self.sampling.top_p,
            "truncation": "disabled",
            "metadata": self.metadata.clone().unwrap_or_default(),
        });
        match echoed {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    fn into_generation(self) -> ApiResult<GenerationRequest> {
        let mut messages = Vec::new();
        messages.extend(self.instructions.map(|text| Message::new("system", text)));
        match self.input {
            Input::Text(text) => messages.push(Message::new("user", text)),
            Input::Items(items) => {
                for item in items {
                    add_item(item, &mut messages)?;
                }
            }
        }
        if messages.is_empty() {
            return Err(ApiError::bad_request("input must not be empty"));
        }
        // This API has no `function` object around the fields of a function.
        let tools = self.tools.unwrap_or_default().into_iter().map(|tool| {
            match tool.get("type").and_then(Value::as_str) {
                Some("function") if tool.get("function").is_none() => {
                    Ok(json!({ "type": "function", "function": tool }))
                }
                Some("function") => Ok(tool),
                _ => Err(ApiError::not_supported(
                    "only tools of type function are supported",
                )),
            }
        });
        let tools = tools.collect::<ApiResult<Vec<Value>>>()?;
        let choice = ToolChoice::parse(self.tool_choice.as_ref())?;
        let mut conversation = Conversation::from(messages);
        self.reasoning.apply(&mut conversation)?;
        let format = self.text.and_then(|text| text.format);
        let format = format.map(|format| format.grammar()).transpose()?.flatten();
        let grammar = match (format, self.constraint.grammar()?) {
            (Some(_), Some(_)) => {
                return Err(ApiError::bad_request(
                    "`text.format` and another constraint exclude each other: an answer has one form",
                ));
            }
            (format, constraint) => format.or(constraint),
        };
        let chat = Chat {
            conversation,
            hide_reasoning: self.reasoning.is_hidden(),
            tools: Tools::new(tools, choice, self.parallel_tool_calls.unwrap_or(true))?,
            stream_calls: self.stream.unwrap_or(false),
            ..Chat::default()
        };
        Ok(GenerationRequest {
            model: self.model,
            sampling: self.sampling,
            grammar,
            max_tokens: TokenLimit::new("max_output_tokens", self.max_output_tokens)?.or(None),
            ..GenerationRequest::new(chat)
        })
    }
}

/// Adds an item of a conversation to `messages`. Function calls in a row become one message.
fn add_item(item: Value, messages: &mut Vec<Message>) -> ApiResult<()> {
    let text = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
    let needed = |name: &str| {
        text(name)
            .ok_or_else(|| ApiError::bad_request(format!("an input item has no field {name:?}")))
    };
    match item
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or("message")
    {
        "message" => {
            let content = match item.get("content") {
                Some(Value::String(text)) => Content::Text(text.clone()),
                Some(Value::Array(parts)) => Content::Parts(parts.iter().map(part).collect()),
                _ => return Err(ApiError::bad_request("a message has no field \"content\"")),
            };
            messages.push(Message {
                role: needed("role")?,
                content: Some(content),
                ..Message::default()
            });
        }
        "function_call" => {
            let call = ToolCall {
                id: text("call_id"),
                kind: "function".into(),
                function: FunctionCall {
                    name: needed("name")?,
                    arguments: needed("arguments")?.into(),
                },
            };
            match messages.last_mut() {
                Some(last) if last.role == "assistant" => {
                    last.tool_calls.get_or_insert_default().push(call);
                }
                _ => messages.push(Message {
                    role: "assistant".into(),
                    tool_calls: Some(vec![call]),
                    ..Message::default()
                }),
            }
        }
        "function_call_output" => {
            let output = match item.get("output") {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => {
                    return Err(ApiError::bad_request(
                        "a function_call_output has no field \"output\"",
                    ));
                }
            };
            let mut message = Message::new("tool", output);
            message.tool_call_id = text("call_id");
            messages.push(message);
        }
        // Templates take no reasoning of earlier answers.
        "reasoning" => {}
        other => {
            let other: String = other.chars().take(32).collect();
            return Err(ApiError::not_supported(format!(
                "input items of type {other:?} are not supported"
            )));
        }
    }
    Ok(())
}

/// A part of a message's content. Texts have several types in this API, such as `input_text`.
fn part(value: &Value) -> ContentPart {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("text");
    let text = value
        .get("text")
        .or_else(|| value.get("refusal"))
        .and_then(Value::as_str);
    ContentPart {
        kind: if text.is_some() { "text" } else { kind }.to_owned(),
        text: text.map(str::to_owned),
        ..ContentPart::default()
    }
}

/// An output item that is still generated.
enum Open {
    Reasoning(String),
    Message(String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
}

struct ResponseWriter {
    id: String,
    created: u64,
    model: Arc<Loaded>,
    /// Fields of the request that the response repeats.
    echoed: Map<String, Value>,
    /// Completed items.
    output: Vec<Value>,
    open: Option<Open>,
    n_events: usize,
    end: Option<Box<End>>,
}

impl ResponseWriter {
    fn send(&mut self, kind: &str, mut value: Value, out: &mut Frames) {
        if let Some(map) = value.as_object_mut() {
            map.insert("type".into(), kind.into());
            map.insert("sequence_number".into(), self.n_events.into());
        }
        self.n_events += 1;
        out.event(Some(kind), &value);
    }

    fn status(&self) -> &'static str {
        match &self.end {
            None => "in_progress",
            Some(end) if end.reason == FinishReason::Length => "incomplete",
            Some(_) => "completed",
        }
    }

    fn response(&self, status: &str) -> Value {
        let mut map = self.echoed.clone();
        let usage = self.end.as_ref().map(|end| {
            let finished = &end.completion;
            json!({
                "input_tokens": finished.prompt_tokens,
                "input_tokens_details": { "cached_tokens": finished.cached_tokens },
                "output_tokens": finished.generated_tokens,
                "output_tokens_details": { "reasoning_tokens": end.completion.reasoning_tokens },
                "total_tokens": finished.prompt_tokens + finished.generated_tokens,
            })
        });
        let incomplete = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        for (name, value) in [
            ("id", json!(format!("resp_{}", self.id))),
            ("object", json!("response")),
            ("created_at", json!(self.created)),
            ("status", json!(status)),
            ("error", Value::Null),
            ("incomplete_details", json!(incomplete)),
            ("model", json!(self.model.name)),
            ("output", json!(self.output)),
            ("usage", json!(usage)),
        ] {
            map.insert(name.into(), value);
        }
        Value::Object(map)
    }

    fn item_id(&self) -> String {
        let kind = match &self.open {
            Some(Open::Reasoning(_)) => "rs",
            Some(Open::Call { .. }) => "fc",
            _ => "msg",
        };
        format!("{kind}_{}_{}", self.id, self.output.len())
    }

    /// The open item with what was generated so far.
    fn item(&self, status: &str) -> Value {
        let id = self.item_id();
        match &self.open {
            Some(Open::Reasoning(text)) => json!({
                "type": "reasoning", "id": id, "summary": [], "status": status,
                "content": [{ "type": "reasoning_text", "text": text }],
            }),
            Some(Open::Call {
                id: call_id,
                name,
                arguments,
            }) => json!({
                "type": "function_call", "id": id, "call_id": call_id, "status": status,
                "name": name, "arguments": arguments,
            }),
            Some(Open::Message(text)) => json!({
                "type": "message", "id": id, "status": status, "role": "assistant",
                "content": [text_part(text)],
            }),
            None => Value::Null,
        }
    }

    fn open(&mut self, open: Open, out: &mut Frames) {
        self.close(out);
        let is_message = matches!(open, Open::Message(_));
        self.open = Some(open);
        let mut item = self.item("in_progress");
        if let Some(content) = item.get_mut("content") {
            *content = json!([]);
        }
        let index = self.output.len();
        self.send(
            "response.output_item.added",
            json!({ "output_index": index, "item": item }),
            out,
        );
        if is_message {
            let part = json!({
                "item_id": self.item_id(), "output_index": index, "content_index": 0, "part": text_part(""),
            });
            self.send("response.content_part.added", part, out);
        }
    }

    fn close(&mut self, out: &mut Frames) {
        let (index, id) = (self.output.len(), self.item_id());
        let place = json!({ "item_id": id, "output_index": index });
        let with = |extra: Value| {
            let mut place = place.clone();
            if let (Some(map), Value::Object(extra)) = (place.as_object_mut(), extra) {
                map.extend(extra);
            }
            place
        };
        match &self.open {
            None => return,
            Some(Open::Reasoning(text)) => {
                let done = with(json!({ "content_index": 0, "text": text }));
                self.send("response.reasoning_text.done", done, out);
            }
            Some(Open::Message(text)) => {
                let done = with(json!({ "content_index": 0, "text": text, "logprobs": [] }));
                let part = with(json!({ "content_index": 0, "part": text_part(text) }));
                self.send("response.output_text.done", done, out);
                self.send("response.content_part.done", part, out);
            }
            Some(Open::Call {
                name, arguments, ..
            }) => {
                let done = with(json!({ "name": name, "arguments": arguments }));
                self.send("response.function_call_arguments.done", done, out);
            }
        }
        let item = self.item("completed");
        self.send(
            "response.output_item.done",
            json!({ "output_index": index, "item": item }),
            out,
        );
        self.output.push(item);
        self.open = None;
    }

    fn delta(&mut self, kind: &str, extra: Value, out: &mut Frames) {
        let mut value = json!({ "item_id": self.item_id(), "output_index": self.output.len() });
        if let (Some(map), Value::Object(extra)) = (value.as_object_mut(), extra) {
            map.extend(extra);
        }
        self.send(kind, value, out);
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

impl Writer for ResponseWriter {
    fn start(&mut self, out: &mut Frames) {
        let response = json!({ "response": self.response("in_progress") });
        self.send("response.created", response.clone(), out);
        self.send("response.in_progress", response, out);
    }

    fn update(&mut self, update: Update, out: &mut Frames) {
        match update {
            Update::Progress { .. } | Update::Prompt { .. } => {}
            Update::Delta {
                delta: Delta::Reasoning(text),
                ..
            } => {
                if !matches!(self.open, Some(Open::Reasoning(_))) {
                    self.open(Open::Reasoning(String::new()), out);
                }
                if let Some(Open::Reasoning(all)) = &mut self.open {
                    all.push_str(&text);
                }
                self.delta(
                    "response.reasoning_text.delta",
                    json!({ "content_index": 0, "delta": text }),
                    out,
                );
            }
            Update::Delta {
                delta: Delta::Content(text),
                ..
            } => {
                if !matches!(self.open, Some(Open::Message(_))) {
                    self.open(Open::Message(String::new()), out);
                }
                if let Some(Open::Message(all)) = &mut self.open {
                    all.push_str(&text);
                }
                let delta = json!({ "content_index": 0, "delta": text, "logprobs": [] });
                self.delta("response.output_text.delta", delta, out);
            }
            Update::Delta {
                delta: Delta::CallStart { id, name, .. },
                ..
            } => {
                let call = Open::Call {
                    id,
                    name,
                    arguments: String::new(),
                };
                self.open(call, out);
            }
            Update::Delta {
                delta: Delta::CallArguments { text, .. },
                ..
            } => {
                if let Some(Open::Call { arguments, .. }) = &mut self.open {
                    arguments.push_str(&text);
                }
                self.delta(
                    "response.function_call_arguments.delta",
                    json!({ "delta": text }),
                    out,
                );
            }
            Update::End(end) => {
                self.close(out);
                self.end = Some(end);
            }
        }
    }

    fn end(&mut self, out: &mut Frames) {
        let status = self.status();
        let kind = format!("response.{status}");
        self.send(&kind, json!({ "response": self.response(status) }), out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Frames) {
        let detail = json!({ "code": error.code, "message": error.message, "param": null });
        self.send("error", detail, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Input;

    fn chat(request: ResponseRequest) -> Chat {
        match request.into_generation().unwrap().input {
            Input::Chat(chat) => *chat,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn items_become_messages() {
        let request: ResponseRequest = serde_json::from_value(json!({
            "instructions": "Be kind.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
                {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            ],
            "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
        }))
        .unwrap();
        let chat = chat(request);
        let conversation = &chat.conversation;
        let roles: Vec<&str> = conversation
            .messages
            .iter()
            .map(|m| m.role.as_str())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(
            conversation.messages[2].tool_calls.as_ref().unwrap().len(),
            2
        );
        assert_eq!(conversation.messages[1].text(), "weather?");
        assert!(chat.tools.offered().is_some());
    }

    #[test]
    fn unsupported_input_is_refused() {
        for wrong in [
            json!({"input": [{"type": "image_generation_call"}]}),
            json!({"input": "x", "tools": [{"type": "web_search"}]}),
            json!({"input": []}),
        ] {
            let request: ResponseRequest = serde_json::from_value(wrong).unwrap();
            assert!(request.into_generation().is_err());
        }
    }
}
