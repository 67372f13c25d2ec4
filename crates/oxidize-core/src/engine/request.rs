//! What goes into an engine and what comes out.

use crate::grammar::{Grammar, GrammarError};
use crate::sampling::{SamplingError, SamplingParams};
use crate::scheduler::{ConfigError, SubmitError};
use crate::speculative::{DraftCounts, SpeculationError};
use std::time::Duration;

/// A prompt, and how to go on from it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// How tokens are chosen, and the strings that end the answer.
    pub sampling: SamplingParams,
    /// The form that the answer has to have. It ends when it is complete.
    pub grammar: Option<Grammar>,
    /// Most tokens of the answer; as many as the context holds where `None`.
    pub max_tokens: Option<usize>,
    /// Goes on past the model's end-of-text tokens.
    pub ignore_eos: bool,
    /// Whether control tokens show in the text.
    pub render_special: bool,
    /// How strongly each of the model's adapters takes part; as the model says where `None`.
    pub adapters: Option<Vec<f32>>,
    /// Higher goes first.
    pub priority: i32,
    /// Requests with different salts share no cached prefix.
    pub salt: u64,
    /// Most tokens guessed at a time where the engine speculates; its own setting where `None`, and no
    /// guesses with 0.
    pub max_draft: Option<usize>,
}

/// What happens to a request, in order: tokens, then the end.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A new token.
    Token(Token),
    /// Nothing more will come.
    Finished(Finished),
}

/// A token of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The text that became certain with it: empty while a character or a stop string may be
    /// incomplete.
    pub text: String,
    /// Its log probability, if asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens with their log probabilities, if asked for.
    pub top: Vec<(u32, f32)>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Text that was held back until now.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that an earlier request had computed.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// The seed that was used.
    pub seed: u64,
    /// Guesses of a speculating engine.
    pub drafts: DraftCounts,
    /// How long it took.
    pub timings: Timings,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its text.
    EndOfText,
    /// A stop string came up: its place in the request's list.
    StopString(usize),
    /// As many tokens as were asked for, or as fit.
    Length,
}

/// How long the parts of a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From submission to the first step.
    pub queued: Duration,
    /// From the first step to the first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub generation: Duration,
}

/// Why an engine could not be started or a request not be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The scheduler cannot work with these settings.
    #[error(transparent)]
    Config(ConfigError),
    /// The context is longer than the model can make use of.
    #[error("a context of {asked} tokens was asked for, the model was trained on {limit}")]
    ContextTooLong {
        /// Tokens that were asked for.
        asked: usize,
        /// Tokens that the model was trained on.
        limit: usize,
    },
    /// The system refused a thread.
    #[error("cannot start the engine's thread: {0}")]
    Thread(std::io::Error),
    /// The request cannot be queued.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A sampling parameter is wrong, or the model's logits are no numbers.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A request speaks of adapters that the model does not have, or of a strength that is none.
    #[error(
        "adapter strengths {given:?}: the model has {loaded} adapters, and each strength is a number"
    )]
    Adapters {
        /// What the request has.
        given: Vec<f32>,
        /// How many the model has.
        loaded: usize,
    },
    /// The grammar is wrong, or asks for too much.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The draft model does not fit the model, or a setting of speculation is wrong.
    #[error(transparent)]
    Speculation(SpeculationError),
    /// A beam search of no beams, or of too many.
    #[error("a beam search with {0} beams, 1 to 64 are possible")]
    Beams(usize),
    /// A token of the prompt is not in the vocabulary.
    #[error("prompt token {token} is out of range: the vocabulary has {n_vocab} tokens")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// One past the last.
        n_vocab: usize,
    },
    /// A text that an embedding is wanted of is empty or does not fit.
    #[error("a text of {tokens} tokens, at least 1 and at most {n_ctx} have an embedding")]
    TextLength {
        /// Its tokens.
        tokens: usize,
        /// How many fit.
        n_ctx: usize,
    },
    /// The model makes embeddings or scores.
    #[error("{0} makes no text: it is for embeddings")]
    NoText(&'static str),
    /// The model has no classifier.
    #[error("this {0} gives no scores: it has no classifier")]
    NoScores(&'static str),
    /// The engine has ended.
    #[error("the engine has stopped")]
    Stopped,
    /// A fault inside the engine ended the request.
    #[error("internal error: {0}")]
    Internal(String),
}
