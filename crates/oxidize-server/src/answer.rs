//! What APIs say about an answer in common: how many tokens, how long it took, how likely they were.

use oxidize_core::engine::Finished;
use oxidize_core::tokenizer::Tokenizer;
use serde::Serialize;
use utoipa::ToSchema;

use crate::generate::{End, StopReason, TokenInfo};

/// Tokens of a request, as OpenAI counts them.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answers.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// What is known of the prompt's.
    pub prompt_tokens_details: PromptTokens,
}

/// What is known of a prompt's tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct PromptTokens {
    /// Those that an earlier request had computed.
    pub cached_tokens: usize,
}

impl Usage {
    /// Counts an answer; `n` answers share a prompt.
    pub fn add(&mut self, end: &End, n: usize) {
        let finished = &end.finished;
        if end.choice.is_multiple_of(n.max(1)) {
            self.prompt_tokens += finished.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += finished.cached_tokens;
        }
        self.completion_tokens += finished.generated_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }

    /// Counts texts that were only read.
    pub fn of_prompt(prompt_tokens: usize) -> Usage {
        Usage {
            prompt_tokens,
            total_tokens: prompt_tokens,
            ..Usage::default()
        }
    }
}

/// How long an answer took, by llama-server's names.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Timings {
    /// Prompt tokens that an earlier request had computed.
    pub cache_n: usize,
    /// Prompt tokens that were computed.
    pub prompt_n: usize,
    /// Time from the first step to the first token.
    pub prompt_ms: f64,
    /// Prompt tokens computed a second.
    pub prompt_per_second: f64,
    /// Tokens of the answer.
    pub predicted_n: usize,
    /// Time from the first token to the last.
    pub predicted_ms: f64,
    /// Tokens a second after the first.
    pub predicted_per_second: f64,
    /// Time from arrival to the first step.
    pub queued_ms: f64,
}

impl Timings {
    /// Those of an answer.
    pub fn of(finished: &Finished) -> Timings {
        let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
        let rate = |tokens: usize, ms: f64| {
            if ms > 0.0 {
                tokens as f64 / ms * 1e3
            } else {
                0.0
            }
        };
        let computed = finished
            .prompt_tokens
            .saturating_sub(finished.cached_tokens);
        let (prompt_ms, predicted_ms) =
            (ms(finished.timings.prompt), ms(finished.timings.generation));
        Timings {
            cache_n: finished.cached_tokens,
            prompt_n: computed,
            prompt_ms,
            prompt_per_second: rate(computed, prompt_ms),
            predicted_n: finished.generated_tokens,
            predicted_ms,
            // The first token comes with the prompt.
            predicted_per_second: rate(finished.generated_tokens.saturating_sub(1), predicted_ms),
            queued_ms: ms(finished.timings.queued),
        }
    }
}

/// Why an answer ended, in OpenAI's words.
pub fn finish_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Stop | StopReason::StopString => "stop",
        StopReason::Length => "length",
        StopReason::ToolCalls => "tool_calls",
    }
}

/// Log probabilities of a chat's tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry a token.
    pub content: Vec<TokenLogprob>,
    /// Always null.
    pub refusal: Option<String>,
}

/// A token and how likely it was.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TokenLogprob {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub token: String,
    /// Its log probability.
    pub logprob: f32,
    /// Its text as bytes, which may be part of a character.
    pub bytes: Vec<u8>,
    /// The most likely tokens in its place.
    pub top_logprobs: Vec<TopLogprob>,
}

/// A token that could have been.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TopLogprob {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub token: String,
    /// Its log probability.
    pub logprob: f32,
    /// Its text as bytes.
    pub bytes: Vec<u8>,
}

/// Below this, a log probability is of no use, and JSON has no −∞.
const LEAST: f32 = -9999.0;

/// Log probabilities of tokens, for chats.
pub fn chat_logprobs(tokenizer: &Tokenizer, tokens: &[TokenInfo]) -> ChatLogprobs {
    ChatLogprobs {
        content: tokens
            .iter()
            .map(|token| token_logprob(tokenizer, token))
            .collect(),
        refusal: None,
    }
}

/// A token and those that could have been.
pub fn token_logprob(tokenizer: &Tokenizer, token: &TokenInfo) -> TokenLogprob {
    let bytes = bytes_of(tokenizer, token.id);
    TokenLogprob {
        id: token.id,
        token: String::from_utf8_lossy(&bytes).into_owned(),
        logprob: finite(token.logprob.unwrap_or(LEAST)),
        bytes,
        top_logprobs: token
            .top
            .iter()
            .map(|&(id, logprob)| {
                let bytes = bytes_of(tokenizer, id);
                TopLogprob {
                    id,
                    token: String::from_utf8_lossy(&bytes).into_owned(),
                    logprob: finite(logprob),
                    bytes,
                }
            })
            .collect(),
    }
}

/// The text of a token; bytes that are no text become U+FFFD.
pub fn text_of(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(&bytes_of(tokenizer, id)).into_owned()
}

fn bytes_of(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    tokenizer.piece(id).unwrap_or_default().to_vec()
}

/// A log probability that JSON can hold.
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() {
        logprob.max(LEAST)
    } else {
        LEAST
    }
}
