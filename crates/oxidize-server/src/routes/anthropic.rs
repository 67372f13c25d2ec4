//! Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use oxidize_core::chat::{FunctionCall, Message, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::token_count;
use crate::auth::Client;
use crate::body::Body;
use crate::conversation::Conversation;
use crate::error::{AnthropicErrors, ApiError, ApiResult};
use crate::generate::{self, End, Generation, Part, Piece, StopReason, Whole, blocking};
use crate::models::Loaded;
use crate::sampling::{OneOrMany, SamplingFields};
use crate::state::AppState;
use crate::stream::{self, Frames, Framing, StreamEvent, Writer};
use crate::tools::{ToolChoice, Tools};

/// A conversation to continue, in Anthropic's shape.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MessagesRequest {
    /// Which model.
    pub model: Option<String>,
    /// The turns, oldest first.
    #[schema(min_items = 1)]
    pub messages: Vec<Turn>,
    /// What the model is told before the conversation.
    pub system: Option<Blocks>,
    /// Most tokens of the answer.
    #[schema(required = true, nullable = false, minimum = 1, maximum = 2147483647)]
    pub max_tokens: Option<u32>,
    /// The answer ends before any of these.
    pub stop_sequences: Option<Vec<String>>,
    /// Whether the answer comes as server-sent events.
    pub stream: Option<bool>,
    /// Temperature.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f32>,
    /// Keep the most likely tokens that hold this share of the probability.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Keep the k most likely tokens.
    pub top_k: Option<u32>,
    /// What the model may call.
    pub tools: Option<Vec<ToolIn>>,
    /// Whether it calls.
    pub tool_choice: Option<ChoiceIn>,
    /// Whether a model that can think should.
    #[schema(value_type = Option<Object>)]
    pub thinking: Option<Value>,
}

/// A turn of a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct Turn {
    /// `user` or `assistant`.
    #[schema(pattern = "^(user|assistant)$")]
    pub role: String,
    /// What is said.
    pub content: Blocks,
}

/// Text, or blocks of it and other things.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Blocks {
    /// Text.
    Text(String),
    /// Blocks.
    List(Vec<Block>),
}

/// A block of a turn.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct Block {
    /// `text`, `thinking`, `tool_use`, `tool_result`.
    #[schema(pattern = "^(text|thinking|tool_use|tool_result)$")]
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a text block.
    pub text: Option<String>,
    /// The thoughts of a thinking block.
    pub thinking: Option<String>,
    /// Names a call.
    pub id: Option<String>,
    /// What is called.
    pub name: Option<String>,
    /// The arguments of a call.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Value>,
    /// The call that a result is of.
    pub tool_use_id: Option<String>,
    /// The result of a call.
    #[schema(no_recursion)]
    pub content: Option<Box<Blocks>>,
}

/// A tool in Anthropic's shape.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ToolIn {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
}

/// Whether tools are called.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ChoiceIn {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Which, with `tool`.
    pub name: Option<String>,
    /// One call at most.
    pub disable_parallel_tool_use: Option<bool>,
}

/// The answer to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct MessageOut {
    /// Names it.
    pub id: String,
    /// `message`
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `assistant`
    pub role: &'static str,
    /// Who answered.
    pub model: String,
    /// Blocks of text, thoughts and calls.
    #[schema(value_type = Vec<Object>)]
    pub content: Vec<Value>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    pub stop_reason: Option<&'static str>,
    /// The stop sequence that came up.
    pub stop_sequence: Option<String>,
    /// How many tokens.
    pub usage: UsageOut,
}

/// Tokens as Anthropic counts them.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct UsageOut {
    /// Tokens of the prompt that were computed.
    pub input_tokens: usize,
    /// Tokens of the prompt that were found in the cache.
    pub cache_read_input_tokens: usize,
    /// Always 0: what is computed is kept, at no price.
    pub cache_creation_input_tokens: usize,
    /// Tokens of the answer.
    pub output_tokens: usize,
}

impl UsageOut {
    fn of(end: &End) -> UsageOut {
        let finished = &end.finished;
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

/// Continue a conversation
#[utoipa::path(
    post, path = "/v1/messages", tag = "Anthropic",
    request_body = MessagesRequest,
    responses(
        (status = 200, description = "The answer; with `stream`, server-sent events of its pieces", content(
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
    if request.max_tokens.is_none_or(|n| n == 0) {
        return Err(ApiError::bad_request(
            "max_tokens is needed, and at least 1",
        ));
    }
    let streamed = request.stream.unwrap_or(false);
    let name = request.model.clone();
    let conversation = request.conversation()?;
    let prepare = move |model: &Loaded| conversation.job(model);
    let generation = Generation::begin(&state, &client, name.as_deref(), 1, prepare).await?;
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

/// How many tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenCount {
    /// Tokens of the prompt.
    pub input_tokens: usize,
}

/// Count the tokens of a conversation
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", tag = "Anthropic",
    request_body = MessagesRequest,
    responses(
        (status = 200, description = "How many", body = TokenCount),
        AnthropicErrors,
    ),
)]
pub async fn count_tokens(
    State(state): State<AppState>,
    Body(request): Body<MessagesRequest>,
) -> ApiResult<Json<TokenCount>> {
    let model = state.models().get(request.model.as_deref()).await?;
    let conversation = request.conversation()?;
    // What would be refused there is refused here.
    let job = blocking(move || conversation.job(&model)).await??;
    Ok(Json(TokenCount {
        input_tokens: job.prompts.iter().map(Vec::len).sum(),
    }))
}

impl MessagesRequest {
    fn conversation(self) -> ApiResult<Conversation> {
        if self.messages.is_empty() {
            return Err(ApiError::bad_request("messages is empty"));
        }
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            messages.push(Message::new("system", text_of(system)?));
        }
        for turn in self.messages {
            if !matches!(turn.role.as_str(), "user" | "assistant" | "system") {
                return Err(ApiError::bad_request("a role is user or assistant"));
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
                        "tool_choice must be auto, any, none, or tool with a name",
                    ));
                }
            },
        };
        let parallel = self
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
        let mut template_args = Map::new();
        if let Some(thinking) = self
            .thinking
            .as_ref()
            .and_then(|thinking| thinking.get("type"))
        {
            template_args.insert("enable_thinking".into(), (thinking != "disabled").into());
        }
        Ok(Conversation {
            messages,
            tools: Tools::new(tools.collect(), choice, !parallel.unwrap_or(false))?,
            template_args,
            sampling: SamplingFields {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                stop: self.stop_sequences.map(OneOrMany::Many),
                ..SamplingFields::default()
            },
            max_tokens: token_count("max_tokens", self.max_tokens)?,
            stream_calls: self.stream.unwrap_or(false),
            n: 1,
            ..Conversation::default()
        })
    }
}

