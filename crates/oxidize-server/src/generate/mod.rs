//! The one path from any API's request to tokens: a [`Job`] is submitted to a model's engine, and a [`Generation`]
//! streams what comes back as [`Piece`]s, which each API puts into its own words.

mod choice;
mod whole;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::StreamExt;
use oxidize_core::chat::{AnswerParser, CallReader};
use oxidize_core::engine::{Finished, Request};
use oxidize_core::grammar::Grammar;
use oxidize_core::sampling::SamplingParams;

use crate::auth::Client;
use crate::error::{ApiError, ApiResult};
use crate::limits::Ticket;
use crate::models::{Loaded, Progress};
use crate::sampling::{AdapterScale, SamplingFields};
use crate::state::AppState;
use choice::{Choice, Telling};
pub use whole::{Call, Whole, collect, collect_one};

/// Most answers that one request may ask for.
pub const MAX_CHOICES: usize = 128;
/// The strongest an adapter may count.
const MAX_SCALE: f32 = 100.0;
/// How long an error may take to become the status of a streamed response; later ones are events.
const EARLY: Duration = Duration::from_secs(1);

/// What is to be generated.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// The prompts, as tokens.
    pub prompts: Vec<Vec<u32>>,
    /// Answers for each.
    pub n: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The form of the answers.
    pub grammar: Option<Grammar>,
    /// Most tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Goes on past the end of text.
    pub ignore_eos: bool,
    /// What the client asked for.
    pub priority: Option<i32>,
    /// How strongly adapters count, where the request says.
    pub adapters: Vec<AdapterScale>,
    /// How answers are read.
    pub reading: Reading,
}

impl Job {
    /// A job of one answer with what a request says about its tokens, and no prompt yet.
    pub fn new(model: &Loaded, fields: &SamplingFields) -> ApiResult<Job> {
        Ok(Job {
            n: 1,
            sampling: fields.params(&model.defaults, model.tokenizer()?)?,
            ignore_eos: fields.ignore_eos.unwrap_or(false),
            priority: fields.priority,
            adapters: fields.lora.clone().unwrap_or_default(),
            ..Job::default()
        })
    }
}

/// How the text of an answer is understood.
#[derive(Clone, Debug, Default)]
pub enum Reading {
    /// As text.
    #[default]
    Text,
    /// As reasoning, content and tool calls.
    Answer(Box<AnswerParser>),
    /// As tool calls and nothing else.
    Calls(CallReader),
}

/// Something that happened to one of the answers.
#[derive(Clone, Debug)]
pub enum Piece {
    /// More of an answer.
    Part {
        /// Which answer.
        choice: usize,
        /// What came.
        part: Part,
        /// The tokens that it came with, if log probabilities or ids were asked for.
        tokens: Vec<TokenInfo>,
    },
    /// An answer is complete.
    End(Box<End>),
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Thoughts before the answer.
    Reasoning(String),
    /// The answer itself.
    Content(String),
    /// A tool call begins.
    CallStart {
        /// Its place among the answer's calls.
        index: usize,
        /// Names the call.
        id: String,
        /// What is called.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// The call's place.
        index: usize,
        /// JSON text.
        text: String,
    },
}

