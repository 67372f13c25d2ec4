//! Requests to an engine and its events and errors.

use super::processor::LogitsProcessor;
use crate::chat::{Conversation, Reasoning};
use crate::error::Result;
use crate::grammar::{Grammar, GrammarError};
use crate::model::Model;
use crate::sampling::{SamplingError, SamplingParams, TokenScore};
use crate::scheduler::{ConfigError, SubmitError};
use crate::speculative::{DraftCounts, DraftParams, SpeculationError};
use crate::tokenizer::EncodeOptions;
use std::sync::Arc;
use std::time::Duration;

/// A request: a prompt, sampling settings and limits.
///
/// Every field has a method of the same name, so that a request reads as one expression.
///
/// ```
/// use oxidize::{Grammar, Request};
///
/// let request = Request::new("The capital of France is")
///     .max_tokens(16)
///     .temperature(0.0)
///     .stop("\n")
///     .grammar(Grammar::Regex("[A-Z][a-z]+".into()));
/// ```
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct Request {
    /// The prompt: text, tokens or a conversation.
    pub prompt: Prompt,
    /// Sampling settings and stop strings; the model's own defaults where `None`.
    pub sampling: Option<SamplingParams>,
    /// Grammar that constrains the answer, which ends when the grammar is complete.
    pub grammar: Option<Grammar>,
    /// Code that changes the logits before everything else does, or ends the answer. Log probabilities are those of the
    /// changed logits.
    pub logits_processor: Option<Arc<dyn LogitsProcessor>>,
    /// Maximum number of tokens to generate; as many as the context holds where `None`.
    pub max_tokens: Option<usize>,
    /// Continue past end-of-generation tokens.
    pub ignore_eos: bool,
    /// Include control tokens in the text.
    pub render_special: bool,
    /// Compute the whole prompt, even if a prefix of it is cached.
    pub ignore_cache: bool,
    /// `Some(n)` reports the log probability of each token of the prompt and of the n most likely ones. The whole
    /// prompt is computed, in small steps, so that few logits are in memory at a time.
    pub prompt_logprobs: Option<u32>,
    /// Report the progress of the prompt; see [`TokenStream::poll_event`](super::TokenStream::poll_event).
    pub report_progress: bool,
    /// Scale of each LoRA adapter; the model's defaults where `None`.
    pub adapters: Option<Vec<f32>>,
    /// Scheduling priority; higher runs first.
    pub priority: i32,
    /// Namespace of the prefix cache: requests with different salts share no cached prefix.
    pub cache_salt: u64,
    /// Drafting, where the engine speculates.
    pub drafts: DraftParams,
    /// Reasoning that precedes the answer, for a prompt of tokens that was rendered from a conversation
    /// ([`RenderedPrompt::reasoning`](crate::chat::RenderedPrompt)). A grammar applies after it. A
    /// [`Prompt::Chat`] brings its own.
    pub reasoning: Option<Reasoning>,
}

/// The input of a [`Request`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one prompt per request, and it is moved once"
)]
pub enum Prompt {
    /// Text to continue. Special tokens such as BOS are added as the model expects; the text of a control token
    /// stays text.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
    /// A conversation, rendered with the model's chat template.
    Chat(Conversation),
}

