//! Parts of an answer that several APIs report: token counts, timings, finish reasons, log probabilities.

use oxidize_core::engine::{self, Completion, PromptProgress, PromptToken, Token};
use oxidize_core::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::generate::End;

/// Token counts of a request, as OpenAI reports them.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens in the prompts.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Sum of prompt and completion tokens.
    pub total_tokens: usize,
    /// Breakdown of the prompt tokens.
    pub prompt_tokens_details: PromptTokens,
    /// Breakdown of the generated tokens.
    pub completion_tokens_details: CompletionTokens,
}

/// Breakdown of prompt tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct PromptTokens {
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: usize,
}

/// Breakdown of generated tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct CompletionTokens {
    /// Tokens of reasoning before the answer.
    pub reasoning_tokens: usize,
    /// Draft tokens that became tokens of the answer.
    pub accepted_prediction_tokens: usize,
    /// Draft tokens that were rejected.
    pub rejected_prediction_tokens: usize,
}

impl Usage {
    /// Adds an answer; `n` answers share a prompt, which is counted once.
    pub fn add(&mut self, end: &End, n: usize) {
        let finished = &end.completion;
        if end.choice.is_multiple_of(n.max(1)) {
            self.prompt_tokens += finished.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += finished.cached_tokens;
        }
        self.completion_tokens += finished.generated_tokens;
        let details = &mut self.completion_tokens_details;
        details.reasoning_tokens += finished.reasoning_tokens;
        details.accepted_prediction_tokens += finished.drafts.accepted;
        details.rejected_prediction_tokens += finished.drafts.drafted - finished.drafts.accepted;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }

    /// Usage of a request that generates nothing, such as one for embeddings.
    pub fn of_prompt(prompt_tokens: usize) -> Usage {
        Usage {
            prompt_tokens,
            total_tokens: prompt_tokens,
            ..Usage::default()
        }
    }
}

/// Timings of an answer, with llama-server's field names.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Timings {
    /// Prompt tokens found in the prefix cache.
    pub cache_n: usize,
    /// Prompt tokens computed.
    pub prompt_n: usize,
    /// Prompt processing time in milliseconds, from the first step to the first token.
    pub prompt_ms: f64,
    /// Prompt processing speed in tokens per second.
    pub prompt_per_second: f64,
    /// Tokens generated.
    pub predicted_n: usize,
    /// Generation time in milliseconds, from the first token to the last.
    pub predicted_ms: f64,
    /// Generation speed in tokens per second, without the first token.
    pub predicted_per_second: f64,
    /// Queueing time in milliseconds, from arrival to the first step.
    pub queued_ms: f64,
    /// Draft tokens of speculative decoding that were verified.
    pub draft_n: usize,
    /// Draft tokens that were accepted.
    pub draft_n_accepted: usize,
}

impl Timings {
    /// Timings of a finished answer.
    pub fn of(finished: &Completion) -> Timings {
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
            // The last step of prompt processing yields the first token.
            predicted_per_second: rate(finished.generated_tokens.saturating_sub(1), predicted_ms),
            queued_ms: ms(finished.timings.queued),
            draft_n: finished.drafts.drafted,
            draft_n_accepted: finished.drafts.accepted,
        }
    }
}

/// Progress of a prompt, with llama-server's field names.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ProgressOut {
    /// Tokens in the prompt.
    pub total: usize,
    /// Tokens found in the prefix cache.
    pub cache: usize,
    /// Tokens that are computed or were cached.
    pub processed: usize,
    /// Time since the first step, in milliseconds.
    pub time_ms: u64,
}

impl From<PromptProgress> for ProgressOut {
    fn from(progress: PromptProgress) -> ProgressOut {
        ProgressOut {
            total: progress.total,
            cache: progress.cached,
            processed: progress.processed,
            time_ms: progress.time.as_millis() as u64,
        }
    }
}

/// Reason why an answer ended. Each API has its own names for the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its text, or the grammar is complete.
    Stop,
    /// This stop string occurred.
    StopString(String),
    /// This stop token occurred.
    StopToken(u32),
    /// `max_tokens` or the context limit was reached.
    Length,
    /// The model called tools.
    ToolCalls,
}

impl FinishReason {
    /// The engine's reason, with its index resolved against the stop strings of the request.
    pub fn new(reason: engine::FinishReason, stops: &[String], called_tools: bool) -> FinishReason {
        match reason {
            engine::FinishReason::StopToken(token) => FinishReason::StopToken(token),
            engine::FinishReason::StopString(index) => {
                FinishReason::StopString(stops.get(index).cloned().unwrap_or_default())
            }
            engine::FinishReason::Length | engine::FinishReason::ContextFull => {
                FinishReason::Length
            }
            _ if called_tools => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        }
    }

    /// The stop string that occurred.
    pub fn stop_string(&self) -> Option<&str> {
        match self {
            FinishReason::StopString(stop) => Some(stop),
            _ => None,
        }
    }

