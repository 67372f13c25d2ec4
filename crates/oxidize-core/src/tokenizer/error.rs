//! Errors of reading a vocabulary. Encoding and decoding cannot fail.

use std::path::PathBuf;

/// Error of creating a tokenizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A required metadata key or tokenizer file is missing.
    #[error("the model has no tokenizer: {0} is missing")]
    Missing(String),
    /// A value has the wrong type or length, or is out of range.
    #[error("tokenizer: {key}: {problem}")]
    Invalid {
        /// Metadata key, or place in the file.
        key: String,
        /// Description of the problem.
        problem: String,
    },
    /// `tokenizer.ggml.model`, or the model type of a `tokenizer.json`, is unknown.
    #[error("unknown tokenizer model {0:?}")]
    UnknownModel(String),
    /// `tokenizer.ggml.pre` is unknown.
    #[error("unknown pre-tokenizer {0:?}")]
    UnknownPreTokenizer(String),
    /// A `tokenizer.json` needs a step that is not supported.
    #[error("tokenizer.json: unsupported {part}: {what}")]
    Unsupported {
        /// Section of the file.
        part: &'static str,
        /// Unsupported step.
        what: String,
    },
    /// A value exceeds a limit.
    #[error("tokenizer: {what} is {requested}, the limit is {limit}")]
    Limit {
        /// Limited quantity.
        what: &'static str,
        /// Largest allowed value.
        limit: u64,
        /// Actual value.
        requested: u64,
    },
    /// A tokenizer file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// File path.
        path: PathBuf,
        /// Operating system error.
        source: std::io::Error,
    },
    /// A tokenizer file is malformed.
    #[error("{}: byte {offset}: {problem}", path.display())]
    Format {
        /// File path.
        path: PathBuf,
        /// Byte offset of the problem.
        offset: usize,
        /// Description of the problem.
        problem: String,
    },
}

impl TokenizerError {
    pub(super) fn invalid(key: impl Into<String>, problem: impl Into<String>) -> TokenizerError {
        TokenizerError::Invalid {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

/// Result of creating a tokenizer.
pub(super) type Result<T, E = TokenizerError> = std::result::Result<T, E>;
