//! From a Hugging Face directory to a small GGUF of known quality: convert, quantise, measure.
//!
//! [`quantize`] makes a smaller model of a model, choosing types by [`plan`] and weighing errors by
//! an [`importance`] matrix; [`compare`] says what that cost. [`tensor`] is what they all read from,
//! [`output`] what they write to. Everything streams: of a model, a few tensors are in memory.

#![deny(unsafe_code)]
// They panic where nobody reads: `say!` and `remark!` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod choice;
pub mod commands;
pub mod compare;
pub mod convert;
pub mod encode;
mod error;
pub mod evaluate;
pub mod html;
pub mod imatrix;
pub mod importance;
pub mod in_memory;
pub mod lora;
pub mod output;
pub mod plan;
pub mod quantize;
pub mod report;
pub mod sketch;
pub mod source;
pub mod split;
pub mod target;
pub mod tensor;
pub mod text;
pub mod wording;
mod write_behind;

pub use error::{Error, Result};
