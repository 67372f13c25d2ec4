//! Conversations of chat completions and templates: how they end, and messages in OpenAI's older form.

use oxidize_core::chat::{Conversation, FunctionCall, Message, ToolCall};
use serde_json::{Map, Value};

use crate::error::{ApiError, ApiResult};

/// A conversation with vLLM's settings of its end.
pub(super) fn conversation(
    messages: Vec<Message>,
    template_args: Map<String, Value>,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
    documents: Option<Vec<Value>>,
) -> ApiResult<Conversation> {
    if continue_final_message == Some(true) {
        if add_generation_prompt == Some(true) {
            return Err(ApiError::bad_request(
                "`continue_final_message` and `add_generation_prompt` exclude each other",
            ));
        }
        if messages.last().is_none_or(|last| last.role != "assistant") {
            return Err(ApiError::bad_request(
                "`continue_final_message` needs a last message of the assistant",
            ));
        }
    }
    Ok(Conversation {
        messages: messages.into_iter().map(modern).collect(),
        template_args,
        documents: documents.map(Value::Array),
        add_generation_prompt: add_generation_prompt.unwrap_or(true),
        // An explicit generation prompt begins a new turn.
        continue_final_message: match (continue_final_message, add_generation_prompt) {
            (None, Some(true)) => Some(false),
            (given, _) => given,
        },
        ..Conversation::default()
    })
}

/// A message with `function_call` or the role `function` in the form that succeeded it.
fn modern(mut message: Message) -> Message {
    if message.role == "function" {
        message.role = "tool".to_owned();
    }
    let call = message.extra.shift_remove("function_call");
    let call = call.and_then(|call| serde_json::from_value::<FunctionCall>(call).ok());
    if let Some(function) = call.filter(|_| message.tool_calls.is_none()) {
        message.tool_calls = Some(vec![ToolCall {
            id: None,
            kind: "function".into(),
            function,
        }]);
    }
    message
}
