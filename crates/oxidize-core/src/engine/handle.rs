//! [`Engine`]: the handle through which requests reach the engine thread.

use super::guide::{Guide, Guides};
use super::request::{EngineError, Prompt, Request, Resolved};

use super::stream::{Channel, TokenStream};
use crate::chat::Conversation;
use crate::clock::Instant;
use crate::error::Result;
use crate::model::Model;
use crate::sampling::{Sampler, SamplerVocab, StopMatcher};
use crate::scheduler::{SeqId, Stats};
use crate::tokenizer::EncodeOptions;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A running engine: continuous batching, KV cache, prefix cache and sampling for one model.
///
/// The engine runs on a thread of its own. `Engine` is a handle to it: cheap to clone, and usable from any thread.
/// The engine stops when the last handle and the last [`TokenStream`] are dropped.
///
/// ```no_run
/// use oxidize::{Engine, Model, Request};
///
/// # fn main() -> Result<(), oxidize::Error> {
/// let engine = Engine::new(Model::load("model.gguf")?)?;
/// // Requests that run at the same time share every step.
/// let first = engine.submit(Request::new("Once upon a time").max_tokens(64))?;
/// let second = engine.chat("Name three colors.")?;
/// println!("{}\n{}", first.text()?, second.text()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Engine {
    model: Model,
    n_ctx: usize,
    vocab: SamplerVocab,
    guides: Guides,
    queue: Arc<CommandQueue>,
    next_id: Arc<AtomicU64>,
    /// Dropping the last clone stops the engine.
    _alive: Arc<Alive>,
}

/// Observes whether an engine still runs, without keeping it alive.
#[derive(Clone)]
pub struct EngineMonitor(Arc<CommandQueue>);

impl EngineMonitor {
    /// True once the engine has stopped and released its memory.
    pub fn has_ended(&self) -> bool {
        self.0.lock().ended
    }
}

/// A checked request on its way to the engine thread.
pub(super) struct Submission {
    pub(super) id: SeqId,
    /// The prompt, tokenized.
    pub(super) tokens: Vec<u32>,
    pub(super) request: Request,
    /// Tokens of the predicted answer.
    pub(super) prediction: Vec<u32>,
    pub(super) sampler: Sampler,
    pub(super) stops: StopMatcher,
    pub(super) guide: Guide,
    pub(super) channel: Arc<Channel>,
    pub(super) submitted: Instant,
}

pub(super) enum Command {
    Submit(Box<Submission>),
    Cancel(SeqId),
}

/// Commands for the engine, and the statistics it reports.
#[derive(Default)]
pub(super) struct CommandQueue {
    state: Mutex<QueueState>,
    ready: Condvar,
}

#[derive(Default)]
struct QueueState {
    commands: Vec<Command>,
    /// True when the last sender is gone.
    closed: bool,
    /// True when the engine has ended.
    ended: bool,
    /// Woken by the next command, for a host that steps the engine.
    waker: Option<Waker>,
    stats: Stats,
}

impl CommandQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, command: Command) {
        let mut state = self.lock();
        if state.ended {
            drop(state);
            return command.refuse();
        }
        state.commands.push(command);
        self.notify(state);
    }

    /// Wakes the thread or the task that waits for commands.
    fn notify(&self, mut state: MutexGuard<'_, QueueState>) {
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the queued commands without waiting. `None` if there are none and there will be no more.
    pub(super) fn take(&self) -> Option<Vec<Command>> {
        let mut state = self.lock();
        match state.commands.is_empty() && state.closed {
            true => None,
            false => Some(std::mem::take(&mut state.commands)),
        }
    }

    /// Ready when there are commands, with true, or when there will be no more, with false.
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.lock();
        match (state.commands.is_empty(), state.closed) {
            (false, _) => Poll::Ready(true),
            (true, true) => Poll::Ready(false),
            (true, false) => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Takes the queued commands; waits for one if `idle`. `None` when all senders are gone.
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn receive(&self, idle: bool) -> Option<Vec<Command>> {
        let mut state = self.lock();
        while idle && state.commands.is_empty() && !state.closed {
            state = self
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if idle && state.commands.is_empty() && state.closed {
            return None;
        }
        Some(std::mem::take(&mut state.commands))
    }

    pub(super) fn report(&self, stats: Stats) {
        self.lock().stats = stats;
    }

    /// Marks the engine as ended and fails the requests that are still queued.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let commands = std::mem::take(&mut state.commands);
        drop(state);
        commands.into_iter().for_each(Command::refuse);
    }
}

impl Command {
    /// Fails a request that no engine will serve.
    fn refuse(self) {
        if let Command::Submit(submission) = self {
            submission.channel.fail(EngineError::Stopped);
        }
    }
}

/// Closes the queue when the last handle and the last stream are dropped.
struct Alive(Arc<CommandQueue>);

impl Drop for Alive {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        self.0.notify(state);
    }
}

