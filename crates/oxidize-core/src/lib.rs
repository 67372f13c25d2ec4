//! Runs large language models: GGUF and safetensors files, tokenizers, chat templates, samplers, continuous batching.
//!
//! This crate is the engine of [oxidize](https://docs.rs/oxidize); applications use the crate `oxidize`, which
//! re-exports the items below.
//!
//! # Three lines
//!
//! ```no_run
//! # fn main() -> Result<(), oxidize_core::Error> {
//! let model = oxidize_core::Model::load("model.gguf")?;
//! let engine = oxidize_core::Engine::new(model)?;
//! for token in engine.chat("Why is the sky blue?")? { print!("{}", token?.text); }
//! # Ok(())
//! # }
//! ```
//!
//! # The names you need
//!
//! | Task | Items |
//! |---|---|
//! | Load a model | [`Model`], [`OpenOptions`], [`Limits`] |
//! | Run it | [`Engine`], [`EngineConfig`], [`Request`], [`TokenStream`], [`Token`] |
//! | Chat | [`Conversation`], [`Message`], [`ChatTemplate`] |
//! | Control the output | [`SamplingParams`], [`Grammar`], [`Adapter`] |
//! | Texts and vectors | [`Tokenizer`], [`Embedder`] |
//! | Errors | [`Error`], [`Result`] |
//!
//! The other items at the root are the types of their fields and arguments; the crate `oxidize` has them in modules.
//!
//! # Requests
//!
//! A [`Request`] has a prompt (text, tokens or a [`Conversation`]), sampling settings, limits, a grammar, adapter scales
//! and a priority. Requests that run at the same time share every step, so submit them before reading the first answer:
//!
//! ```no_run
//! use oxidize_core::{Conversation, Engine, Model, Request};
//!
//! # fn main() -> Result<(), oxidize_core::Error> {
//! let engine = Engine::new(Model::load("model.gguf")?)?;
//! let streams: Vec<_> = ["Norway", "Italy", "Japan"]
//!     .iter()
//!     .map(|country| {
//!         let conversation = Conversation::new()
//!             .system("Answer in one word.")
//!             .user(format!("What is the capital of {country}?"));
//!         engine.submit(Request::chat(conversation).max_tokens(16).temperature(0.0))
//!     })
//!     .collect::<Result<_, _>>()?;
//! for stream in streams {
//!     println!("{}", stream.text()?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Streams
//!
//! A [`TokenStream`] is an [`Iterator`] and a `futures` stream of tokens. Dropping it cancels the request. At the end,
//! [`TokenStream::completion`] returns the finish reason, token counts and timings.
//!
//! # Prefix cache
//!
//! Requests that begin alike share the keys and values of their common prefix. [`EngineConfig::cache_tokens`] sets the
//! capacity, [`EngineConfig::disk`] keeps it across restarts, and [`Request::cache_salt`] separates tenants.
//!
//! # Stability
//!
//! The items at the root follow semantic versioning. The feature `unstable` serves the other crates of the workspace: it
//! makes modules and methods public that change in any release, and lets structs that may get more fields be built by
//! literals.

#![deny(unsafe_code)]
#![cfg_attr(
    not(feature = "unstable"),
    allow(
        dead_code,
        unused_imports,
        unreachable_pub,
        reason = "internal modules serve the other crates of the workspace"
    )
)]

pub mod error;
mod math;
mod names;

#[cfg(feature = "unstable")]
pub mod arch;
#[cfg(not(feature = "unstable"))]
mod arch;
#[cfg(feature = "unstable")]
pub mod backend;
#[cfg(not(feature = "unstable"))]
mod backend;
#[cfg(feature = "unstable")]
pub mod builder;
#[cfg(not(feature = "unstable"))]
mod builder;
#[cfg(feature = "unstable")]
pub mod chat;
#[cfg(not(feature = "unstable"))]
mod chat;
#[cfg(feature = "unstable")]
pub mod clock;
#[cfg(not(feature = "unstable"))]
mod clock;
#[cfg(feature = "unstable")]
pub mod embedding;
#[cfg(not(feature = "unstable"))]
mod embedding;
#[cfg(feature = "unstable")]
pub mod engine;
#[cfg(not(feature = "unstable"))]
mod engine;
#[cfg(feature = "unstable")]
pub mod file;
#[cfg(not(feature = "unstable"))]
mod file;
#[cfg(feature = "unstable")]
pub mod grammar;
#[cfg(not(feature = "unstable"))]
mod grammar;
#[cfg(feature = "unstable")]
pub mod graph;
#[cfg(not(feature = "unstable"))]
mod graph;
#[cfg(feature = "unstable")]
pub mod io;
#[cfg(not(feature = "unstable"))]
mod io;
#[cfg(feature = "unstable")]
pub mod kv;
#[cfg(not(feature = "unstable"))]
mod kv;
#[cfg(feature = "unstable")]
pub mod limits;
#[cfg(not(feature = "unstable"))]
mod limits;
#[cfg(feature = "unstable")]
pub mod model;
#[cfg(not(feature = "unstable"))]
mod model;
#[cfg(feature = "unstable")]
pub mod recipe;
#[cfg(not(feature = "unstable"))]
mod recipe;
#[cfg(feature = "unstable")]
pub mod sampling;
#[cfg(not(feature = "unstable"))]
mod sampling;
#[cfg(feature = "unstable")]
pub mod scheduler;
#[cfg(not(feature = "unstable"))]
mod scheduler;
#[cfg(feature = "unstable")]
pub mod speculative;
#[cfg(not(feature = "unstable"))]
mod speculative;
#[cfg(feature = "unstable")]
pub mod synth;
#[cfg(not(feature = "unstable"))]
mod synth;
#[cfg(feature = "unstable")]
pub mod threads;
#[cfg(not(feature = "unstable"))]
mod threads;
#[cfg(feature = "unstable")]
pub mod tokenizer;
#[cfg(not(feature = "unstable"))]
mod tokenizer;
#[cfg(feature = "unstable")]
pub mod weights;
#[cfg(not(feature = "unstable"))]
mod weights;

#[cfg(feature = "unstable")]
pub use file::{gguf, safetensors};
#[cfg(feature = "unstable")]
pub use model::lora;

pub use backend::RepackLimit;
pub use chat::{
    Capabilities, ChatInput, ChatOptions, ChatTemplate, Content, ContentPart, Conversation,
    FunctionCall, Message, ParsedMessage, Reasoning, RenderedPrompt, Thinking, ToolCall,
};
pub use embedding::{Embedder, EmbedderConfig, Pooling};
pub use engine::{
    Completion, DiskCache, Engine, EngineConfig, EngineState, FinishReason, LogitsProcessor,
    Prompt, PromptProgress, PromptToken, Request, Stepper, StreamEvent, Timings, Token,
    TokenStream,
};
pub use error::{Error, Result};
pub use file::gguf::MetadataValue;
pub use file::{OpenOptions, Progress};
pub use grammar::Grammar;
pub use limits::Limits;
pub use model::Model;
pub use model::lora::Adapter;
pub use oxidize_kernels::KvType;
pub use sampling::{
    DryParams, MirostatMode, MirostatParams, SamplerKind, SamplingParams, TokenScore,
};
pub use speculative::{DraftCounts, DraftParams, DraftSource, Speculation};
pub use threads::Spawner;
pub use tokenizer::{DecodeOptions, EncodeOptions, StreamDecoder, TokenPair, Tokenizer};
