//! [`ModelError`]: a model whose file is well-formed cannot be run.

use oxidize_kernels::quant::TensorType;
use std::path::PathBuf;

/// Reason why a well-formed file cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The model has no hidden states for embeddings.
    #[error("{file}: the model has no hidden states for embeddings", file = file.display())]
    NoHiddenStates {
        /// The model.
        file: PathBuf,
    },
    /// The architecture is not supported.
    #[error("{file}: architecture {name:?} is not supported; the most similar supported ones are {nearest}", file = file.display())]
    UnknownArchitecture {
        /// The model.
        file: PathBuf,
        /// Name of the architecture in the file.
        name: String,
        /// Supported names that are similar.
        nearest: String,
    },
    /// A GGUF model cannot be expressed as a Hugging Face directory.
    #[error("{file}: {name} cannot be converted to a Hugging Face directory: {problem}", file = file.display())]
    NotInHuggingFace {
        /// The model.
        file: PathBuf,
        /// Architecture.
        name: String,
        /// Reason.
        problem: String,
    },
    /// A Hugging Face directory has no `config.json`.
    #[error("{file} not found; it names the architecture", file = file.display())]
    MissingConfig {
        /// Expected path.
        file: PathBuf,
    },
    /// A required hyper-parameter is missing.
    #[error("{file}: key {key:?} is missing", file = file.display())]
    MissingKey {
        /// The model.
        file: PathBuf,
        /// Key.
        key: String,
    },
    /// A hyper-parameter is invalid or contradicts others.
    #[error("{file}: key {key:?}: {problem}", file = file.display())]
    BadValue {
        /// The model.
        file: PathBuf,
        /// Key.
        key: String,
        /// Problem.
        problem: String,
    },
    /// A required tensor is missing.
    #[error("{file}: tensor {tensor:?} is missing", file = file.display())]
    MissingTensor {
        /// The model.
        file: PathBuf,
        /// Tensor.
        tensor: String,
    },
    /// A layer has a tensor that the architecture does not use.
    #[error("{file}: tensor {tensor:?} is not used by this architecture", file = file.display())]
    UnusedTensor {
        /// The model.
        file: PathBuf,
        /// Tensor.
        tensor: String,
    },
    /// A tensor has another shape than the hyper-parameters imply.
    #[error("{file}: tensor {tensor:?} has shape {shape:?}, expected {expected:?}", file = file.display())]
    TensorShape {
        /// The model.
        file: PathBuf,
        /// Tensor.
        tensor: String,
        /// Shape, rows first.
        shape: Vec<usize>,
        /// Expected shape, rows first.
        expected: Vec<usize>,
    },
    /// A tensor has an unsuitable type.
    #[error("{file}: tensor {tensor:?} of type {ty}: {problem}", file = file.display())]
    TensorType {
        /// The model.
        file: PathBuf,
        /// Tensor.
        tensor: String,
        /// Type of the tensor.
        ty: TensorType,
        /// Problem.
        problem: String,
    },
    /// A weight is NaN or infinite.
    #[error("{file}: tensor {tensor:?}: element {element} is not a finite number", file = file.display())]
    NotFinite {
        /// The model.
        file: PathBuf,
        /// Tensor.
        tensor: String,
        /// Index of the first such element.
        element: usize,
    },
    /// The tokenizer has more tokens than the model has logits.
    #[error("{file}: the tokenizer has {tokens} tokens, but the model has only {rows} logits", file = file.display())]
    VocabularySize {
        /// The model.
        file: PathBuf,
        /// Tokens in the vocabulary.
        tokens: usize,
        /// Rows of the output matrix.
        rows: usize,
    },
    /// A JSON file of the model is malformed.
    #[error("{file}: {problem}", file = file.display())]
    BadSidecar {
        /// The file.
        file: PathBuf,
        /// Problem.
        problem: String,
    },
    /// The model needs more memory than is available.
    #[error(
        "{file}: needs {needed} of memory (weights {weights}, KV cache {cache}, buffers {buffers}), {available} is available; \
         a smaller context (-c) or KV type (-ctk, -ctv) may fit",
        file = file.display(),
        needed = bytes(*weights + *cache + *buffers), weights = bytes(*weights), cache = bytes(*cache), buffers = bytes(*buffers),
        available = bytes(*available)
    )]
    OutOfMemory {
        /// The model.
        file: PathBuf,
        /// Bytes of the weights.
        weights: u64,
        /// Bytes of the KV cache.
        cache: u64,
        /// Bytes of the buffers.
        buffers: u64,
        /// Bytes of available memory.
        available: u64,
    },
}

/// Formats a size in MiB or GiB.
fn bytes(n: u64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    const MIB: f64 = (1u64 << 20) as f64;
    if n as f64 >= GIB {
        format!("{:.2} GiB", n as f64 / GIB)
    } else {
        format!("{:.1} MiB", n as f64 / MIB)
    }
}
