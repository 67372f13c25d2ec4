//! Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::chat::{Conversation, FunctionCall, Message, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::TokenLimit;
use crate::auth::Client;
use crate::body::Body;
use crate::error::{AnthropicErrors, ApiError, ApiResult};
use crate::fields::{OtherField, RequestBody, other};
use crate::generate::{
    self, Chat, Completion, Delta, End, Generation, GenerationRequest, Update, blocking,
};
use crate::models::Loaded;
use crate::reasoning::{ReasoningFields, ThinkingField, ThinkingObject};
use crate::sampling::{OneOrMany, SamplingFields};
use crate::state::AppState;
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};
use crate::tools::{ToolChoice, Tools};

/// Request of a message.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MessagesRequest {
    /// Name of the model.
    pub model: Option<String>,
    /// Messages of the conversation, oldest first. A last message of the assistant is continued.
    #[schema(min_items = 1)]
    pub messages: Vec<Turn>,
    /// System prompt.
    pub system: Option<Blocks>,
    /// Maximum number of tokens to generate.
    #[schema(required = true, nullable = false, minimum = 1, maximum = 2147483647)]
    pub max_tokens: Option<i32>,
    /// Strings that end the answer; they are not part of it.
    pub stop_sequences: Option<Vec<String>>,
    /// Stream the answer as server-sent events.
    pub stream: Option<bool>,
    /// Sampling temperature; 0 takes the most likely token.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f32>,
    /// Top-p (nucleus) sampling: keep the most likely tokens with this total probability.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Top-k sampling: keep the k most likely tokens; 0 and -1 are off.
    #[schema(minimum = -1, maximum = 2147483647)]
    pub top_k: Option<i32>,
    /// Tools that the model may call.
    pub tools: Option<Vec<ToolIn>>,
    /// Controls whether the model calls tools, and which.
    pub tool_choice: Option<ChoiceIn>,
    /// Turns reasoning on or off, for models that support it.
    pub thinking: Option<ThinkingObject>,
}

impl RequestBody for MessagesRequest {
    const OTHER_FIELDS: &'static [&'static [OtherField]] = &[other::ANTHROPIC];
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct Turn {
    /// `user` or `assistant`.
    #[schema(pattern = "^(user|assistant)$")]
    pub role: String,
    /// Text or content blocks.
    pub content: Blocks,
}

/// Text or content blocks.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Blocks {
    /// Text.
    Text(String),
    /// Content blocks.
    List(Vec<Block>),
}

/// A content block.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct Block {
    /// `text`, `thinking`, `tool_use`, `tool_result`.
    #[schema(pattern = "^(text|thinking|tool_use|tool_result)$")]
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a text block.
    pub text: Option<String>,
    /// The reasoning of a thinking block.
    pub thinking: Option<String>,
    /// Identifier of a call, for `tool_use`.
    pub id: Option<String>,
    /// Name of the tool, for `tool_use`.
    pub name: Option<String>,
    /// Arguments of the call, for `tool_use`.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Value>,
    /// Identifier of the call that this is the result of, for `tool_result`.
    pub tool_use_id: Option<String>,
    /// Result of the call, for `tool_result`.
    #[schema(no_recursion)]
    pub content: Option<Box<Blocks>>,
}

/// A tool that the model may call.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ToolIn {
    /// Name of the tool.
    pub name: String,
    /// Description of the tool.
    pub description: Option<String>,
    /// JSON schema of the arguments.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
}

/// Control of tool calls: none, any, or a specific tool.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ChoiceIn {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the tool, with `tool`.
    pub name: Option<String>,
    /// Allow at most one call in an answer.
    pub disable_parallel_tool_use: Option<bool>,
}

/// A message of the assistant.
#[derive(Debug, Serialize, ToSchema)]
pub struct MessageOut {
    /// Identifier of the message.
    pub id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Always `assistant`.
    pub role: &'static str,
    /// Name of the model.
    pub model: String,
    /// Content blocks of type `text`, `thinking` and `tool_use`.
    #[schema(value_type = Vec<Object>)]
    pub content: Vec<Value>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    pub stop_reason: Option<&'static str>,
    /// The stop sequence that ended the answer.
    pub stop_sequence: Option<String>,
    /// Token counts.
    pub usage: UsageOut,
}

