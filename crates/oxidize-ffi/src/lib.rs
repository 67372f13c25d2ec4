//! The C API of oxidize: a shared and a static library with a header, `include/oxidize.h`.
//!
//! This crate is for programs in C and other languages that call C; Rust programs use the crate `oxidize`. The book's
//! page "C API" is the guide, `examples/c` and `examples/go` of the repository have programs.
//!
//! Every function returns a [`Status`](status::Status). Things are handles, numbers that [`handle`] looks up in a table:
//! a handle that is 0, was freed, or belongs to something else is an error, never a pointer to nothing. Nothing unwinds
//! out of a function, and no memory changes its owner: texts and arrays are copied into buffers of the caller
//! ([`mod@pointer`]).
//!
//! cbindgen writes the header from these modules (`make ffi-header`), and a test compares the two.

#![deny(clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod embedder;
pub mod engine;
pub mod handle;
pub mod lora;
pub mod model;
pub mod pointer;
pub mod request;
pub mod status;
pub mod stream;
pub mod tokenizer;
pub mod version;