impl Default for Prompt {
    fn default() -> Prompt {
        Prompt::Tokens(Vec::new())
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Prompt {
        Prompt::Tokens(tokens)
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Prompt {
        Prompt::Tokens(tokens.to_vec())
    }
}

impl From<Conversation> for Prompt {
    fn from(conversation: Conversation) -> Prompt {
        Prompt::Chat(conversation)
    }
}

impl Request {
    /// A request to continue `prompt`: text, tokens or a [`Conversation`].
    pub fn new(prompt: impl Into<Prompt>) -> Request {
        Request {
            prompt: prompt.into(),
            ..Request::default()
        }
    }

    /// A request to answer `conversation`, which may be a single user message.
    ///
    /// ```
    /// use oxidize::{Conversation, Request};
    ///
    /// let short = Request::chat("Why is the sky blue?");
    /// let long = Request::chat(Conversation::new().system("Answer in one sentence.").user("Why?"));
    /// ```
    pub fn chat(conversation: impl Into<Conversation>) -> Request {
        Request::new(conversation.into())
    }

    /// Sets all sampling settings.
    #[must_use]
    pub fn sampling(mut self, sampling: SamplingParams) -> Request {
        self.sampling = Some(sampling);
        self
    }

    /// Changes the sampling settings in place. Where none are set, this starts from [`SamplingParams::default`];
    /// [`Engine::request`](super::Engine::request) starts from the model's.
    #[must_use]
    pub fn with_sampling(mut self, change: impl FnOnce(&mut SamplingParams)) -> Request {
        change(self.sampling.get_or_insert_default());
        self
    }

    /// Sets the sampling temperature; 0 takes the most likely token.
    #[must_use]
    pub fn temperature(self, temperature: f32) -> Request {
        self.with_sampling(|sampling| sampling.temperature = temperature)
    }

    /// Sets the seed of the sampler: equal seeds give equal answers.
    #[must_use]
    pub fn seed(self, seed: u64) -> Request {
        self.with_sampling(|sampling| sampling.seed = Some(seed))
    }

    /// Adds a string that ends the answer and is not part of it.
    #[must_use]
    pub fn stop(self, stop: impl Into<String>) -> Request {
        self.with_sampling(|sampling| sampling.stop.push(stop.into()))
    }

    /// Constrains the answer to a grammar.
    #[must_use]
    pub fn grammar(mut self, grammar: Grammar) -> Request {
        self.grammar = Some(grammar);
        self
    }

    /// Changes the logits before each token by code, which may also end the answer.
    #[must_use]
    pub fn logits_processor(mut self, processor: impl LogitsProcessor + 'static) -> Request {
        self.logits_processor = Some(Arc::new(processor));
        self
    }

    /// Limits the number of generated tokens.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: usize) -> Request {
        self.max_tokens = Some(max_tokens);
        self
    }

    /// Continues past end-of-generation tokens.
    #[must_use]
    pub fn ignore_eos(mut self) -> Request {
        self.ignore_eos = true;
        self
    }

    /// Includes control tokens in the text.
    #[must_use]
    pub fn render_special(mut self) -> Request {
        self.render_special = true;
        self
    }

    /// Ends the answer before a token.
    #[must_use]
    pub fn stop_token(self, token: u32) -> Request {
        self.with_sampling(|sampling| sampling.stop_tokens.push(token))
    }

    /// Sets the minimum number of generated tokens.
    #[must_use]
    pub fn min_tokens(self, min_tokens: u32) -> Request {
        self.with_sampling(|sampling| sampling.min_tokens = min_tokens)
    }

    /// Computes the whole prompt, even if a prefix of it is cached.
    #[must_use]
    pub fn ignore_cache(mut self) -> Request {
        self.ignore_cache = true;
        self
    }

    /// Reports the log probability of each token of the prompt and of the `n` most likely ones.
    #[must_use]
    pub fn prompt_logprobs(mut self, n: u32) -> Request {
        self.prompt_logprobs = Some(n);
        self
    }

    /// Reports the progress of the prompt.
    #[must_use]
    pub fn report_progress(mut self) -> Request {
        self.report_progress = true;
        self
    }

    /// Sets the scale of each LoRA adapter, in the order of [`Model::with_adapters`](crate::model::Model::with_adapters).
    #[must_use]
    pub fn adapters(mut self, scales: impl Into<Vec<f32>>) -> Request {
        self.adapters = Some(scales.into());
        self
    }

    /// Sets the scheduling priority; higher runs first.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Request {
        self.priority = priority;
        self
    }

    /// Separates the request from cached prefixes of requests with another salt.
    #[must_use]
    pub fn cache_salt(mut self, cache_salt: u64) -> Request {
        self.cache_salt = cache_salt;
        self
    }

    /// Limits the draft tokens per step of a speculating engine; 0 turns speculation off.
    #[must_use]
    pub fn max_draft(mut self, max_draft: usize) -> Request {
        self.drafts.max_tokens = Some(max_draft);
        self
    }

