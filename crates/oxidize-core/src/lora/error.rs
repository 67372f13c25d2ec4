//! What can be wrong with an adapter.

use std::path::PathBuf;

/// Why an adapter cannot be used, or not with this model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoraError {
    /// The file holds something else, or an adapter of a kind that is not known.
    #[error("{file}: not a LoRA adapter: {problem}", file = file.display())]
    NotAnAdapter {
        /// The file.
        file: PathBuf,
        /// What is missing or different.
        problem: String,
    },
    /// A tensor of the adapter is not one of a pair of matrices that fit together.
    #[error("{file}: tensor {tensor:?}: {problem}", file = file.display())]
    Tensor {
        /// The adapter.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The adapter was made for another kind of model.
    #[error("{file}: the adapter is for {adapter:?}, the model is {model:?}", file = file.display())]
    Architecture {
        /// The adapter.
        file: PathBuf,
        /// What it is for.
        adapter: String,
        /// What the model is.
        model: &'static str,
    },
    /// The model has no matrix that the adapter changes.
    #[error("{file}: the adapter changes {target:?}, which {model} does not have as a matrix of its own",
        file = file.display(), model = model.display())]
    NoTarget {
        /// The adapter.
        file: PathBuf,
        /// What it changes.
        target: String,
        /// The model.
        model: PathBuf,
    },
    /// The matrices of the adapter do not fit that of the model.
    #[error("{file}: the adapter adds a matrix of {adapter:?} to {target:?}, which has {model:?}", file = file.display())]
    Shape {
        /// The adapter.
        file: PathBuf,
        /// What it changes.
        target: String,
        /// Outputs and inputs of the adapter.
        adapter: [usize; 2],
        /// Outputs and inputs of the model.
        model: [usize; 2],
    },
}
