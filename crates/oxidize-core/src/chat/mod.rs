//! Chat: renders conversations with the model's own or a built-in chat template, and parses
//! streamed answers into reasoning, content and tool calls. The server and the CLI exchange
//! [`Message`]s.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)
)]

mod builtin;
mod capabilities;
mod conversation;
mod error;
mod harmony;
mod jinja;
mod markers;
mod message;
mod parser;
mod reasoning;
mod template;
mod thinking;
mod tools;

pub use builtin::{builtin_template, builtin_template_names};
pub use capabilities::Capabilities;
pub use conversation::{Conversation, RenderedPrompt};
pub use error::ChatError;
pub use jinja::strftime;
pub use message::{Content, ContentPart, FunctionCall, Message, ToolCall};
pub use parser::{MessageDelta, MessageFormat, MessageParser, MessageParserOptions, ParsedMessage};
pub(crate) use reasoning::OpeningMarker;
pub use reasoning::{Reasoning, ReasoningTags};
pub use template::{ChatInput, ChatOptions, ChatTemplate};
pub use thinking::Thinking;
pub use tools::{CallDelta, CallReader};