    /// Predicts the answer, so that a speculating engine is faster as far as it comes true.
    #[must_use]
    pub fn prediction(mut self, answer: impl Into<String>) -> Request {
        self.drafts.prediction = Some(answer.into());
        self
    }
}

/// A prompt in tokens and the sampling settings it is continued with.
pub(super) struct Resolved {
    pub(super) tokens: Vec<u32>,
    pub(super) sampling: SamplingParams,
    pub(super) reasoning: Option<Reasoning>,
}

impl Request {
    /// Tokenizes the prompt and fills in the model's sampling defaults.
    pub(super) fn resolve(&self, model: &Model) -> Result<Resolved> {
        let mut reasoning = self.reasoning.clone();
        let tokens = match &self.prompt {
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Text(text) => model.tokenizer()?.encode(
                text,
                EncodeOptions {
                    add_special: true,
                    parse_special: false,
                },
            ),
            Prompt::Chat(conversation) => {
                let template = model.chat_template_or_default()?;
                let prompt = conversation.render(template, model.tokenizer()?)?;
                reasoning = reasoning.or(prompt.reasoning);
                prompt.tokens
            }
        };
        let sampling = self.sampling.clone();
        Ok(Resolved {
            tokens,
            sampling: sampling.unwrap_or_else(|| model.sampling_defaults()),
            reasoning,
        })
    }
}

/// An event of a request: the prompt first, then tokens, then the end.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// Scores of tokens of the prompt, in order.
    PromptLogprobs(Vec<PromptToken>),
    /// Progress of the prompt.
    Progress(PromptProgress),
    /// A generated token.
    Token(Token),
    /// The end of the answer.
    Completion(Completion),
}

/// An event of a [`TokenStream`](super::TokenStream).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StreamEvent {
    /// Progress of the prompt, if [`Request::report_progress`] asks for it.
    Progress(PromptProgress),
    /// A generated token.
    Token(Token),
}

/// Progress of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptProgress {
    /// Tokens in the prompt.
    pub total: usize,
    /// Tokens that were found in the prefix cache.
    pub cached: usize,
    /// Tokens that are computed or were cached.
    pub processed: usize,
    /// Time since the first step.
    pub time: Duration,
}

/// A token of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptToken {
    /// Token id.
    pub id: u32,
    /// TokenScore after the tokens before it; `None` for the first token.
    pub score: Option<TokenScore>,
}

/// A generated token.
///
/// ```no_run
/// # let engine = oxidize::Engine::new(oxidize::Model::load("model.gguf")?)?;
/// // The three most likely tokens at each position.
/// let request = engine
///     .request("The capital of France is")
///     .with_sampling(|sampling| sampling.n_probs = Some(3));
/// for token in engine.submit(request)? {
///     let token = token?;
///     println!("{:?} {:?} {:?}", token.text, token.logprob, token.top);
/// }
/// # Ok::<(), oxidize::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// Text that became final with this token. Empty while a UTF-8 character or a stop string may be incomplete.
    pub text: String,
    /// Log probability, if [`SamplingParams::n_probs`] asks for it.
    pub logprob: Option<f32>,
    /// The most likely tokens and their log probabilities, if asked for.
    pub top: Vec<(u32, f32)>,
}

/// Finish reason, token counts and timings of an answer.
///
/// ```no_run
/// use oxidize::engine::FinishReason;
///
/// # let engine = oxidize::Engine::new(oxidize::Model::load("model.gguf")?)?;
/// let (text, completion) = engine.chat("Why is the sky blue?")?.collect_text()?;
/// if completion.finish_reason == FinishReason::ContextFull {
///     eprintln!("the context is full");
/// }
/// let seconds = completion.timings.generation.as_secs_f64();
/// println!("{text}\n{:.1} tokens/s", completion.generated_tokens as f64 / seconds);
/// # Ok::<(), oxidize::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// Reason for the end.
    pub finish_reason: FinishReason,
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens generated, without the end-of-generation token.
    pub generated_tokens: usize,
    /// Generated tokens that belong to reasoning before the answer.
    pub reasoning_tokens: usize,
    /// The token that ended the answer and is not part of it: an end-of-generation token or a stop token.
    pub end_token: Option<Token>,
    /// Seed of the sampler.
    pub seed: u64,
    /// Draft tokens proposed and accepted, where the engine speculates.
    pub drafts: DraftCounts,
    /// Durations of the phases.
    pub timings: Timings,
}

