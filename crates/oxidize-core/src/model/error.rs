//! What can be wrong with a model whose file is well formed.

use oxidize_kernels::quant::TensorType;
use std::path::PathBuf;

/// Why a file that can be read cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The model has nothing that embeddings could be taken from.
    #[error("{file}: the model has no hidden states to make embeddings of", file = file.display())]
    NoHiddenStates {
        /// The model.
        file: PathBuf,
    },
    /// No descriptor has this name.
    #[error("{file}: architecture {name:?} is not supported; the nearest that are: {nearest}", file = file.display())]
    UnknownArchitecture {
        /// The model.
        file: PathBuf,
        /// What it calls itself.
        name: String,
        /// Supported names that look like it.
        nearest: String,
    },
    /// A GGUF model has no form as a Hugging Face directory.
    #[error("{file}: a model of {name} cannot be written as a Hugging Face directory: {problem}", file = file.display())]
    NotInHuggingFace {
        /// The model.
        file: PathBuf,
        /// Its architecture.
        name: String,
        /// Why.
        problem: String,
    },
    /// A directory without the file that says what its weights are.
    #[error("{file}: there is no such file, and without it nobody knows what the weights are", file = file.display())]
    MissingConfig {
        /// Where it should be.
        file: PathBuf,
    },
    /// A hyper-parameter that the graph needs is not there.
    #[error("{file}: key {key:?} is missing", file = file.display())]
    MissingKey {
        /// The model.
        file: PathBuf,
        /// The key.
        key: String,
    },
    /// A hyper-parameter makes no sense, alone or beside the others.
    #[error("{file}: key {key:?}: {problem}", file = file.display())]
    BadValue {
        /// The model.
        file: PathBuf,
        /// The key.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// A tensor that the graph needs is not there.
    #[error("{file}: tensor {tensor:?} is missing", file = file.display())]
    MissingTensor {
        /// The model.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A layer has a tensor that its architecture, with these hyper-parameters, has no use for.
    #[error("{file}: tensor {tensor:?} has no place in this architecture", file = file.display())]
    UnusedTensor {
        /// The model.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor has another shape than the hyper-parameters ask for.
    #[error("{file}: tensor {tensor:?} has shape {shape:?}, expected {expected:?}", file = file.display())]
    TensorShape {
        /// The model.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape, rows first.
        shape: Vec<usize>,
        /// What it should be.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a way that cannot be used there.
    #[error("{file}: tensor {tensor:?} of type {ty}: {problem}", file = file.display())]
    TensorType {
        /// The model.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: TensorType,
        /// What is wrong.
        problem: String,
    },
    /// A weight is NaN or infinite.
    #[error("{file}: tensor {tensor:?}: element {element} is not a finite number", file = file.display())]
    NotFinite {
        /// The model.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Index of the first such element.
        element: usize,
    },
    /// The tokenizer has tokens that the model has no logits for.
    #[error("{file}: the tokenizer has {tokens} tokens, the model only {rows} rows of logits", file = file.display())]
    VocabularySize {
        /// The model.
        file: PathBuf,
        /// Tokens of the vocabulary.
        tokens: usize,
        /// Rows of the output matrix.
        rows: usize,
    },
    /// A JSON file beside the model is broken.
    #[error("{file}: {problem}", file = file.display())]
    BadSidecar {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The model needs more memory than there is.
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
        /// Bytes of everything else.
        buffers: u64,
        /// Bytes that the system can give.
        available: u64,
    },
}

/// A size for people.
fn bytes(n: u64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    const MIB: f64 = (1u64 << 20) as f64;
    if n as f64 >= GIB {
        format!("{:.2} GiB", n as f64 / GIB)
    } else {
        format!("{:.1} MiB", n as f64 / MIB)
    }
}
