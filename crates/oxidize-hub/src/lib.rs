//! Models by name: `hf:user/repo:QUANT`, `ollama:name`, `ms:user/repo` and `https://…/model.gguf`.
//!
//! [`ModelRef`] is a parsed name. [`Hub::pull`] fetches its files: several ranged connections per file, resumed after
//! an interruption, verified by their checksum, and renamed when complete. Files of the Hugging Face hub lie in the
//! hub's own cache, which other tools share. [`Library`] lists and removes what is there. The crate prints nothing:
//! an [`Observer`] receives the progress.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)
)]

mod client;
mod disk;
mod download;
mod error;
mod hf;
mod hub;
mod library;
mod modelscope;
mod ollama;
mod pieces;
mod progress;
pub mod quantization;
mod recommend;
mod reference;
mod repo_cache;
mod select;
mod settings;
mod url;
mod web;

pub use client::Cancel;
pub use disk::touch;
pub use error::{Error, Result};
pub use hf::{Found, FoundModel};
pub use hub::{Hub, Memory, PullOptions, Pulled};
pub use library::{Library, LocalModel, Sharing};
pub use progress::{Observer, Progress, Stage};
pub use recommend::{Recommendation, Task, recommend};
pub use reference::{ModelRef, OllamaRef, RepoRef, Wanted};
pub use select::Candidate;
pub use settings::{Settings, Token};
