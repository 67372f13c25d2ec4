//! The one path from the request of any API to tokens: a [`GenerationRequest`] is submitted to a model's
//! engine, and a [`Generation`] streams the answers as [`Update`]s, which each API serializes in its own
//! format.

mod choice;
mod completion;
mod request;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::StreamExt;
use oxidize_core::engine::{self, BeamParams, PromptProgress, Request, beam_search};

use crate::answer::{FinishReason, PromptLogprob, TokenLogprob};
use crate::auth::Client;
use crate::error::{ApiError, ApiResult};
use crate::limits::Permit;
use crate::models::{Loaded, Progress};
use crate::state::AppState;
use choice::{Choice, Source, StreamState};
pub use completion::{Call, Completion, collect, collect_one};
pub use request::{Chat, GenerationRequest, Input, Prepared, ResponseParser, Search, SearchFields};

/// Maximum number of answers of a request.
pub const MAX_ANSWERS: usize = 128;
/// Time in which an error still becomes the HTTP status of a streamed response; a later one becomes an event.
const FIRST_UPDATE_TIMEOUT: Duration = Duration::from_secs(1);
/// Message of a request that a panic ended. The panic hook has written the details to the log.
pub(crate) const PANICKED: &str =
    "internal error: the server panicked while it handled this request";

/// A step of one of the answers.
#[derive(Clone, Debug)]
pub enum Update {
    /// Progress of the prompt, if requested.
    Progress {
        /// Index of the answer.
        choice: usize,
        /// The progress.
        progress: PromptProgress,
    },
    /// The tokens of the prompt with their log probabilities, if requested. Before the answer.
    Prompt {
        /// Index of the answer.
        choice: usize,
        /// All tokens.
        tokens: Vec<PromptLogprob>,
    },
    /// More of an answer.
    Delta {
        /// Index of the answer.
        choice: usize,
        /// The new part.
        delta: Delta,
        /// Tokens of the part with their log probabilities, if requested.
        logprobs: Vec<TokenLogprob>,
    },
    /// The end of an answer.
    End(Box<End>),
}

