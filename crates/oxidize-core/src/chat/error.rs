//! Errors of chat templates.

use thiserror::Error;

/// Error of parsing a chat template or rendering a conversation.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The source is not valid Jinja.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Line of the source, from 1; 0 if unknown.
        line: usize,
        /// Message of the parser.
        message: String,
    },
    /// Rendering failed, for example because of a wrong type or a missing field.
    #[error("chat template failed at line {line}: {message}")]
    Render {
        /// Line of the source, from 1; 0 if unknown.
        line: usize,
        /// Description of the problem.
        message: String,
    },
    /// The template rejected the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The template, or the resources that it uses, exceed a limit.
    #[error("chat template: {what} exceeds the limit of {limit}")]
    Limit {
        /// Limited quantity.
        what: &'static str,
        /// Limit.
        limit: u64,
    },
    /// The name of a built-in template is unknown.
    #[error("no built-in chat template is called {name:?}; known are {known}")]
    UnknownBuiltin {
        /// Requested name.
        name: String,
        /// Known names, separated by commas.
        known: String,
    },
    /// A message has content other than text.
    #[error("message content of type {kind:?} is not supported; only text is")]
    UnsupportedContent {
        /// Type of the content, such as `image_url`.
        kind: String,
    },
    /// The conversation cannot be rendered as requested.
    #[error("{0}")]
    Conversation(String),
}
