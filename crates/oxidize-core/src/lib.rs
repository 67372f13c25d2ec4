//! The library behind oxidize: files → model → plan → tokens.
//!
//! [`mod@file`] opens a model, whatever its format ([`gguf`], [`safetensors`]), within the caps of
//! [`limits`]; everything that can go wrong is an [`Error`].

#![deny(unsafe_code)]

pub mod arch;
pub mod backend;
pub mod chat;
pub mod embedding;
pub mod engine;
pub mod error;
pub mod file;
pub mod gguf;
pub mod grammar;
pub mod graph;
pub mod io;
pub mod kv;
pub mod limits;
pub mod lora;
mod math;
pub mod mix;
pub mod model;
mod names;
pub mod safetensors;
pub mod sampling;
pub mod scheduler;
pub mod speculative;
pub mod synth;
pub mod tokenizer;

pub use error::{Error, Result};
pub use limits::Limits;
