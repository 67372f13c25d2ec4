//! [`Error`]: all errors of this crate, with messages for users, and the types of its variants.

use std::path::{Path, PathBuf};

pub use oxidize_kernels::quant::{QuantError, TensorType};

pub use crate::backend::BackendError;
pub use crate::chat::ChatError;
pub use crate::engine::EngineError;
pub use crate::file::gguf::{
    GgufError, Problem as GgufProblem, Subject as GgufSubject, WriteError,
};
pub use crate::file::safetensors::{Problem as SafetensorsProblem, SafetensorsError};
pub use crate::grammar::GrammarError;
pub use crate::limits::LimitExceeded;
pub use crate::model::ModelError;
pub use crate::model::lora::LoraError;
pub use crate::sampling::SamplingError;
pub use crate::scheduler::{ConfigError, SeqId, SubmitError};
pub use crate::speculative::SpeculationError;
pub use crate::synth::SynthesisError;
pub use crate::tokenizer::TokenizerError;

/// Result with [`Error`] as the default error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of this crate. The message is complete: it names the file and the position in it.
///
/// ```
/// use oxidize::{Error, Model};
///
/// match Model::load("missing.gguf") {
///     Err(Error::Io { path, .. }) => println!("{} cannot be read", path.display()),
///     Err(error) => println!("{error}"),
///     Ok(model) => println!("{}", model.architecture()),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// I/O error.
        error: std::io::Error,
    },
    /// The file is of no known format.
    #[error("{}: not a known model format (GGUF file, safetensors file or directory)", path.display())]
    UnknownFormat {
        /// Path of the file.
        path: PathBuf,
    },
    /// A GGUF file is invalid.
    #[error("{}: {error}", path.display())]
    Gguf {
        /// Path of the file.
        path: PathBuf,
        /// Problem and position.
        error: Box<GgufError>,
    },
    /// A GGUF file could not be written.
    #[error(transparent)]
    GgufWrite(#[from] WriteError),
    /// A safetensors file, or a JSON file in its directory, is invalid.
    #[error("{}: {error}", path.display())]
    Safetensors {
        /// Path of the file.
        path: PathBuf,
        /// Problem and position.
        error: Box<SafetensorsError>,
    },
    /// A file exceeds the [`Limits`](crate::Limits).
    #[error("{}: {place}: {limit}", path.display())]
    Limit {
        /// Path of the file.
        path: PathBuf,
        /// Key, tensor or part of the file, with the byte offset.
        place: String,
        /// Exceeded limit.
        limit: LimitExceeded,
    },
    /// Files of a split model are missing.
    #[error("{}: missing {}", path.display(), list(missing))]
    MissingParts {
        /// Path of the file that was opened.
        path: PathBuf,
        /// Paths of all missing files.
        missing: Vec<PathBuf>,
    },
    /// Files of a split model do not belong together.
    #[error("{}: {problem}", path.display())]
    Parts {
        /// Path of the file that does not belong.
        path: PathBuf,
        /// Reason.
        problem: String,
    },
    /// A value of the metadata cannot be replaced as [`OpenOptions::overrides`](crate::OpenOptions::overrides) asks.
    #[error("{}: override of key {key:?}: {problem}", path.display())]
    Override {
        /// Path of the model.
        path: PathBuf,
        /// Metadata key.
        key: String,
        /// Problem.
        problem: String,
    },
    /// Loading was canceled; see [`OpenOptions::cancel`](crate::OpenOptions::cancel).
    #[error("{}: loading was canceled", path.display())]
    Canceled {
        /// Path of the model.
        path: PathBuf,
    },
    /// The file is valid, but its model cannot be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A LoRA adapter is invalid, or does not fit the model.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// A chat template is invalid, or a conversation does not fit it.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A random model with these dimensions or types is impossible.
    #[error(transparent)]
    Synthesis(#[from] SynthesisError),
    /// A request could not be served.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A backend could not load or run the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The vocabulary of a model is invalid or of an unknown kind.
    #[error("{}: {error}", path.display())]
    Tokenizer {
        /// Path of the model.
        path: PathBuf,
        /// Problem.
        error: TokenizerError,
    },
    /// The model has no tensor with this name.
    #[error("{}: tensor `{name}` not found", path.display())]
    NoTensor {
        /// Path of the model.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
    },
    /// A tensor could not be dequantized.
    #[error("{}: tensor `{name}`: {error}", path.display())]
    Dequantize {
        /// Path of the model.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Reason.
        error: QuantError,
    },
}

impl Error {
    /// Returns a function that adds the path of a file to an I/O error, for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |error| Error::Io {
            path: path.to_path_buf(),
            error,
        }
    }
}

impl From<GrammarError> for Error {
    fn from(error: GrammarError) -> Error {
        EngineError::Grammar(error).into()
    }
}

impl From<SamplingError> for Error {
    fn from(error: SamplingError) -> Error {
        EngineError::Sampling(error).into()
    }
}

impl From<SpeculationError> for Error {
    fn from(error: SpeculationError) -> Error {
        EngineError::Speculation(error).into()
    }
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}
