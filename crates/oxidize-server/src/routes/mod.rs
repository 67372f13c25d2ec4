//! The endpoints. Each file holds one API or a part of one: typed requests, which become a
//! [`GenerationRequest`](crate::generate::GenerationRequest), and typed responses.

pub mod anthropic;
pub mod chat;
pub mod completions;
mod conversation;
pub mod embeddings;
pub mod health;
pub mod models;
pub mod native;
pub mod ollama;
pub mod responses;

use crate::error::{ApiError, ApiResult};

/// Maximum number of tokens of an answer: vLLM and llama-server write -1 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenLimit {
    /// The field is not set.
    Unset,
    /// No limit but the context.
    Unlimited,
    /// This many tokens.
    Tokens(usize),
}

impl TokenLimit {
    /// The limit in a field.
    pub(crate) fn new(name: &str, n: Option<i32>) -> ApiResult<TokenLimit> {
        match n {
            None => Ok(TokenLimit::Unset),
            Some(-1) => Ok(TokenLimit::Unlimited),
            Some(n) => match usize::try_from(n) {
                Ok(n) => Ok(TokenLimit::Tokens(n)),
                Err(_) => Err(ApiError::bad_request(format!(
                    "{name} is {n}; it must be at least 0, or -1 for no limit"
                ))),
            },
        }
    }

    /// The limit, or `default` if the field is not set.
    pub(crate) fn or(self, default: Option<usize>) -> Option<usize> {
        match self {
            TokenLimit::Unset => default,
            TokenLimit::Unlimited => None,
            TokenLimit::Tokens(n) => Some(n),
        }
    }
}

/// Checks the number of most likely tokens to report beside each token of a prompt.
pub(crate) fn prompt_logprobs(n: Option<u32>) -> ApiResult<Option<u32>> {
    n.map(|n| bounded("prompt_logprobs", n, 0, 20)).transpose()
}

/// Checks that a number is within bounds.
pub(crate) fn bounded(name: &str, n: u32, low: u32, high: u32) -> ApiResult<u32> {
    if (low..=high).contains(&n) {
        return Ok(n);
    }
    let message = format!("{name} is {n}; it must be between {low} and {high}");
    Err(ApiError::bad_request(message))
}