impl Engine {
    pub(super) fn from_parts(model: Model, n_ctx: usize) -> (Engine, Arc<CommandQueue>) {
        let queue = Arc::new(CommandQueue::default());
        let vocab = model.sampler_vocab();
        let handle = Engine {
            model,
            n_ctx,
            vocab,
            guides: Guides::default(),
            queue: queue.clone(),
            next_id: Arc::default(),
            _alive: Arc::new(Alive(queue.clone())),
        };
        (handle, queue)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Maximum tokens of a request, prompt and answer together.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Answers a conversation, which may be a single user message, with the model's chat template and sampling
    /// defaults. Use [`submit`](Engine::submit) for other settings.
    pub fn chat(&self, conversation: impl Into<Conversation>) -> Result<TokenStream> {
        self.submit(Request::chat(conversation))
    }

    /// Continues a text with the model's sampling defaults.
    pub fn complete(&self, text: impl Into<String>) -> Result<TokenStream> {
        self.submit(Request::new(text.into()))
    }

    /// A request with the model's sampling defaults, to be changed and given to [`submit`](Engine::submit).
    ///
    /// ```no_run
    /// # let engine = oxidize::Engine::new(oxidize::Model::load("model.gguf")?)?;
    /// let request = engine.request("Once upon a time").max_tokens(100).seed(1);
    /// println!("{}", engine.submit(request)?.text()?);
    /// # Ok::<(), oxidize::Error>(())
    /// ```
    pub fn request(&self, prompt: impl Into<Prompt>) -> Request {
        Request::new(prompt).sampling(self.model.sampling_defaults())
    }

    /// Queues a request and returns the stream of its tokens.
    ///
    /// Fails if the request is invalid; errors that occur later come through the stream. A full queue is an error of
    /// the stream too.
    pub fn submit(&self, mut request: Request) -> Result<TokenStream> {
        request.adapters = self.adapter_scales(request.adapters)?;
        let Resolved {
            tokens,
            sampling,
            reasoning,
        } = request.resolve(&self.model)?;
        let n_vocab = self.model.n_vocab();
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= n_vocab) {
            return Err(EngineError::TokenOutOfRange { token, n_vocab }.into());
        }
        if request.prompt_logprobs.is_some() && self.model.plan().n_encoder_ops > 0 {
            return Err(EngineError::NoPromptLogprobs(self.model.arch().name).into());
        }
        let mut sampler = Sampler::new(&sampling, &self.vocab).map_err(EngineError::Sampling)?;
        sampler.accept_prompt(&tokens);
        let stops = StopMatcher::new(&sampling.stop).map_err(EngineError::Sampling)?;
        let grammar = request.grammar.as_ref();
        let guide = self.guides.guide(&self.model, grammar, reasoning)?;
        let prediction = match &request.drafts.prediction {
            Some(text) => self.model.tokenizer()?.encode(text, EncodeOptions::PLAIN),
            None => Vec::new(),
        };
        let id = SeqId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let channel = Arc::new(Channel::default());
        let submission = Submission {
            id,
            tokens,
            request,
            prediction,
            sampler,
            stops,
            guide,
            channel: channel.clone(),
            submitted: Instant::now(),
        };
        self.queue.send(Command::Submit(Box::new(submission)));
        // The stream keeps the engine alive even when the handle is gone.
        let (queue, alive) = (self.queue.clone(), self._alive.clone());
        Ok(TokenStream::new(channel, move || {
            queue.send(Command::Cancel(id));
            drop(alive);
        }))
    }

    /// Checks a request's adapter scales; `None` where they equal the model's defaults.
    fn adapter_scales(&self, given: Option<Vec<f32>>) -> Result<Option<Vec<f32>>, EngineError> {
        let Some(mut given) = given else {
            return Ok(None);
        };
        let defaults = self.model.adapter_scales();
        let loaded = defaults.len();
        if given.len() > loaded || given.iter().any(|scale| !scale.is_finite()) {
            return Err(EngineError::Adapters { given, loaded });
        }
        given.resize(loaded, 0.0);
        Ok((given != defaults).then_some(given))
    }

    /// An observer of the engine's end that does not keep it alive.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn monitor(&self) -> EngineMonitor {
        EngineMonitor(self.queue.clone())
    }

    /// Scheduler statistics after the last step.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn stats(&self) -> Stats {
        self.queue.lock().stats
    }
}
