//! HTTP server for local models, compatible with clients of OpenAI, Anthropic, Ollama and llama-server.
//!
//! A request passes the middleware of [`app`] (log, errors, hosts, keys) and one of the [`routes`], which
//! turns it into a [`GenerationRequest`](generate::GenerationRequest) for [`generate`]. [`models`] holds the
//! engines, [`server`] the connections. [`run`] starts the server.

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
pub mod constraint;
pub mod drafts;
pub mod error;
pub mod fields;
pub mod generate;
pub mod keep_alive;
pub mod limits;
pub mod metrics;
pub mod models;
pub mod openapi;
pub mod prompt;
pub mod reasoning;
pub mod routes;
pub mod sampling;
pub mod server;
pub mod state;
pub mod stream;
pub mod tools;
pub mod webpage;

pub use config::{ModelSpec, ServerConfig};
pub use server::{ServeError, Server, run};
pub use state::AppState;
