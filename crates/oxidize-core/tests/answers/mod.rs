//! What tests of the engine ask, and how they read the answers.

use oxidize_core::Error;
use oxidize_core::engine::{Event, Finished, Token, TokenStream};
use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;
use std::path::PathBuf;

/// A golden model, if it is there.
pub(crate) fn golden(name: &str) -> Option<Model> {
    let shared = std::env::var_os("OXIDIZE_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let path = shared.join("golden").join(name).join("model.gguf");
    if !path.exists() {
        eprintln!("SKIPPED: no golden model at {}", path.display());
        return None;
    }
    Some(Model::load(path, &OpenOptions::default()).unwrap())
}

/// Tokens of plain text, different for each seed.
pub(crate) fn prompt(seed: u32, len: usize) -> Vec<u32> {
    let token = |i: u32| 5 + (i * i * 31 + i * 7 + seed * 101) % 315;
    (0..len as u32).map(token).collect()
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<Token>,
    pub(crate) text: String,
    pub(crate) finished: Finished,
}

impl Answer {
    /// The numbers of its tokens.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

/// Reads a stream to its end.
pub(crate) fn read(stream: TokenStream) -> Result<Answer, Error> {
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for event in stream {
        match event? {
            Event::Token(token) => {
                text.push_str(&token.text);
                tokens.push(token);
            }
            Event::Finished(finished) => {
                text.push_str(&finished.text);
                return Ok(Answer {
                    tokens,
                    text,
                    finished,
                });
            }
        }
    }
    panic!("the stream ended without saying why");
}
