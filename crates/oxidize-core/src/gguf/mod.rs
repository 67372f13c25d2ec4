//! GGUF, the file format of llama.cpp: metadata, a table of tensors, then their data.
//!
//! [`read`] checks a header and makes [`Metadata`] and tensor infos of it; [`value`] is what
//! metadata holds; [`split`] joins files; [`Writer`] writes them. [`crate::file`] is what users open.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod error;
mod load;
mod metadata;
mod read;
pub mod split;
mod value;
mod write;

pub use error::{GgufError, Problem, Subject};
pub use load::GgufLoader;
pub(crate) use load::open_parts;
pub use metadata::Metadata;
pub use read::{Header, parse};
pub use value::{Array, Value, ValueType, Values};
pub use write::{ArrayBuf, Planned, ValueBuf, WriteError, Writer};

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Where tensor data is aligned to if `general.alignment` does not say otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Says that the Q8_0 matrices of a file are [`TensorType::INT8`](oxidize_kernels::quant::TensorType::INT8):
/// all blocks of a row have the same scale.
pub const INT8_KEY: &str = "oxidize.int8";
