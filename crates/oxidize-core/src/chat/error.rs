//! What can go wrong with a chat template.

use thiserror::Error;

/// An error of a chat template: in its source, or while rendering a conversation.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The source is not valid Jinja.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Line of the source, from 1; 0 when it is not known.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// Rendering failed, as with a wrong type or a missing field.
    #[error("chat template failed at line {line}: {message}")]
    Render {
        /// Line of the source, from 1; 0 when it is not known.
        line: usize,
        /// What went wrong.
        message: String,
    },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The template or what it does is larger than allowed.
    #[error("chat template: {what} exceeds the limit of {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// No built-in template has this name.
    #[error("no built-in chat template is called {name:?}; known are {known}")]
    UnknownBuiltin {
        /// The name asked for.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// The conversation cannot be rendered as asked.
    #[error("{0}")]
    Conversation(String),
}