    /// Name in OpenAI's API.
    pub fn openai(&self) -> &'static str {
        match self {
            FinishReason::Stop | FinishReason::StopString(_) | FinishReason::StopToken(_) => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
        }
    }

    /// Name in Anthropic's API.
    pub fn anthropic(&self) -> &'static str {
        match self {
            FinishReason::Stop | FinishReason::StopToken(_) => "end_turn",
            FinishReason::StopString(_) => "stop_sequence",
            FinishReason::Length => "max_tokens",
            FinishReason::ToolCalls => "tool_use",
        }
    }

    /// Name in Ollama's API.
    pub fn ollama(&self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            _ => "stop",
        }
    }

    /// Name in llama-server's API.
    pub fn llama_server(&self) -> &'static str {
        match self {
            FinishReason::Stop | FinishReason::ToolCalls => "eos",
            FinishReason::StopString(_) | FinishReason::StopToken(_) => "word",
            FinishReason::Length => "limit",
        }
    }
}

/// A token with its log probability.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TokenLogprob {
    /// Token id.
    pub id: u32,
    /// Text of the token. Bytes that are not valid UTF-8 become U+FFFD.
    pub token: String,
    /// Log probability of the token.
    pub logprob: f32,
    /// Bytes of the token, which may be part of a character.
    pub bytes: Vec<u8>,
    /// The most likely tokens at this position.
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the most likely tokens at a position.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TopLogprob {
    /// Token id.
    pub id: u32,
    /// Text of the token. Bytes that are not valid UTF-8 become U+FFFD.
    pub token: String,
    /// Log probability of the token.
    pub logprob: f32,
    /// Bytes of the token, which may be part of a character.
    pub bytes: Vec<u8>,
}

/// A token of a prompt with its score after the tokens before it.
#[derive(Clone, Debug)]
pub struct PromptLogprob {
    /// The token; the first one has a log probability of 0, as nothing is before it.
    pub token: TopLogprob,
    /// Place of the token among all, from 1; `None` for the first token.
    pub rank: Option<usize>,
    /// The most likely tokens in its place.
    pub top: Vec<TopLogprob>,
}

impl PromptLogprob {
    /// A token of a prompt.
    pub fn new(tokenizer: &Tokenizer, token: &PromptToken) -> PromptLogprob {
        let score = token.score.as_ref();
        let top = score.into_iter().flat_map(|score| &score.top);
        PromptLogprob {
            token: TopLogprob::new(
                tokenizer,
                token.id,
                score.map_or(0.0, |score| score.logprob),
            ),
            rank: score.map(|score| score.rank),
            top: top
                .map(|&(id, logprob)| TopLogprob::new(tokenizer, id, logprob))
                .collect(),
        }
    }

    /// Log probability; `None` for the first token.
    pub fn logprob(&self) -> Option<f32> {
        self.rank.map(|_| self.token.logprob)
    }

    /// The entry of a `prompt_logprobs` list as vLLM returns it: the token and the most likely ones by id, or
    /// null for the first token.
    pub fn vllm(&self) -> Value {
        let Some(rank) = self.rank else {
            return Value::Null;
        };
        let entry = |token: &TopLogprob, rank: usize| {
            let shown = json!({
                "logprob": token.logprob, "rank": rank, "decoded_token": token.token,
            });
            (token.id.to_string(), shown)
        };
        let top = self.top.iter().zip(1..).map(|(top, rank)| entry(top, rank));
        let all = top.chain([entry(&self.token, rank)]);
        Value::Object(all.collect())
    }
}

/// Lower bound of reported log probabilities: JSON has no −∞.
const MIN_LOGPROB: f32 = -9999.0;

impl TokenLogprob {
    /// A generated token and the most likely ones in its place.
    pub fn new(tokenizer: &Tokenizer, token: &Token) -> TokenLogprob {
        let logprob = token.logprob.unwrap_or(MIN_LOGPROB);
        let chosen = TopLogprob::new(tokenizer, token.id, logprob);
        let top = token.top.iter();
        TokenLogprob {
            id: chosen.id,
            token: chosen.token,
            logprob: chosen.logprob,
            bytes: chosen.bytes,
            top_logprobs: top
                .map(|&(id, logprob)| TopLogprob::new(tokenizer, id, logprob))
                .collect(),
        }
    }
}

impl TopLogprob {
    fn new(tokenizer: &Tokenizer, id: u32, logprob: f32) -> TopLogprob {
        let bytes = tokenizer.piece(id).unwrap_or_default().to_vec();
        TopLogprob {
            id,
            token: String::from_utf8_lossy(&bytes).into_owned(),
            logprob: if logprob.is_finite() {
                logprob.max(MIN_LOGPROB)
            } else {
                MIN_LOGPROB
            },
            bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finish_reasons_have_a_name_in_each_api() {
        let stops = ["a".to_owned(), "b".to_owned()];
        let reason = |reason, called_tools| FinishReason::new(reason, &stops, called_tools);
        let stopped = reason(engine::FinishReason::StopString(1), false);
        assert_eq!(stopped.stop_string(), Some("b"));
        assert_eq!(
            (stopped.openai(), stopped.anthropic()),
            ("stop", "stop_sequence")
        );
        assert_eq!((stopped.ollama(), stopped.llama_server()), ("stop", "word"));
        let called = reason(engine::FinishReason::EndOfText, true);
        assert_eq!(
            (called.openai(), called.anthropic()),
            ("tool_calls", "tool_use")
        );
        // Calls that were cut short are not complete.
        assert_eq!(
            reason(engine::FinishReason::Length, true),
            FinishReason::Length
        );
    }
}