/// Token counts.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct UsageOut {
    /// Prompt tokens computed.
    pub input_tokens: usize,
    /// Prompt tokens found in the prefix cache.
    pub cache_read_input_tokens: usize,
    /// Always 0: every computed token is cached.
    pub cache_creation_input_tokens: usize,
    /// Tokens generated.
    pub output_tokens: usize,
}

impl UsageOut {
    fn of(end: &End) -> UsageOut {
        let finished = &end.completion;
        UsageOut {
            input_tokens: finished
                .prompt_tokens
                .saturating_sub(finished.cached_tokens),
            cache_read_input_tokens: finished.cached_tokens,
            cache_creation_input_tokens: 0,
            output_tokens: finished.generated_tokens,
        }
    }
}

/// Create a message
#[utoipa::path(
    post, path = "/v1/messages", tag = "Anthropic",
    request_body = MessagesRequest,
    responses(
        (status = 200, description = "The message; with `stream`, server-sent events with its parts", content(
            (MessageOut = "application/json"), (StreamEvent = "text/event-stream"),
        )),
        AnthropicErrors,
    ),
)]
pub async fn create(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<MessagesRequest>,
) -> ApiResult<Response> {
    if request.max_tokens.is_none() {
        return Err(ApiError::bad_request("`max_tokens` is required"));
    }
    let streamed = request.stream.unwrap_or(false);
    let generation = Generation::begin(&state, &client, request.into_generation()?).await?;
    let id = state.new_id("msg_");
    let model = generation.model().clone();
    if streamed {
        let writer = MessageWriter {
            id,
            model,
            prompt_tokens: generation.prompt_tokens(),
            open: None,
            n_blocks: 0,
        };
        return stream::respond(generation, Framing::Sse, writer).await;
    }
    let answer = generate::collect_one(generation).await?;
    Ok(Json(message(id, &model, answer)).into_response())
}

/// Number of tokens of a prompt.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenCount {
    /// Tokens in the prompt.
    pub input_tokens: usize,
}

/// Count the tokens of a conversation
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", tag = "Anthropic",
    request_body = MessagesRequest,
    responses(
        (status = 200, description = "The number of tokens", body = TokenCount),
        AnthropicErrors,
    ),
)]
pub async fn count_tokens(
    State(state): State<AppState>,
    Extension(client): Extension<Client>,
    Body(request): Body<MessagesRequest>,
) -> ApiResult<Json<TokenCount>> {
    let model = state.models().get(request.model.as_deref()).await?;
    let request = request.into_generation()?;
    // Prepares the whole request, so that errors are the same as those of `/v1/messages`.
    let prepared = blocking(move || request.prepare(&model, &client)).await??;
    Ok(Json(TokenCount {
        input_tokens: prepared.prompts.iter().map(Vec::len).sum(),
    }))
}

impl MessagesRequest {
    fn into_generation(self) -> ApiResult<GenerationRequest> {
        if let Some(n) = self.max_tokens.filter(|&n| n < 1) {
            let message = format!("max_tokens is {n}; it must be at least 1");
            return Err(ApiError::bad_request(message));
        }
        if self.messages.is_empty() {
            return Err(ApiError::bad_request("messages must not be empty"));
        }
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            messages.push(Message::new("system", text_of(system)?));
        }
        for turn in self.messages {
            if !matches!(turn.role.as_str(), "user" | "assistant" | "system") {
                return Err(ApiError::bad_request("role must be user or assistant"));
            }
            add_turn(turn, &mut messages)?;
        }
        let choice = match &self.tool_choice {
            None => ToolChoice::Auto,
            Some(choice) => match (choice.kind.as_str(), &choice.name) {
                ("auto", _) => ToolChoice::Auto,
                ("none", _) => ToolChoice::None,
                ("any", _) => ToolChoice::Required,
                ("tool", Some(name)) => ToolChoice::Named(name.clone()),
                _ => {
                    return Err(ApiError::bad_request(
                        "tool_choice must be of type auto, any, none, or tool with a name",
                    ));
                }
            },
        };
        let disable_parallel = self
            .tool_choice
            .and_then(|choice| choice.disable_parallel_tool_use);
        let tools = self.tools.unwrap_or_default().into_iter().map(|tool| {
            let mut function = json!({
                "name": tool.name,
                "parameters": tool.input_schema.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
            });
            if let (Some(text), Some(function)) = (tool.description, function.as_object_mut()) {
                function.insert("description".into(), text.into());
            }
            json!({ "type": "function", "function": function })
        });
        let mut conversation = Conversation::from(messages);
        let reasoning = ReasoningFields {
            thinking: self.thinking.map(ThinkingField::Object),
            ..ReasoningFields::default()
        };
        reasoning.apply(&mut conversation)?;
        let chat = Chat {
            conversation,
            tools: Tools::new(tools.collect(), choice, !disable_parallel.unwrap_or(false))?,
            stream_calls: self.stream.unwrap_or(false),
            ..Chat::default()
        };
        Ok(GenerationRequest {
            model: self.model,
            sampling: SamplingFields {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                stop: self.stop_sequences.map(OneOrMany::Many),
                ..SamplingFields::default()
            },
            max_tokens: TokenLimit::new("max_tokens", self.max_tokens)?.or(None),
            ..GenerationRequest::new(chat)
        })
    }
}