/// The text of blocks that may be nothing else.
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
    ApiError::not_supported(format!(
        "content of type {kind:?} is not supported by this model"
    ))
}

/// A turn as messages: results of calls are messages of their own, before the text that came with them.
fn add_turn(turn: Turn, messages: &mut Vec<Message>) -> ApiResult<()> {
    let blocks = match turn.content {
        Blocks::Text(text) => {
            messages.push(Message::new(turn.role, text));
            return Ok(());
        }
        Blocks::List(blocks) => blocks,
    };
    let mut texts = Vec::new();
    let mut thoughts = String::new();
    let mut calls = Vec::new();
    for block in blocks {
        match block.kind.as_str() {
            "text" => texts.push(block.text.unwrap_or_default()),
            "thinking" => thoughts.push_str(&block.thinking.unwrap_or_default()),
            "redacted_thinking" => {}
            "tool_use" => calls.push(ToolCall {
                id: block.id,
                kind: "function".into(),
                function: FunctionCall {
                    name: block
                        .name
                        .ok_or_else(|| ApiError::bad_request("a tool_use has a name"))?,
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
    if texts.is_empty() && calls.is_empty() && thoughts.is_empty() {
        return Ok(());
    }
    let mut message = Message::new(turn.role, texts.join("\n"));
    message.tool_calls = Some(calls).filter(|calls| !calls.is_empty());
    message.reasoning_content = Some(thoughts).filter(|text| !text.is_empty());
    messages.push(message);
    Ok(())
}

fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Stop => "end_turn",
        StopReason::StopString => "stop_sequence",
        StopReason::Length => "max_tokens",
        StopReason::ToolCalls => "tool_use",
    }
}

fn message(id: String, model: &Loaded, answer: Whole) -> MessageOut {
    let mut content = Vec::new();
    if !answer.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": answer.reasoning, "signature": "" }));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        content.push(json!({ "type": "text", "text": answer.content }));
    }
    for call in &answer.calls {
        // Arguments that were cut short are no object any more; what there is of them is not lost.
        let input = serde_json::from_str(&call.arguments)
            .ok()
            .filter(Value::is_object)
            .unwrap_or_else(|| json!({ "arguments": call.arguments }));
        content
            .push(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }));
    }
    MessageOut {
        id,
        kind: "message",
        role: "assistant",
        model: model.name.clone(),
        content,
        stop_reason: Some(stop_reason(answer.end.reason)),
        stop_sequence: answer.end.stop.clone(),
        usage: UsageOut::of(&answer.end),
    }
}

/// What kind of block is being written.
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

    fn piece(&mut self, piece: Piece, out: &mut Frames) {
        match piece {
            Piece::Part { part, .. } => match part {
                Part::Reasoning(text) => {
                    self.open(
                        Open::Thinking,
                        json!({"type": "thinking", "thinking": "", "signature": ""}),
                        out,
                    );
                    self.delta(json!({ "type": "thinking_delta", "thinking": text }), out);
                }
                Part::Content(text) => {
                    self.open(Open::Text, json!({ "type": "text", "text": "" }), out);
                    self.delta(json!({ "type": "text_delta", "text": text }), out);
                }
                Part::CallStart { index, id, name } => {
                    let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                    self.open(Open::Call(index), block, out);
                }
                Part::CallArguments { text, .. } => {
                    self.delta(
                        json!({ "type": "input_json_delta", "partial_json": text }),
                        out,
                    );
                }
            },
            Piece::End(end) => {
                if self.n_blocks == 0 && self.open.is_none() {
                    self.open(Open::Text, json!({ "type": "text", "text": "" }), out);
                }
                self.close(out);
                let delta =
                    json!({ "stop_reason": stop_reason(end.reason), "stop_sequence": end.stop });
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
        let conversation = request.conversation().unwrap();
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
        assert!(conversation.tools.forced().is_some());
    }

    #[test]
    fn pictures_and_strange_roles_are_refused() {
        for turn in [
            json!({"role": "user", "content": [{"type": "image", "source": {}}]}),
            json!({"role": "tool", "content": "x"}),
        ] {
            let request: MessagesRequest =
                serde_json::from_value(json!({"messages": [turn]})).unwrap();
            assert!(request.conversation().is_err());
        }
    }
}