/// A streamed part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// Reasoning before the answer.
    Reasoning(String),
    /// The answer itself.
    Content(String),
    /// The start of a tool call.
    CallStart {
        /// Index among the calls of the answer.
        index: usize,
        /// Identifier of the call.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// More of the arguments of a tool call.
    CallArguments {
        /// Index among the calls of the answer.
        index: usize,
        /// JSON text.
        text: String,
    },
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub struct End {
    /// Index of the answer.
    pub choice: usize,
    /// Reason for the end.
    pub reason: FinishReason,
    /// Tokens that came with no delta.
    pub logprobs: Vec<TokenLogprob>,
    /// Token counts and timings.
    pub completion: engine::Completion,
}

/// The running answers of a request. Dropping it cancels them.
pub struct Generation {
    choices: Vec<Choice>,
    /// The choice polled first, in turn, so that no answer starves another.
    next: usize,
    /// The first update, if [`Generation::peek_first`] received it.
    first: Option<ApiResult<Update>>,
    deadline: Pin<Box<tokio::time::Sleep>>,
    timeout: u64,
    over: bool,
    /// Number of answers to each prompt, and of those that are returned.
    selection: Selection,
    guard: RequestGuard,
}

/// Number of answers to each prompt that are generated, and of the most likely ones that are returned.
#[derive(Clone, Copy)]
struct Selection {
    candidates: usize,
    n: usize,
}

/// Ends a search whose client is gone.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Accounts for a generation when it is dropped, however it ends.
struct RequestGuard {
    state: AppState,
    client: Client,
    model: Arc<Loaded>,
    progress: Vec<Arc<Progress>>,
    n_finished: usize,
    failed: bool,
    _permit: Permit,
}

impl Generation {
    /// Loads the model, waits for admission and submits a request. Prompts are rendered and encoded on a
    /// blocking thread; a panic there ends this request alone.
    pub async fn begin(
        state: &AppState,
        client: &Client,
        request: GenerationRequest,
    ) -> ApiResult<Generation> {
        let n_answers = request.n_answers();
        if n_answers == 0 || n_answers > MAX_ANSWERS {
            let message =
                format!("{n_answers} answers were requested; 1 to {MAX_ANSWERS} are supported");
            return Err(ApiError::bad_request(message));
        }
        if state.is_draining() {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        client.enter()?;
        let model = state.models().get(request.model.as_deref()).await?;
        let permit = model.admission.enter(n_answers)?;
        let guard = RequestGuard {
            state: state.clone(),
            client: client.clone(),
            model,
            progress: Vec::new(),
            n_finished: 0,
            failed: false,
            _permit: permit,
        };
        let cancel = CancelOnDrop::default();
        let cancelled = cancel.0.clone();
        blocking(move || Generation::submit(guard, request, &cancelled)).await?
    }

    fn submit(
        mut guard: RequestGuard,
        request: GenerationRequest,
        cancelled: &AtomicBool,
    ) -> ApiResult<Generation> {
        let model = guard.model.clone();
        let selection = Selection {
            candidates: request.n_candidates(),
            n: request.n,
        };
        let search = request.search;
        let timeout = guard.state.config().limits.timeout;
        let deadline = Instant::now() + Duration::from_secs(timeout);
        let Prepared {
            prompts,
            request,
            parser,
            hide_reasoning,
        } = request.prepare(&model, &guard.client)?;
        let engine = model.engine()?;
        let log = guard.state.config().log.prompts;
        let mut choices = Vec::new();
        for (number, tokens) in prompts.into_iter().enumerate() {
            check_length(tokens.len(), request.max_tokens, engine.n_ctx())?;
            if log {
                let prompt = model.tokenizer()?.decode(&tokens);
                tracing::info!(client = guard.client.name(), prompt, "prompt");
            }
            let n_tokens = tokens.len();
            let request = Request {
                prompt: tokens.into(),
                ..request.clone()
            };
            let mut beams = match search {
                Search::Beams(params) => {
                    let going = || !cancelled.load(Ordering::Relaxed) && Instant::now() < deadline;
                    search_beams(&model, &request, params, going)?.into_iter()
                }
                _ => Vec::new().into_iter(),
            };
            if matches!(search, Search::Beams(_)) && Instant::now() >= deadline {
                return Err(ApiError::timed_out(timeout));
            }
            for candidate in 0..selection.candidates {
                let index = number * selection.candidates + candidate;
                let mut request = request.clone();
                let mut state = StreamState {
                    model: model.clone(),
                    index,
                    parser: parser.clone(),
                    hide_reasoning,
                    stops: Vec::new(),
                    logprobs: false,
                    scores_end: false,
                    log: log.then(|| guard.client.name().to_owned()),
                    call_prefix: guard.state.new_id("call_"),
                };
                if let Some(sampling) = &mut request.sampling {
                    // Answers of one request differ, and are the same each time.
                    sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(index as u64));
                    state.stops = sampling.stop.clone();
                    state.logprobs = sampling.n_probs.is_some();
                    state.scores_end = state.logprobs && request.prompt_logprobs.is_some();
                }
                let source = match search {
                    Search::Beams(_) => match beams.next() {
                        Some(answer) => answer,
                        // A grammar may have fewer answers than there are beams.
                        None => break,
                    },
                    _ => Source::Stream(engine.submit(request)?),
                };
                let progress = Arc::new(Progress {
                    id: guard.state.next_number(),
                    prompt_tokens: n_tokens,
                    generated: AtomicUsize::new(0),
                    since: Instant::now(),
                });
                model.running.insert(progress.clone());
                guard.progress.push(progress.clone());
                choices.push(Choice::new(source, progress, state));
            }
        }
        Ok(Generation {
            choices,
            next: 0,
            first: None,
            deadline: Box::pin(tokio::time::sleep(Duration::from_secs(timeout))),
            timeout,
            over: false,
            selection,
            guard,
        })
    }

    /// Waits a moment for the first update, so that an immediate error becomes the status of the response
    /// instead of an event in it.
    pub async fn peek_first(mut self) -> ApiResult<Generation> {
        if let Ok(Some(first)) = tokio::time::timeout(FIRST_UPDATE_TIMEOUT, self.next()).await {
            self.first = Some(Ok(first?));
        }
        Ok(self)
    }

    /// The model that generates the answers.
    pub fn model(&self) -> &Arc<Loaded> {
        &self.guard.model
    }

    /// Number of tokens of the first prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.choices
            .first()
            .map_or(0, |choice| choice.progress.prompt_tokens)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<ApiResult<Update>>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(ApiError::timed_out(self.timeout))));
        }
        let n = self.choices.len();
        for turn in 0..n {
            let at = (self.next + turn) % n;
            let Some(choice) = self
                .choices
                .get_mut(at)
                .filter(|choice| !choice.has_ended())
            else {
                continue;
            };
            if let Poll::Ready(update) = choice.poll(context) {
                self.next = (at + 1) % n;
                return Poll::Ready(Some(update));
            }
        }
        if self.choices.iter().all(Choice::has_ended) {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }
}

