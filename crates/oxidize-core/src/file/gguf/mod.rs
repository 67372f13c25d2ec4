//! GGUF, the file format of llama.cpp: metadata, a table of tensors, and their data.
//!
//! [`read`] parses and checks a header; [`value`] defines metadata values; [`split`] names the
//! files of split models; [`Writer`] writes files. Users open files with
//! [`ModelFile`](crate::file::ModelFile).
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod error;
mod load;
mod metadata;
mod overrides;
mod read;
pub mod split;
mod value;
mod write;

pub use error::{GgufError, Problem, Subject};
pub use load::GgufLoader;
pub(crate) use load::{open_parts, open_parts_in_memory};
pub use metadata::Metadata;
pub use overrides::MetadataValue;
pub use read::{Header, parse};
pub use value::{Array, Value, ValueType, Values};
pub use write::{ArrayBuf, Planned, ValueBuf, WriteError, Writer};

/// First four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Alignment of tensor data without `general.alignment`.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Metadata key for files whose Q8_0 matrices have type
/// [`TensorType::INT8`](oxidize_kernels::quant::TensorType::INT8): all blocks of a row have the
/// same scale.
pub const INT8_KEY: &str = "oxidize.int8";
