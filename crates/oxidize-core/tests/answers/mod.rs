//! Prompts and answers for tests of the engine.

use oxidize_core::Error;
use oxidize_core::engine::{Completion, Token, TokenStream};
use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;
use std::path::PathBuf;

/// Golden model, if it is present.
pub(crate) fn golden(name: &str) -> Option<Model> {
    let shared = std::env::var_os("OXIDIZE_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let path = shared.join("golden").join(name).join("model.gguf");
    if !path.exists() {
        eprintln!("SKIPPED: no golden model at {}", path.display());
        return None;
    }
    Some(Model::load_with(path, &OpenOptions::default()).unwrap())
}

/// Tokens of plain text, which differ by seed.
pub(crate) fn prompt(seed: u32, len: usize) -> Vec<u32> {
    let token = |i: u32| 5 + (i * i * 31 + i * 7 + seed * 101) % 315;
    (0..len as u32).map(token).collect()
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<Token>,
    pub(crate) text: String,
    pub(crate) completion: Completion,
}

impl Answer {
    /// Token ids.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

/// Reads a stream to its end.
pub(crate) fn read(mut stream: TokenStream) -> Result<Answer, Error> {
    let tokens = stream.by_ref().collect::<Result<Vec<Token>, Error>>()?;
    let text = tokens.iter().map(|token| token.text.as_str()).collect();
    let completion = stream.completion().cloned();
    Ok(Answer {
        tokens,
        text,
        completion: completion.expect("the stream ended without a finish reason"),
    })
}
