//! safetensors, the file format of Hugging Face: a JSON table of tensors, then their data.
//!
//! [`read`] checks a header; [`load`] finds the files of a model and what lies beside them; [`mlx`]
//! presents weights that MLX quantised as plain ones. [`crate::file`] is what users open.
//!
//! Format: <https://huggingface.co/docs/safetensors>

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod error;
mod index;
mod load;
mod mlx;
mod read;

pub use error::{Problem, SafetensorsError};
pub use load::SafetensorsLoader;
pub(crate) use mlx::MlxTensor;
pub use read::{Header, parse};
