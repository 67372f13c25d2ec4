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
        /// Outputs and inputs of the adapter, before them the number of experts.
        adapter: Vec<usize>,
        /// The same of the model.
        model: Vec<usize>,
    },
    /// The pairs of one layer's experts differ in what they must have in common.
    #[error("{file}: {target:?} has another {what} than the pairs of the layer's other experts", file = file.display())]
    Experts {
        /// The adapter.
        file: PathBuf,
        /// What it changes.
        target: String,
        /// What differs.
        what: &'static str,
    },
    /// What the adapter changes can be adapted while the model runs, but not in a file.
    #[error("{file}: {target:?} changes {what}: that cannot be merged or converted, only be used with --lora",
        file = file.display())]
    OnlyBeside {
        /// The adapter.
        file: PathBuf,
        /// What it changes.
        target: String,
        /// What that is.
        what: &'static str,
    },
}