/// Reason why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model produced an end-of-generation token, or the grammar is complete.
    EndOfText,
    /// A stop string occurred: its index in the request's list.
    StopString(usize),
    /// A token of [`SamplingParams::stop_tokens`] was sampled.
    StopToken(u32),
    /// The [`LogitsProcessor`] of the request ended the answer.
    Processor,
    /// `max_tokens` was reached.
    Length,
    /// The context is full.
    ContextFull,
}

impl FinishReason {
    /// The reason for the end of an answer that no token or text ended.
    pub(super) fn of_length(generated_tokens: usize, max_tokens: Option<usize>) -> FinishReason {
        match max_tokens {
            Some(limit) if generated_tokens >= limit => FinishReason::Length,
            _ => FinishReason::ContextFull,
        }
    }
}

/// Durations of the phases of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// Submission to first step.
    pub queued: Duration,
    /// First step to first token: prompt processing.
    pub prompt: Duration,
    /// First token to last token.
    pub generation: Duration,
}

/// Error of an engine: it could not start, or a request could not be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine configuration is invalid.
    #[error(transparent)]
    Config(ConfigError),
    /// The context is longer than the model was trained for.
    #[error("context of {requested} tokens requested; the model was trained on {limit}")]
    ContextTooLong {
        /// Tokens requested.
        requested: usize,
        /// Context length of the model.
        limit: usize,
    },
    /// The operating system refused to start a thread.
    #[error("cannot start the engine thread: {0}")]
    Thread(std::io::Error),
    /// There is no thread for the engine.
    #[error("no thread can be started for the engine: use `Engine::stepped`")]
    NoThread,
    /// A stream was read by waiting on a platform where that is not possible.
    #[error(
        "this platform cannot wait for tokens: read the stream with `recv().await` or `try_recv`"
    )]
    WouldBlock,
    /// The request cannot be queued.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A sampling parameter is out of range, or the logits are not finite.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The logits processor of the request failed.
    #[error("logits processor: {0}")]
    Processor(String),
    /// The number of adapter scales does not match the model, or a scale is not finite.
    #[error(
        "adapter scales {given:?}: the model has {loaded} adapters, and scales are finite numbers"
    )]
    Adapters {
        /// Scales of the request.
        given: Vec<f32>,
        /// Adapters of the model.
        loaded: usize,
    },
    /// The grammar is invalid or exceeds a limit.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The draft model does not match the model, or a speculation setting is invalid.
    #[error(transparent)]
    Speculation(SpeculationError),
    /// The number of beams is out of range.
    #[error("beam search with {0} beams; 1 to 64 are supported")]
    Beams(usize),
    /// A prompt token is outside the vocabulary.
    #[error("prompt token {token} is out of range; the vocabulary has {n_vocab} tokens")]
    TokenOutOfRange {
        /// Token id.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The input of an embedding is empty or too long.
    #[error("input has {tokens} tokens; 1 to {n_ctx} are supported")]
    TextLength {
        /// Tokens of the input.
        tokens: usize,
        /// Context length.
        n_ctx: usize,
    },
    /// The model computes embeddings or scores, not text.
    #[error("{0} models do not generate text; use embeddings")]
    NoText(&'static str),
    /// The model has no classification head.
    #[error("this {0} model has no classifier and gives no scores")]
    NoScores(&'static str),
    /// The model reads the prompt with an encoder, which predicts no tokens.
    #[error("{0} models give no log probabilities of the prompt: an encoder reads it")]
    NoPromptLogprobs(&'static str),
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
    /// A fault inside the engine ended the request.
    #[error("internal error: {0}")]
    Internal(String),
}
