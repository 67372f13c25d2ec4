//! [`Error`]: everything that can go wrong in this crate, said so that a user can act on it.

use std::path::{Path, PathBuf};

use oxidize_kernels::quant::QuantError;

use crate::backend::BackendError;
use crate::chat::ChatError;
use crate::engine::EngineError;
use crate::gguf::{GgufError, WriteError};
use crate::limits::LimitExceeded;
use crate::lora::LoraError;
use crate::model::ModelError;
use crate::safetensors::SafetensorsError;
use crate::synth::SynthesisError;
use crate::tokenizer::TokenizerError;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. The message is complete: it names the file and the place in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused to open, read or write a file.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// No loader knows the file.
    #[error("{}: not a model file that oxidize knows (GGUF file, safetensors file or directory)", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A GGUF file is broken.
    #[error("{}: {error}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: Box<GgufError>,
    },
    /// A GGUF file cannot be written.
    #[error(transparent)]
    GgufWrite(#[from] WriteError),
    /// A safetensors file, or a JSON file beside it, is broken.
    #[error("{}: {error}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: Box<SafetensorsError>,
    },
    /// A file asks for more than [`Limits`](crate::Limits) allows.
    #[error("{}: {place}: {limit}", path.display())]
    Limit {
        /// The file.
        path: PathBuf,
        /// The key, the tensor or the part of the file, with its byte offset.
        place: String,
        /// The limit and what was asked.
        limit: LimitExceeded,
    },
    /// Some of the files that a model is split over are not there.
    #[error("{}: missing {}", path.display(), list(missing))]
    MissingParts {
        /// The file that was opened.
        path: PathBuf,
        /// Every file that is missing.
        missing: Vec<PathBuf>,
    },
    /// The files of a split model do not belong together.
    #[error("{}: {problem}", path.display())]
    Parts {
        /// The file that does not fit.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// The file is in order, but what it says cannot be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An adapter is broken, or not made for the model.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// A chat template is wrong, or a conversation does not fit it.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A random model of these dimensions or types cannot be.
    #[error(transparent)]
    Synthesis(#[from] SynthesisError),
    /// The engine could not serve a request.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A backend could not prepare or run the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The vocabulary of a model is broken, or of a kind that is not known.
    #[error("{}: {error}", path.display())]
    Tokenizer {
        /// The model.
        path: PathBuf,
        /// What is wrong.
        error: TokenizerError,
    },
    /// The model has no tensor of this name.
    #[error("{}: there is no tensor `{name}`", path.display())]
    NoTensor {
        /// The model.
        path: PathBuf,
        /// The name that was asked for.
        name: String,
    },
    /// A tensor cannot be turned into floats.
    #[error("{}: tensor `{name}`: {error}", path.display())]
    Dequantize {
        /// The model.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Why.
        error: QuantError,
    },
}

impl Error {
    /// Names the file that an I/O error is about; for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |error| Error::Io {
            path: path.to_path_buf(),
            error,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}
