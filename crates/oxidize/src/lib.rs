//! Run large language models from Rust.
//!
//! oxidize loads GGUF files and Hugging Face directories of safetensors, and runs them on the CPU with kernels chosen
//! for the machine. It has tokenizers, chat templates, samplers, grammars, LoRA, embeddings and continuous batching in
//! one crate, without a C++ toolchain.
//!
//! # Quick start
//!
//! ```no_run
//! # fn main() -> Result<(), oxidize::Error> {
//! let model = oxidize::Model::load("model.gguf")?;
//! let engine = oxidize::Engine::new(model)?;
//! for token in engine.chat("Why is the sky blue?")? { print!("{}", token?.text); }
//! # Ok(())
//! # }
//! ```
//!
//! [`Model::load`] takes a GGUF file or a directory with `config.json` and safetensors. Weights are memory-mapped, so
//! loading takes milliseconds. [`Engine::new`] starts an engine on a thread of its own; [`Engine::chat`] renders the
//! model's chat template and returns a [`TokenStream`].
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
//! The modules have the types of their fields and arguments: [`chat`], [`embedding`], [`engine`], [`error`],
//! [`sampling`], [`speculation`] and [`tokenizer`]. Structs that may get more fields are `#[non_exhaustive]`: make them
//! with `default()` or `new()`, and set fields by assignment or by the method of the same name.
//!
//! # Conversations
//!
//! A [`Conversation`] holds messages, tools and template variables. The prefix cache keeps what earlier turns computed,
//! so sending the whole conversation every time costs only its new part.
//!
//! ```no_run
//! use oxidize::{Conversation, Engine, Message, Model};
//!
//! # fn main() -> oxidize::Result<()> {
//! let engine = Engine::new(Model::load("model.gguf")?)?;
//! let mut conversation = Conversation::new().system("You are brief.");
//! for question in ["Who wrote Faust?", "When?"] {
//!     conversation = conversation.user(question);
//!     let answer = engine.chat(conversation.clone())?.text()?;
//!     println!("{answer}");
//!     conversation = conversation.push(Message::new("assistant", answer));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Sampling and stopping
//!
//! [`Engine::request`] starts from the model's recommended settings; every setting of llama.cpp's samplers is in
//! [`SamplingParams`].
//!
//! ```no_run
//! # use oxidize::{Engine, Model};
//! # fn main() -> oxidize::Result<()> {
//! # let engine = Engine::new(Model::load("model.gguf")?)?;
//! let request = engine
//!     .request("Once upon a time")
//!     .with_sampling(|sampling| {
//!         sampling.temperature = 0.7;
//!         sampling.min_p = 0.1;
//!         sampling.repeat_penalty = 1.1;
//!     })
//!     .stop("\n\n")
//!     .max_tokens(200);
//! println!("{}", engine.submit(request)?.text()?);
//! # Ok(())
//! # }
//! ```
//!
//! # Structured output
//!
//! A [`Grammar`] constrains the answer to a JSON schema, a GBNF grammar, a regular expression or a Lark grammar.
//!
//! ```no_run
//! # use oxidize::{Engine, Grammar, Model, Request};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let engine = Engine::new(Model::load("model.gguf")?)?;
//! let schema = r#"{
//!     "type": "object",
//!     "properties": { "name": { "type": "string" }, "born": { "type": "integer" } },
//!     "required": ["name", "born"]
//! }"#;
//! let request = Request::chat("Who wrote Faust?").grammar(Grammar::json_schema(schema)?);
//! println!("{}", engine.submit(request)?.text()?);
//! # Ok(())
//! # }
//! ```
//!
//! # Many requests, async
//!
//! Requests that run at the same time share every step of the model, which multiplies the throughput. Submit from as
//! many threads or tasks as you like: [`Engine`] is cheap to clone, and a [`TokenStream`] is an [`Iterator`] and a
//! `futures` stream. Dropping a stream cancels its request.
//!
//! # Embeddings
//!
//! ```no_run
//! use oxidize::{Embedder, Model};
//!
//! # fn main() -> oxidize::Result<()> {
//! let mut embedder = Embedder::new(&Model::load("all-MiniLM-L6-v2")?)?;
//! let vectors = embedder.embed(&["A cat sits outside.", "The weather is lovely."])?;
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! Every fallible function returns [`Error`], whose message names the file, the field and the limit. Broken or hostile
//! model files are errors, never panics; [`Limits`] bounds what a file may ask for.
//!
//! The repository's `examples` directory has a program for each of these tasks, and for LoRA adapters and tools.

pub use oxidize_core::{
    Adapter, ChatTemplate, Conversation, Embedder, Engine, EngineConfig, Error, Grammar, Limits,
    Message, Model, OpenOptions, Request, Result, SamplingParams, Token, TokenStream, Tokenizer,
    error,
};

/// Messages, tool calls and templates in detail.
pub mod chat {
    pub use oxidize_core::{
        Capabilities, ChatInput, ChatOptions, Content, ContentPart, FunctionCall, ParsedMessage,
        Reasoning, RenderedPrompt, Thinking, ToolCall,
    };
}

/// Settings of an [`Embedder`].
pub mod embedding {
    pub use oxidize_core::{EmbedderConfig, Pooling};
}

/// Settings of an [`Engine`], prompts, and the end of an answer.
pub mod engine {
    pub use oxidize_core::{
        Completion, DiskCache, EngineState, FinishReason, KvType, LogitsProcessor, Prompt,
        PromptProgress, PromptToken, RepackLimit, Spawner, Stepper, StreamEvent, Timings,
    };
}

/// Values for [`OpenOptions::override_metadata`].
pub mod file {
    pub use oxidize_core::MetadataValue;
}

/// Parameters of single samplers, and their order.
pub mod sampling {
    pub use oxidize_core::{DryParams, MirostatMode, MirostatParams, SamplerKind, TokenScore};
}

/// Speculative decoding: drafts from n-grams or a smaller model, verified in one step.
pub mod speculation {
    pub use oxidize_core::{DraftCounts, DraftParams, DraftSource, Speculation};
}

/// Options of encoding and decoding, and streams of text.
pub mod tokenizer {
    pub use oxidize_core::{DecodeOptions, EncodeOptions, StreamDecoder, TokenPair};
}
