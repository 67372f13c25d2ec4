//! The endpoints. Each file is one API, or a part of one: typed request in, the shared path of
//! [`generate`](crate::generate), the API's own words out.

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

/// A number of tokens that a client asked for.
pub(crate) fn token_count(name: &str, asked: Option<u32>) -> ApiResult<Option<usize>> {
    match asked {
        Some(n) if n > i32::MAX as u32 => {
            let message = format!("{name} is {n}; it must be at most {}", i32::MAX);
            Err(ApiError::bad_request(message))
        }
        n => Ok(n.map(|n| n as usize)),
    }
}

/// A number that has to be within bounds.
pub(crate) fn bounded(name: &str, asked: u32, low: u32, high: u32) -> ApiResult<u32> {
    if (low..=high).contains(&asked) {
        return Ok(asked);
    }
    let message = format!("{name} is {asked}; it must be between {low} and {high}");
    Err(ApiError::bad_request(message))
}
