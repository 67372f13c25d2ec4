//! Prompts that are text instead of a conversation: [`Prompt`], and [`Infill`] for models trained to fill
//! gaps.

use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

/// One or several prompts, each as text or as token ids.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    TokenLists(Vec<Vec<u32>>),
}

impl Prompt {
    /// Number of prompts.
    pub fn count(&self) -> usize {
        match self {
            Prompt::Text(_) => 1,
            Prompt::Tokens(tokens) => usize::from(!tokens.is_empty()),
            Prompt::Texts(list) => list.len(),
            Prompt::TokenLists(list) => list.len(),
        }
    }

    /// Token ids of each prompt. An empty prompt becomes the BOS token, if the model has one.
    pub fn tokens(self, tokenizer: &Tokenizer) -> Vec<Vec<u32>> {
        let encode = |text: String| tokenizer.encode(&text, EncodeOptions::default());
        let lists = match self {
            Prompt::Text(text) => vec![encode(text)],
            Prompt::Tokens(tokens) => vec![tokens],
            Prompt::Texts(texts) => texts.into_iter().map(encode).collect(),
            Prompt::TokenLists(lists) => lists,
        };
        let or_bos = |tokens: Vec<u32>| match tokens.is_empty() {
            true => tokenizer.bos().into_iter().collect(),
            false => tokens,
        };
        lists.into_iter().map(or_bos).collect()
    }

    /// Text of each prompt.
    pub fn texts(self, tokenizer: &Tokenizer) -> Vec<String> {
        let decode = |tokens: &Vec<u32>| tokenizer.decode(tokens);
        match self {
            Prompt::Text(text) => vec![text],
            Prompt::Tokens(tokens) => vec![decode(&tokens)],
            Prompt::Texts(texts) => texts,
            Prompt::TokenLists(lists) => lists.iter().map(decode).collect(),
        }
    }
}

/// A gap in a text, to be filled by a model trained for it (fill-in-the-middle).
#[derive(Clone, Debug, Default)]
pub struct Infill {
    /// Text before the gap.
    pub prefix: String,
    /// Text after the gap.
    pub suffix: String,
    /// Names and texts of other files of the same project.
    pub files: Vec<(String, String)>,
}

impl Infill {
    /// Tokens of the prompt: files, prefix and suffix between the model's FIM tokens.
    pub fn tokens(&self, tokenizer: &Tokenizer) -> ApiResult<Vec<u32>> {
        let ids = tokenizer.special_ids();
        let (Some(prefix), Some(suffix), Some(middle)) =
            (ids.fim_prefix, ids.fim_suffix, ids.fim_middle)
        else {
            return Err(ApiError::not_supported(
                "this model has no fill-in-the-middle tokens and cannot fill gaps",
            ));
        };
        let encode = |text: &str| tokenizer.encode(text, EncodeOptions::PLAIN);
        let mut tokens = Vec::new();
        if tokenizer.adds_bos() {
            tokens.extend(tokenizer.bos());
        }
        for (name, text) in &self.files {
            match ids.fim_separator {
                Some(separator) => {
                    tokens.push(separator);
                    tokens.extend(encode(&format!("{name}\n")));
                }
                None => tokens.extend(encode(&format!("\n\n--- {name} ---\n\n"))),
            }
            tokens.extend(encode(text));
        }
        tokens.push(prefix);
        tokens.extend(encode(&self.prefix));
        tokens.push(suffix);
        tokens.extend(encode(&self.suffix));
        tokens.push(middle);
        Ok(tokens)
    }
}
