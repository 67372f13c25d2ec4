//! [`Failure`]: an error with a code for programs.

use oxidize_core::Error;
use oxidize_core::engine::EngineError;
use serde::Serialize;

/// Kind of an error, which the package's error classes show as `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The bytes are of no known model format.
    NotAModel,
    /// The file of a model is broken.
    BrokenModel,
    /// The model is of an unknown architecture, or cannot do what was asked.
    UnsupportedModel,
    /// The model, its context or an answer does not fit in memory.
    OutOfMemory,
    /// A setting or an argument is invalid.
    InvalidArgument,
    /// The conversation or the prompt is longer than the context.
    ContextLength,
    /// Too many requests wait.
    Busy,
    /// A fault inside the engine.
    Internal,
}

/// An error with its code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Kind of the error.
    pub code: Code,
    /// Description for people.
    pub message: String,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
        }
    }

    /// An invalid setting or argument.
    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Code::InvalidArgument, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(code_of(&error), error.to_string())
    }
}

fn code_of(error: &Error) -> Code {
    match error {
        Error::UnknownFormat { .. } => Code::NotAModel,
        Error::Io { error, .. } if error.kind() == std::io::ErrorKind::OutOfMemory => {
            Code::OutOfMemory
        }
        Error::Gguf { .. }
        | Error::Safetensors { .. }
        | Error::Parts { .. }
        | Error::Limit { .. }
        | Error::Lora(_)
        | Error::Io { .. }
        | Error::Tokenizer { .. }
        | Error::NoTensor { .. } => Code::BrokenModel,
        Error::Model(_) => Code::UnsupportedModel,
        Error::Backend(_) => Code::OutOfMemory,
        Error::Engine(error) => engine_code(error),
        _ => Code::InvalidArgument,
    }
}

fn engine_code(error: &EngineError) -> Code {
    use oxidize_core::scheduler::SubmitError;
    match error {
        EngineError::Submit(SubmitError::QueueFull { .. }) => Code::Busy,
        EngineError::Submit(SubmitError::TooLong { .. })
        | EngineError::ContextTooLong { .. }
        | EngineError::TextLength { .. } => Code::ContextLength,
        EngineError::NoText(_) | EngineError::NoScores(_) | EngineError::NoPromptLogprobs(_) => {
            Code::UnsupportedModel
        }
        EngineError::Stopped | EngineError::Internal(_) => Code::Internal,
        _ => Code::InvalidArgument,
    }
}
