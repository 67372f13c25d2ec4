//! Serves local models over HTTP to clients of OpenAI, Anthropic, Ollama and llama-server.
//!
//! A request passes [`app`]'s layers (log, errors, hosts, keys), one file of [`routes`], and the one path to tokens
//! in [`generate`]; [`models`] holds the engines, [`server`] the connections. [`run`] is all of it.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)
)]

pub mod answer;
pub mod app;
pub mod auth;
pub mod body;
pub mod config;
pub mod conversation;
pub mod error;
pub mod generate;
pub mod infill;
pub mod limits;
pub mod metrics;
pub mod models;
pub mod openapi;
pub mod routes;
pub mod sampling;
pub mod server;
pub mod state;
pub mod stream;
pub mod tools;
pub mod webpage;

pub use config::{ModelSpec, ServeArgs};
pub use server::{ServeError, Server, run};
pub use state::AppState;