/// Searches for the most likely answers to a request. Blocks.
fn search_beams(
    model: &Loaded,
    request: &Request,
    params: BeamParams,
    keep_going: impl FnMut() -> bool,
) -> ApiResult<Vec<Source>> {
    let start = Instant::now();
    let found = beam_search(
        model.model(),
        model.backend(),
        model.engine_config(),
        request,
        params,
        keep_going,
    )?;
    let prompt_tokens = match &request.prompt {
        engine::Prompt::Tokens(tokens) => tokens.len(),
        _ => 0,
    };
    let took = start.elapsed();
    let answers = found.into_iter();
    Ok(answers
        .map(|answer| Source::found(answer, prompt_tokens, took))
        .collect())
}

/// Refuses a prompt that leaves no room for an answer, if there is to be one.
fn check_length(n_tokens: usize, max_tokens: Option<usize>, n_ctx: usize) -> ApiResult<()> {
    if n_tokens < n_ctx || n_tokens == n_ctx && max_tokens == Some(0) {
        return Ok(());
    }
    Err(ApiError {
        code: Some("context_length_exceeded"),
        ..ApiError::bad_request(format!(
            "the prompt has {n_tokens} tokens; with room for an answer, at most {} fit the context of {n_ctx}",
            n_ctx.saturating_sub(1)
        ))
    })
}

/// Runs blocking work on a thread of its own; a panic there is an error here.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    let result = tokio::task::spawn_blocking(work).await;
    result.map_err(|_| ApiError::internal(PANICKED))
}

impl Stream for Generation {
    type Item = ApiResult<Update>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<ApiResult<Update>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if self.over {
            return Poll::Ready(None);
        }
        let polled = catch_unwind(AssertUnwindSafe(|| self.poll(context)));
        let polled =
            polled.unwrap_or_else(|_| Poll::Ready(Some(Err(ApiError::internal(PANICKED)))));
        match &polled {
            Poll::Ready(Some(Ok(Update::End(end)))) => {
                self.guard.n_finished += 1;
                self.guard.state.metrics().finished(&end.completion);
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::warn!(model = self.guard.model.name, %error, "generation failed");
                self.over = true;
                self.guard.failed = true;
                self.choices.clear();
            }
            Poll::Ready(None) => self.over = true,
            _ => {}
        }
        polled
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut tokens = 0;
        for progress in &self.progress {
            self.model.running.remove(progress.id);
            tokens += progress.prompt_tokens + progress.generated.load(Ordering::Relaxed);
        }
        self.client.spend(tokens as u64);
        if self.n_finished < self.progress.len() && !self.failed {
            self.state.metrics().cancelled.increase();
            tracing::info!(
                client = self.client.name(),
                model = self.model.name,
                "client disconnected, request cancelled"
            );
        }
    }
}
