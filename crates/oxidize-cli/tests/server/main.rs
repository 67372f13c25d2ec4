//! Tests of `oxidize serve` over HTTP, on a free port, with a tiny model.

#![cfg(unix)]

mod anthropic;
mod chat;
mod determinism;
mod disk;
mod drafts;
mod faults;
#[path = "../../../oxidize-core/tests/faulty_backend/mod.rs"]
#[allow(dead_code, reason = "the engine's own tests use the rest")]
mod faulty_backend;
mod fields;
mod http;
mod numbers;
mod ollama;
mod operations;
mod page;
mod reasoning;
mod requests;
mod running;
mod tenants;
mod text;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use http::Reply;
use running::{
    ENDLESS, Running, command, endless, fixture, start, start_command, start_endless, start_with,
    tiny, wait_until,
};
use serde_json::{Value, json};

/// A chat request of one user message, sampled greedily.
fn question(text: &str, max_tokens: usize) -> Value {
    json!({
        "messages": [{ "role": "user", "content": text }],
        "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true,
    })
}
