//! Conversion, quantization and evaluation of models.
//!
//! [`convert`] turns a Hugging Face directory into a GGUF file. [`quantize`] writes a model with other tensor
//! types, chosen by [`plan`] and weighted by an [`importance`] matrix. [`compare`] measures the KL divergence
//! to the source. All of them read a [`tensor`] at a time and write an [`output`]; only a few tensors are in
//! memory.

#![deny(unsafe_code)]
// A library does not print; the subcommands of `oxidize` do.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod calibrate;
pub mod compare;
pub mod convert;
mod error;
pub mod evaluate;
pub mod html;
pub mod imatrix;
pub mod importance;
pub mod in_memory;
pub mod lora;
pub mod multiple_choice;
pub mod output;
pub mod plan;
pub mod plural;
pub mod quantize;
pub mod report;
pub mod sketch;
pub mod source;
pub mod split;
pub mod target;
pub mod tensor;
pub mod text;
pub mod workers;
mod write_behind;

pub use error::{Error, Result};