/// The text of blocks that must all be text.
fn text_of(blocks: Blocks) -> ApiResult<String> {
    let list = match blocks {
        Blocks::Text(text) => return Ok(text),
        Blocks::List(list) => list,
    };
    let texts = list.into_iter().map(|block| match block.text {
        Some(text) if block.kind == "text" => Ok(text),
        _ => Err(unsupported(&block.kind)),
    });
    Ok(texts.collect::<ApiResult<Vec<_>>>()?.join("\n"))
}

fn unsupported(kind: &str) -> ApiError {
    let kind: String = kind.chars().take(32).collect();
    ApiError::not_supported(format!("content of type {kind:?} is not supported"))
}

/// Adds a turn to `messages`. Tool results become messages of their own, before the text of the same turn.
fn add_turn(turn: Turn, messages: &mut Vec<Message>) -> ApiResult<()> {
    let blocks = match turn.content {
        Blocks::Text(text) => {
            messages.push(Message::new(turn.role, text));
            return Ok(());
        }
        Blocks::List(blocks) => blocks,
    };
    let mut texts = Vec::new();
    let mut reasoning = String::new();
    let mut calls = Vec::new();
    for block in blocks {
        match block.kind.as_str() {
            "text" => texts.push(block.text.unwrap_or_default()),
            "thinking" => reasoning.push_str(&block.thinking.unwrap_or_default()),
            "redacted_thinking" => {}
            "tool_use" => calls.push(ToolCall {
                id: block.id,
                kind: "function".into(),
                function: FunctionCall {
                    name: block
                        .name
                        .ok_or_else(|| ApiError::bad_request("a tool_use block needs a name"))?,
                    arguments: block.input.unwrap_or_else(|| json!({})),
                },
            }),
            "tool_result" => {
                let content = block.content.map(|content| text_of(*content)).transpose()?;
                let mut result = Message::new("tool", content.unwrap_or_default());
                result.tool_call_id = block.tool_use_id;
                messages.push(result);
            }
            other => return Err(unsupported(other)),
        }
    }
    if texts.is_empty() && calls.is_empty() && reasoning.is_empty() {
        return Ok(());
    }
    let mut message = Message::new(turn.role, texts.join("\n"));
    message.tool_calls = Some(calls).filter(|calls| !calls.is_empty());
    message.reasoning_content = Some(reasoning).filter(|text| !text.is_empty());
    messages.push(message);
    Ok(())
}

fn message(id: String, model: &Loaded, answer: Completion) -> MessageOut {
    let mut content = Vec::new();
    if !answer.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": answer.reasoning, "signature": "" }));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        content.push(json!({ "type": "text", "text": answer.content }));
    }
    for call in &answer.calls {
        // Arguments that were cut off are no object. As `stop_reason` says so, the call is left out.
        let input = serde_json::from_str(&call.arguments).ok();
        if let Some(input) = input.filter(Value::is_object) {
            let (id, name) = (&call.id, &call.name);
            content.push(json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
        }
    }
    MessageOut {
        id,
        kind: "message",
        role: "assistant",
        model: model.name.clone(),
        content,
        stop_reason: Some(answer.end.reason.anthropic()),
        stop_sequence: answer.end.reason.stop_string().map(str::to_owned),
        usage: UsageOut::of(&answer.end),
    }
}

/// The content block that is still generated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call(usize),
}

struct MessageWriter {
    id: String,
    model: Arc<Loaded>,
    prompt_tokens: usize,
    open: Option<Open>,
    n_blocks: usize,
}

