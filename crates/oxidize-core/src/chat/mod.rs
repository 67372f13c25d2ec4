//! Conversations to prompt text and answers back: the model's own chat template or a built-in one, and a
//! streaming parser that tells reasoning, content and tool calls apart. The server and the CLI speak
//! [`Message`]; the tokenizer takes the rendered text.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)
)]

mod answer;
mod builtin;
mod capabilities;
mod error;
mod harmony;
mod jinja;
mod markers;
mod message;
mod reasoning;
mod template;
mod tools;

pub use answer::{Answer, AnswerDelta, AnswerFormat, AnswerOptions, AnswerParser};
pub use builtin::{builtin_template, builtin_template_names};
pub use capabilities::Capabilities;
pub use error::ChatError;
pub use jinja::strftime;
pub use message::{Content, ContentPart, FunctionCall, Message, ToolCall};
pub use reasoning::ReasoningMarks;
pub use template::{ChatInput, ChatOptions, ChatTemplate};
pub use tools::{CallPiece, CallReader};
