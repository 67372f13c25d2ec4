//! [`Error`]: what can go wrong while a model is made or measured.

use std::path::PathBuf;

use oxidize_kernels::quant::{QuantError, TensorType};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. The message is complete: it names the file and the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read, written or understood.
    #[error(transparent)]
    Core(#[from] oxidize_core::Error),
    /// There is no such mix or type.
    #[error(
        "{name} is neither a mix nor a type of weights; known mixes are {}",
        oxidize_core::mix::names()
    )]
    UnknownMix {
        /// What was asked for.
        name: String,
    },
    /// A pattern for tensor names is none.
    #[error("tensor pattern `{pattern}`: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The output would replace a file that is being read.
    #[error("{}: the output is also the input", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// A tensor is quantised already.
    #[error("{}: tensor `{tensor}` is {ty} already; quantising it again loses more (--allow-requantize does it)", file.display())]
    Requantize {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: TensorType,
    },
    /// A weight is no number.
    #[error("{}: tensor `{tensor}`: element {element} is {value}", file.display())]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Which element, in the order of the file.
        element: u64,
        /// NaN or an infinity.
        value: f32,
    },
    /// A weight is larger than a type can say.
    #[error("{}: tensor `{tensor}`: element {element} is {value}, too large for {ty}; BF16 and F32 hold it", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Which element, in the order of the file.
        element: u64,
        /// The weight.
        value: f32,
        /// The type.
        ty: TensorType,
    },
    /// Rows of a tensor are not whole blocks of the type that was asked for.
    #[error("{}: tensor `{tensor}`: rows of {columns} are not whole blocks of {ty}, which are {}", file.display(), ty.block_len())]
    Blocks {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        columns: u64,
        /// The type.
        ty: TensorType,
    },
    /// A tensor cannot become the type that was asked for.
    #[error("{}: tensor `{tensor}`: {error}", file.display())]
    Encode {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Why.
        error: QuantError,
    },
    /// A format of few bits makes no sense without an importance matrix.
    #[error(
        "tensor `{tensor}`: {ty} needs an importance matrix: `oxidize imatrix` makes one, to be given with --imatrix, or `quantize --calibrate` on the way"
    )]
    NeedsImportance {
        /// The tensor.
        tensor: String,
        /// The type.
        ty: TensorType,
    },
    /// An importance matrix is broken.
    #[error("{}: {problem}", file.display())]
    Importance {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// An importance matrix belongs to another model.
    #[error("{}: not of this model: {problem}", file.display())]
    OtherModel {
        /// The file.
        file: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// A model or text cannot be used for what was asked.
    #[error("{}: {problem}", file.display())]
    Unfit {
        /// The file.
        file: PathBuf,
        /// Why.
        problem: String,
    },
    /// What was asked for leaves nothing to measure.
    #[error("{flag} {asked}: the least is {least}, as fewer leave nothing to measure")]
    TooFew {
        /// Where it was asked for.
        flag: &'static str,
        /// What was asked for.
        asked: usize,
        /// The least that makes sense.
        least: usize,
    },
    /// No types make a model this small.
    #[error("{asked} bytes are too few: the smallest types take {least}")]
    TooSmall {
        /// What was asked for.
        asked: u64,
        /// The least that is possible.
        least: u64,
    },
    /// Someone asked to stop.
    #[error("interrupted; {left}")]
    Interrupted {
        /// What there is now.
        left: String,
    },
}

impl From<oxidize_core::gguf::WriteError> for Error {
    fn from(error: oxidize_core::gguf::WriteError) -> Error {
        Error::Core(error.into())
    }
}
