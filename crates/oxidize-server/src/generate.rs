//! The one path from any API's request to tokens: a [`Job`] is submitted to a model's engine, and a [`Generation`]
//! streams what comes back as [`Piece`]s, which each API puts into its own words.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::StreamExt;
use oxidize_core::chat::{AnswerDelta, AnswerParser};
use oxidize_core::engine::{Event, FinishReason, Finished, Request, Token, TokenStream};
use oxidize_core::grammar::Grammar;
use oxidize_core::sampling::SamplingParams;

use crate::auth::Client;
use crate::error::{ApiError, ApiResult};
use crate::limits::Ticket;
use crate::models::{Loaded, Progress};
use crate::sampling::AdapterScale;
use crate::state::AppState;
use crate::tools::{CallPiece, CallReader};

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

/// One answer.
struct Choice {
    index: usize,
    stream: TokenStream,
    reading: Reading,
    stops: Vec<String>,
    /// Whether tokens are passed on beside the text.
    wants_tokens: bool,
    tokens: Vec<TokenInfo>,
    pieces: VecDeque<Piece>,
    n_calls: usize,
    call_prefix: String,
    ended: bool,
    progress: Arc<Progress>,
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
            if meter.state.args().log_prompts {
                let prompt = model.tokenizer()?.decode(tokens);
                tracing::info!(client = meter.client.name(), prompt, "prompt");
            }
            for _ in 0..job.n {
                let index = choices.len();
                let mut sampling = job.sampling.clone();
                sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(index as u64));
                let wants_tokens = sampling.n_probs.is_some();
                let stops = sampling.stop.clone();
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
                choices.push(Choice {
                    index,
                    stream,
                    reading: job.reading.clone(),
                    stops,
                    wants_tokens,
                    tokens: Vec::new(),
                    pieces: VecDeque::new(),
                    n_calls: 0,
                    call_prefix: meter.state.new_id("call_"),
                    ended: false,
                    progress,
                });
            }
        }
        let timeout = meter.state.args().timeout;
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
            let Some(choice) = self.choices.get_mut(at).filter(|choice| !choice.ended) else {
                continue;
            };
            if let Poll::Ready(piece) = choice.poll(context) {
                self.next = (at + 1) % n;
                return Poll::Ready(Some(piece));
            }
        }
        if self.choices.iter().all(|choice| choice.ended) {
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

impl Choice {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ApiResult<Piece>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                self.ended = matches!(piece, Piece::End(_));
                return Poll::Ready(Ok(piece));
            }
            match Pin::new(&mut self.stream).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(Event::Token(token)))) => self.token(token),
                Poll::Ready(Some(Ok(Event::Finished(finished)))) => self.finish(finished),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => {
                    return Poll::Ready(Err(ApiError::unavailable("the engine has stopped")));
                }
            }
        }
    }

    fn token(&mut self, token: Token) {
        self.progress.generated.fetch_add(1, Ordering::Relaxed);
        if self.wants_tokens {
            self.tokens.push(TokenInfo {
                id: token.id,
                logprob: token.logprob,
                top: token.top,
            });
        }
        self.read(&token.text);
    }

    fn read(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match &mut self.reading {
            Reading::Text => self.part(Part::Content(text.to_owned())),
            Reading::Answer(parser) => {
                let deltas = parser.push(text);
                self.deltas(deltas);
            }
            Reading::Calls(reader) => {
                let pieces = reader.push(text);
                self.calls(pieces);
            }
        }
    }

    fn deltas(&mut self, deltas: Vec<AnswerDelta>) {
        for delta in deltas {
            match delta {
                AnswerDelta::Reasoning(text) => self.part(Part::Reasoning(text)),
                AnswerDelta::Content(text) => self.part(Part::Content(text)),
                AnswerDelta::ToolCall(call) => {
                    let index = self.n_calls;
                    self.n_calls += 1;
                    let id = call
                        .id
                        .unwrap_or_else(|| format!("{}_{index}", self.call_prefix));
                    let text = match &call.function.arguments {
                        serde_json::Value::String(text) => text.clone(),
                        serde_json::Value::Null => "{}".to_owned(),
                        arguments => arguments.to_string(),
                    };
                    let name = call.function.name;
                    self.part(Part::CallStart { index, id, name });
                    self.part(Part::CallArguments { index, text });
                }
            }
        }
    }

    fn calls(&mut self, pieces: Vec<CallPiece>) {
        for piece in pieces {
            match piece {
                CallPiece::Start { index, name } => {
                    self.n_calls = index + 1;
                    let id = format!("{}_{index}", self.call_prefix);
                    self.part(Part::CallStart { index, id, name });
                }
                CallPiece::Arguments { index, text } => {
                    self.part(Part::CallArguments { index, text })
                }
            }
        }
    }

    fn part(&mut self, part: Part) {
        self.pieces.push_back(Piece::Part {
            choice: self.index,
            part,
            tokens: std::mem::take(&mut self.tokens),
        });
    }

    fn finish(&mut self, finished: Finished) {
        self.read(&finished.text);
        if let Reading::Answer(parser) = &mut self.reading {
            let rest = parser.finish();
            self.deltas(rest);
        }
        let (mut reason, stop) = match finished.reason {
            FinishReason::StopString(index) => {
                (StopReason::StopString, self.stops.get(index).cloned())
            }
            FinishReason::Length => (StopReason::Length, None),
            _ => (StopReason::Stop, None),
        };
        if self.n_calls > 0 && reason == StopReason::Stop {
            reason = StopReason::ToolCalls;
        }
        self.pieces.push_back(Piece::End(Box::new(End {
            choice: self.index,
            reason,
            stop,
            tokens: std::mem::take(&mut self.tokens),
            finished,
        })));
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

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Thoughts before the answer.
    pub reasoning: String,
    /// The answer itself.
    pub content: String,
    /// The calls: id, name, arguments.
    pub calls: Vec<Call>,
    /// The tokens, if asked for.
    pub tokens: Vec<TokenInfo>,
    /// How it ended.
    pub end: End,
}

