//! [`Error`]: errors of converting, quantizing and evaluating models.

use std::path::PathBuf;

use oxidize_kernels::quant::{QuantError, TensorType};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. The message is complete: it names the file and the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read, written or understood.
    #[error(transparent)]
    Core(#[from] oxidize_core::Error),
    /// No quantization recipe or tensor type has this name.
    #[error(
        "{name} is not a quantization type; supported types are {}",
        oxidize_core::recipe::names()
    )]
    UnknownRecipe {
        /// The requested name.
        name: String,
    },
    /// A `--tensor-type` pattern is invalid.
    #[error("tensor pattern `{pattern}`: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The problem.
        problem: String,
    },
    /// The output would replace an input file.
    #[error("{}: the output is also the input", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// A tensor is already quantized.
    #[error("{}: tensor `{tensor}` is already {ty}; quantizing it again loses accuracy (allow it with --allow-requantize)", file.display())]
    Requantize {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Tensor type.
        ty: TensorType,
    },
    /// A weight is NaN or infinite.
    #[error("{}: tensor `{tensor}`: element {element} is {value}", file.display())]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Index of the element in file order.
        element: u64,
        /// NaN or an infinity.
        value: f32,
    },
    /// A weight is outside the range of its type.
    #[error("{}: tensor `{tensor}`: element {element} is {value}, too large for {ty}; use BF16 or F32", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Index of the element in file order.
        element: u64,
        /// The weight.
        value: f32,
        /// The type.
        ty: TensorType,
    },
    /// The row length of a tensor is not a multiple of the block size of the requested type.
    #[error("{}: tensor `{tensor}`: rows of {columns} elements are not a multiple of the {ty} block size {}", file.display(), ty.block_len())]
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
    /// A tensor cannot be converted to the requested type.
    #[error("{}: tensor `{tensor}`: {error}", file.display())]
    Encode {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The cause.
        error: QuantError,
    },
    /// A low-bit type requires an importance matrix.
    #[error(
        "tensor `{tensor}`: {ty} needs an importance matrix; collect one with `oxidize imatrix` and pass it with --imatrix, or use `oxidize quantize --calibrate`"
    )]
    NeedsImportance {
        /// The tensor.
        tensor: String,
        /// The type.
        ty: TensorType,
    },
    /// An importance matrix file is invalid.
    #[error("{}: {problem}", file.display())]
    Importance {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// An importance matrix was collected with another model.
    #[error("{}: importance matrix of another model: {problem}", file.display())]
    OtherModel {
        /// The file.
        file: PathBuf,
        /// The mismatch.
        problem: String,
    },
    /// A model or text does not support the operation.
    #[error("{}: {problem}", file.display())]
    Unfit {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The requested amount leaves no tokens to score.
    #[error("{flag} {requested}: at least {least} is required, or nothing is scored")]
    TooFew {
        /// The flag.
        flag: &'static str,
        /// The requested amount.
        requested: usize,
        /// The minimum.
        least: usize,
    },
    /// No choice of types fits the target size.
    #[error("target size too small: {requested} bytes for tensors that need at least {least}")]
    TooSmall {
        /// Bytes available for tensors.
        requested: u64,
        /// Bytes of the tensors with the smallest types.
        least: u64,
    },
    /// The target size of a file is smaller than its header.
    #[error(
        "target size too small: {requested} bytes for a file whose header alone needs {header}"
    )]
    TargetBelowHeader {
        /// The requested file size in bytes.
        requested: u64,
        /// Bytes of the header.
        header: u64,
    },
    /// The work was stopped by a signal.
    #[error("interrupted; {left}")]
    Interrupted {
        /// The state of the output.
        left: String,
    },
}

impl From<oxidize_core::gguf::WriteError> for Error {
    fn from(error: oxidize_core::gguf::WriteError) -> Error {
        Error::Core(error.into())
    }
}
