//! The endpoints. Each file holds one API or a part of one: typed requests, which become a
//! [`GenerationRequest`](crate::generate::GenerationRequest), and typed responses.

pub mod anthropic;
pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod health;
pub mod models;
pub mod native;
pub mod ollama;
pub mod responses;

use crate::error::{ApiError, ApiResult};

/// Checks a number of tokens.
pub(crate) fn token_count(name: &str, n: Option<u32>) -> ApiResult<Option<usize>> {
    match n {
        Some(n) if n > i32::MAX as u32 => {
            let message = format!("{name} is {n}; it must be at most {}", i32::MAX);
            Err(ApiError::bad_request(message))
        }
        n => Ok(n.map(|n| n as usize)),
    }
}

/// Checks that a number is within bounds.
pub(crate) fn bounded(name: &str, n: u32, low: u32, high: u32) -> ApiResult<u32> {
    if (low..=high).contains(&n) {
        return Ok(n);
    }
    let message = format!("{name} is {n}; it must be between {low} and {high}");
    Err(ApiError::bad_request(message))
}