impl MessageWriter {
    fn send(&self, kind: &str, mut value: Value, out: &mut Frames) {
        if let Some(map) = value.as_object_mut() {
            map.insert("type".into(), kind.into());
        }
        out.event(Some(kind), &value);
    }

    fn open(&mut self, kind: Open, block: Value, out: &mut Frames) {
        if self.open == Some(kind) {
            return;
        }
        self.close(out);
        self.open = Some(kind);
        let start = json!({ "index": self.n_blocks, "content_block": block });
        self.send("content_block_start", start, out);
    }

    fn delta(&mut self, delta: Value, out: &mut Frames) {
        let value = json!({ "index": self.n_blocks, "delta": delta });
        self.send("content_block_delta", value, out);
    }

    fn close(&mut self, out: &mut Frames) {
        if self.open.take().is_some() {
            self.send("content_block_stop", json!({ "index": self.n_blocks }), out);
            self.n_blocks += 1;
        }
    }
}

impl Writer for MessageWriter {
    fn start(&mut self, out: &mut Frames) {
        let message = MessageOut {
            id: self.id.clone(),
            kind: "message",
            role: "assistant",
            model: self.model.name.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: UsageOut {
                input_tokens: self.prompt_tokens,
                ..UsageOut::default()
            },
        };
        self.send("message_start", json!({ "message": message }), out);
    }

    fn update(&mut self, update: Update, out: &mut Frames) {
        match update {
            Update::Progress { .. } | Update::Prompt { .. } => {}
            Update::Delta { delta, .. } => match delta {
                Delta::Reasoning(text) => {
                    self.open(
                        Open::Thinking,
                        json!({"type": "thinking", "thinking": "", "signature": ""}),
                        out,
                    );
                    self.delta(json!({ "type": "thinking_delta", "thinking": text }), out);
                }
                Delta::Content(text) => {
                    self.open(Open::Text, json!({ "type": "text", "text": "" }), out);
                    self.delta(json!({ "type": "text_delta", "text": text }), out);
                }
                Delta::CallStart { index, id, name } => {
                    let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                    self.open(Open::Call(index), block, out);
                }
                Delta::CallArguments { text, .. } => {
                    self.delta(
                        json!({ "type": "input_json_delta", "partial_json": text }),
                        out,
                    );
                }
            },
            Update::End(end) => {
                if self.n_blocks == 0 && self.open.is_none() {
                    self.open(Open::Text, json!({ "type": "text", "text": "" }), out);
                }
                self.close(out);
                let delta = json!({
                    "stop_reason": end.reason.anthropic(), "stop_sequence": end.reason.stop_string(),
                });
                self.send(
                    "message_delta",
                    json!({ "delta": delta, "usage": UsageOut::of(&end) }),
                    out,
                );
            }
        }
    }

    fn end(&mut self, out: &mut Frames) {
        self.send("message_stop", json!({}), out);
    }

    fn error(&mut self, error: &ApiError, out: &mut Frames) {
        let detail = json!({ "type": "api_error", "message": error.message });
        self.send("error", json!({ "error": detail }), out);
    }

    fn ping(&mut self, out: &mut Frames) {
        self.send("ping", json!({}), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Input;

    #[test]
    fn turns_become_messages() {
        let request: MessagesRequest = serde_json::from_value(json!({
            "max_tokens": 5,
            "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "text", "text": "and tomorrow?"},
                ]},
            ],
            "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "tool", "name": "weather"},
        }))
        .unwrap();
        let Input::Chat(chat) = request.into_generation().unwrap().input else {
            panic!("not a chat")
        };
        let conversation = &chat.conversation;
        let roles: Vec<&str> = conversation
            .messages
            .iter()
            .map(|m| m.role.as_str())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
        assert_eq!(
            conversation.messages[2].reasoning_content.as_deref(),
            Some("hm")
        );
        assert_eq!(conversation.messages[3].text(), "rain");
        assert!(chat.tools.forced().is_some());
    }

    #[test]
    fn images_and_unknown_roles_are_refused() {
        for turn in [
            json!({"role": "user", "content": [{"type": "image", "source": {}}]}),
            json!({"role": "tool", "content": "x"}),
        ] {
            let request: MessagesRequest =
                serde_json::from_value(json!({"messages": [turn]})).unwrap();
            assert!(request.into_generation().is_err());
        }
    }
}