/// A token and how likely it was.
#[derive(Clone, Debug)]
pub struct TokenInfo {
    /// Its id.
    pub id: u32,
    /// Its log probability, if asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens.
    pub top: Vec<(u32, f32)>,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub struct End {
    /// Which answer.
    pub choice: usize,
    /// Why, for clients.
    pub reason: StopReason,
    /// The stop string that came up.
    pub stop: Option<String>,
    /// Tokens that no part came with.
    pub tokens: Vec<TokenInfo>,
    /// Counts and times.
    pub finished: Finished,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model was done.
    Stop,
    /// A stop string came up.
    StopString,
    /// No more tokens were allowed.
    Length,
    /// The model called tools.
    ToolCalls,
}

/// Answers in the making. Dropping it cancels them.
pub struct Generation {
    choices: Vec<Choice>,
    /// Who is asked first, so that no answer waits behind another.
    next: usize,
    /// The first piece, if it has been waited for.
    first: Option<ApiResult<Piece>>,
    deadline: Pin<Box<tokio::time::Sleep>>,
    timeout: u64,
    over: bool,
    meter: Meter,
}

/// Keeps count of a generation, however it ends.
struct Meter {
    state: AppState,
    client: Client,
    model: Arc<Loaded>,
    progress: Vec<Arc<Progress>>,
    n_finished: usize,
    failed: bool,
    _ticket: Ticket,
}

impl Generation {
    /// Submits a job for `count` answers to the model of this name. `prepare` makes the job on a thread that may
    /// take its time; a fault in it ends this request alone.
    pub async fn begin(
        state: &AppState,
        client: &Client,
        name: Option<&str>,
        count: usize,
        prepare: impl FnOnce(&Loaded) -> ApiResult<Job> + Send + 'static,
    ) -> ApiResult<Generation> {
        if count == 0 || count > MAX_CHOICES {
            let message = format!(
                "{count} answers were asked for; at least 1 and at most {MAX_CHOICES} can be"
            );
            return Err(ApiError::bad_request(message));
        }
        if state.is_draining() {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        client.enter()?;
        let model = state.models().get(name).await?;
        let ticket = model.admission.enter(count)?;
        let (owner, from) = (state.clone(), client.clone());
        let work = move || Generation::submit(owner, from, model, ticket, prepare);
        blocking(work).await?
    }

    fn submit(
        state: AppState,
        client: Client,
        model: Arc<Loaded>,
        ticket: Ticket,
        prepare: impl FnOnce(&Loaded) -> ApiResult<Job>,
    ) -> ApiResult<Generation> {
        let job = prepare(&model)?;
        let engine = model.engine()?;
        let mut meter = Meter {
            state,
            client,
            model: model.clone(),
            progress: Vec::new(),
            n_finished: 0,
            failed: false,
            _ticket: ticket,
        };
        let mut choices = Vec::new();
        let adapters = adapter_scales(model.adapter_scales(), &job.adapters)?;
        for tokens in &job.prompts {
            check_length(tokens.len(), engine.n_ctx())?;
            if meter.state.args().log.prompts {
                let prompt = model.tokenizer()?.decode(tokens);
                tracing::info!(client = meter.client.name(), prompt, "prompt");
            }
            for _ in 0..job.n {
                let index = choices.len();
                let mut sampling = job.sampling.clone();
                sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(index as u64));
                let telling = Telling {
                    index,
                    reading: job.reading.clone(),
                    stops: sampling.stop.clone(),
                    wants_tokens: sampling.n_probs.is_some(),
                    call_prefix: meter.state.new_id("call_"),
                };
                let stream = engine.submit(Request {
                    tokens: tokens.clone(),
                    sampling,
                    grammar: job.grammar.clone(),
                    max_tokens: job.max_tokens,
                    ignore_eos: job.ignore_eos,
                    adapters: Some(adapters.clone()),
                    max_draft: None,
                    render_special: matches!(job.reading, Reading::Answer(_)),
                    priority: meter.client.priority(job.priority),
                    salt: meter.client.salt(),
                })?;
                let progress = Arc::new(Progress {
                    id: meter.state.next_number(),
                    prompt_tokens: tokens.len(),
                    generated: AtomicUsize::new(0),
                    since: Instant::now(),
                });
                model.running.insert(progress.clone());
                meter.progress.push(progress.clone());
                choices.push(Choice::new(stream, progress, telling));
            }
        }
        let timeout = meter.state.args().limits.timeout;
        Ok(Generation {
            choices,
            next: 0,
            first: None,
            deadline: Box::pin(tokio::time::sleep(Duration::from_secs(timeout))),
            timeout,
            over: false,
            meter,
        })
    }

    /// Waits a moment for the first piece, so that what goes wrong at once is told by the status of the response
    /// and not by an event in it.
    pub async fn settle(mut self) -> ApiResult<Generation> {
        if let Ok(Some(first)) = tokio::time::timeout(EARLY, self.next()).await {
            self.first = Some(Ok(first?));
        }
        Ok(self)
    }

    /// The model that answers.
    pub fn model(&self) -> &Arc<Loaded> {
        &self.meter.model
    }

    /// Tokens of the prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.choices
            .first()
            .map_or(0, |choice| choice.progress.prompt_tokens)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<ApiResult<Piece>>> {
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
            if let Poll::Ready(piece) = choice.poll(context) {
                self.next = (at + 1) % n;
                return Poll::Ready(Some(piece));
            }
        }
        if self.choices.iter().all(Choice::has_ended) {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }
}

/// How strongly each adapter counts: `scales`, but for those that were asked for.
pub fn adapter_scales(mut scales: Vec<f32>, asked: &[AdapterScale]) -> ApiResult<Vec<f32>> {
    for AdapterScale { id, scale } in asked {
        let n = scales.len();
        let known = usize::try_from(*id).ok().and_then(|id| scales.get_mut(id));
        let Some(known) = known.filter(|_| scale.is_finite() && scale.abs() <= MAX_SCALE) else {
            let message = format!(
                "there are {n} adapters, whose scales are up to {MAX_SCALE}; asked for {id} at {scale}"
            );
            return Err(ApiError::bad_request(message));
        };
        *known = *scale;
    }
    Ok(scales)
}

/// Refuses a prompt that leaves no room for an answer, with both numbers.
fn check_length(n_tokens: usize, n_ctx: usize) -> ApiResult<()> {
    if n_tokens < n_ctx {
        return Ok(());
    }
    Err(ApiError {
        code: Some("context_length_exceeded"),
        ..ApiError::bad_request(format!(
            "the prompt has {n_tokens} tokens and needs room for an answer, the context holds {n_ctx}"
        ))
    })
}

/// Runs something that takes a while on a thread of its own; a panic there is an error here.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        // The panic hook has written what it was to the log.
        ApiError::internal("a fault inside the server ended this request")
    })
}

impl Stream for Generation {
    type Item = ApiResult<Piece>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<ApiResult<Piece>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if self.over {
            return Poll::Ready(None);
        }
        let polled = catch_unwind(AssertUnwindSafe(|| self.poll(context)));
        let polled = polled.unwrap_or_else(|_| {
            let error = ApiError::internal("a fault inside the server ended this request");
            Poll::Ready(Some(Err(error)))
        });
        match &polled {
            Poll::Ready(Some(Ok(Piece::End(end)))) => {
                self.meter.n_finished += 1;
                self.meter.state.metrics().finished(&end.finished);
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::warn!(model = self.meter.model.name, %error, "an answer ended early");
                self.over = true;
                self.meter.failed = true;
                self.choices.clear();
            }
            Poll::Ready(None) => self.over = true,
            _ => {}
        }
        polled
    }
}

impl Drop for Meter {
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
                "the client went away"
            );
        }
    }
}