/// A whole tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// Names the call.
    pub id: String,
    /// What is called.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// Waits for all answers, in the order of their prompts.
pub async fn collect(mut generation: Generation) -> ApiResult<Vec<Whole>> {
    #[derive(Default)]
    struct Partial {
        reasoning: String,
        content: String,
        calls: Vec<Call>,
        tokens: Vec<TokenInfo>,
    }
    let mut partial: Vec<Partial> = generation
        .choices
        .iter()
        .map(|_| Partial::default())
        .collect();
    let mut whole = Vec::new();
    while let Some(piece) = generation.next().await {
        match piece? {
            Piece::Part {
                choice,
                part,
                tokens,
            } => {
                let Some(answer) = partial.get_mut(choice) else {
                    continue;
                };
                answer.tokens.extend(tokens);
                match part {
                    Part::Reasoning(text) => answer.reasoning.push_str(&text),
                    Part::Content(text) => answer.content.push_str(&text),
                    Part::CallStart { id, name, .. } => answer.calls.push(Call {
                        id,
                        name,
                        arguments: String::new(),
                    }),
                    Part::CallArguments { index, text } => {
                        if let Some(call) = answer.calls.get_mut(index) {
                            call.arguments.push_str(&text);
                        }
                    }
                }
            }
            Piece::End(mut end) => {
                let Some(answer) = partial.get_mut(end.choice).map(std::mem::take) else {
                    continue;
                };
                let mut tokens = answer.tokens;
                tokens.append(&mut end.tokens);
                whole.push(Whole {
                    reasoning: answer.reasoning,
                    content: answer.content,
                    calls: answer.calls,
                    tokens,
                    end: *end,
                });
            }
        }
    }
    whole.sort_by_key(|answer| answer.end.choice);
    Ok(whole)
}
