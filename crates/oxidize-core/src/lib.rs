//! The library behind oxidize: files → model → plan → tokens.
//!
//! [`file`] opens a model, whatever its format ([`gguf`], [`safetensors`]), within the caps of
//! [`limits`]; everything that can go wrong is an [`Error`].

#![deny(unsafe_code)]

pub mod error;
pub mod file;
pub mod gguf;
pub mod io;
pub mod limits;
mod names;
pub mod safetensors;

pub use error::{Error, Result};
pub use limits::Limits;
