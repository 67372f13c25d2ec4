//! Prompts and answers for tests of the engine.

use oxidize_core::Error;
use oxidize_core::engine::{Completion, Token, TokenStream};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::model::Model;

/// Golden model, from its GGUF file.
pub(crate) fn golden(name: &str) -> Model {
    // In memory, so that the model outlives the file.
    let bytes = std::fs::read(oxidize_golden::build(name).gguf()).unwrap();
    let file = ModelFile::from_bytes(bytes, &OpenOptions::default()).unwrap();
    Model::from_file(file).unwrap()
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
