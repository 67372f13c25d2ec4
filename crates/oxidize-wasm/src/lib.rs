//! The engine of oxidize for hosts of JavaScript: browsers, Node and Deno.
//!
//! [`Loader`] collects model files in WebAssembly's memory and makes a [`Host`] of them, an engine that a Web Worker
//! steps. Requests, events and settings are JSON; `web/package` is the other side.

#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod answer;
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod bindings;
mod checksum;
mod error;
mod host;
mod loader;
mod options;
mod request;
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod workers;

pub use checksum::{Digest, fast_checksum};
pub use error::{Code, Failure};
pub use host::Host;
pub use loader::Loader;
pub use options::LoadOptions;
pub use request::RequestOptions;
