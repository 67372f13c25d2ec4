//! [`LoraError`]: an adapter cannot be used.

use std::path::PathBuf;

/// Reason why an adapter cannot be used at all, or with this model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoraError {
    /// The file is not a LoRA adapter of a supported kind.
    #[error("{file}: not a LoRA adapter: {problem}", file = file.display())]
    NotAnAdapter {
        /// The file.
        file: PathBuf,
        /// Problem.
        problem: String,
    },
    /// A tensor is not part of a valid pair of matrices.
    #[error("{file}: tensor {tensor:?}: {problem}", file = file.display())]
    Tensor {
        /// The adapter.
        file: PathBuf,
        /// Tensor.
        tensor: String,
        /// Problem.
        problem: String,
    },
    /// The adapter was made for another architecture.
    #[error("{file}: the adapter is for {adapter:?}, but the model is {model:?}", file = file.display())]
    Architecture {
        /// The adapter.
        file: PathBuf,
        /// Architecture of the adapter.
        adapter: String,
        /// Architecture of the model.
        model: &'static str,
    },
    /// The model does not contain a matrix that the adapter changes.
    #[error("{file}: the adapter changes {target:?}, which {model} does not have as a separate matrix",
        file = file.display(), model = model.display())]
    NoTarget {
        /// The adapter.
        file: PathBuf,
        /// Name of the matrix.
        target: String,
        /// The model.
        model: PathBuf,
    },
    /// The shapes of adapter and model differ.
    #[error("{file}: the adapter adds a matrix of shape {adapter:?} to {target:?} of shape {model:?}", file = file.display())]
    Shape {
        /// The adapter.
        file: PathBuf,
        /// Name of the matrix.
        target: String,
        /// Shape in the adapter: experts if any, outputs, inputs.
        adapter: Vec<usize>,
        /// Shape in the model.
        model: Vec<usize>,
    },
    /// Adapters of experts in one layer have different ranks or factors.
    #[error("{file}: {target:?} has another {what} than the layer's other experts", file = file.display())]
    Experts {
        /// The adapter.
        file: PathBuf,
        /// Name of the matrix.
        target: String,
        /// Property that differs.
        what: &'static str,
    },
    /// The adapter can be applied at run time, but not merged into a file.
    #[error("{file}: {target:?} changes {what}, which can be used with --lora but not merged or converted",
        file = file.display())]
    OnlyBeside {
        /// The adapter.
        file: PathBuf,
        /// Name of the tensor.
        target: String,
        /// Kind of the tensor.
        what: &'static str,
    },
}
