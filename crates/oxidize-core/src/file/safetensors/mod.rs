//! safetensors, the file format of Hugging Face: a JSON table of tensors, and their data.
//!
//! [`read`] parses and checks a header; [`load`] finds the files of a model; [`packed`] presents
//! quantized weights as plain tensors. Users open files with [`ModelFile`](crate::file::ModelFile).
//!
//! Format: <https://huggingface.co/docs/safetensors>

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod error;
mod fp8;
mod index;
mod int4;
mod load;
mod mlx;
mod packed;
mod read;

pub use error::{Problem, SafetensorsError};
pub use load::SafetensorsLoader;
pub(crate) use packed::PackedTensor;
pub use read::{Header, parse};
