//! What can be wrong with a vocabulary. Encoding and decoding themselves cannot fail.

use std::path::PathBuf;

/// Why a tokenizer could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The metadata lack a key, or the directory a file, that the tokenizer cannot do without.
    #[error("the model has no tokenizer: {0} is missing")]
    Missing(String),
    /// A value is of the wrong type, of the wrong length or out of range.
    #[error("tokenizer: {key}: {problem}")]
    Invalid {
        /// The metadata key, or the place in the file.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// `tokenizer.ggml.model`, or the model type of a `tokenizer.json`, is none that is known.
    #[error("unknown tokenizer model {0:?}")]
    UnknownModel(String),
    /// `tokenizer.ggml.pre` names no rule that is known.
    #[error("unknown pre-tokenizer {0:?}")]
    UnknownPreTokenizer(String),
    /// A `tokenizer.json` asks for a step that is not supported.
    #[error("tokenizer.json: unsupported {part}: {what}")]
    Unsupported {
        /// Which section asks for it.
        part: &'static str,
        /// What it asks for.
        what: String,
    },
    /// Something is larger than this tokenizer handles.
    #[error("tokenizer: {what} is {asked}, the limit is {limit}")]
    Limit {
        /// What was measured.
        what: &'static str,
        /// The largest value allowed.
        limit: u64,
        /// The value found.
        asked: u64,
    },
    /// A tokenizer file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A tokenizer file is not in its format.
    #[error("{}: byte {offset}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: usize,
        /// What is wrong there.
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

/// The result of making a tokenizer.
pub(super) type Result<T, E = TokenizerError> = std::result::Result<T, E>;
