//! [`EngineHandle`]: how requests reach the engine's thread.

use super::guide::{Guide, Guides};
use super::request::{EngineError, Request};
use super::stream::{Channel, TokenStream};
use crate::error::Result;
use crate::model::Model;
use crate::sampling::{Sampler, SamplerVocab, StopMatcher};
use crate::scheduler::{SeqId, Stats};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A way to an engine; clone it for every thread that has requests.
#[derive(Clone)]
pub struct EngineHandle {
    model: Model,
    n_ctx: usize,
    vocab: SamplerVocab,
    guides: Guides,
    mailbox: Arc<Mailbox>,
    next_id: Arc<AtomicU64>,
    /// The engine ends when nobody can send to it any more.
    _alive: Arc<Alive>,
}

/// Tells whether an engine is still there, without keeping it.
#[derive(Clone)]
pub struct EngineMonitor(Arc<Mailbox>);

impl EngineMonitor {
    /// Whether the engine has ended and given back what it held.
    pub fn has_ended(&self) -> bool {
        self.0.lock().ended
    }
}

/// A request on its way to the engine.
pub(super) struct Submission {
    pub(super) id: SeqId,
    pub(super) request: Request,
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

/// Commands for the engine, and what it tells of itself.
#[derive(Default)]
pub(super) struct Mailbox {
    state: Mutex<Mail>,
    ready: Condvar,
}

#[derive(Default)]
struct Mail {
    commands: Vec<Command>,
    /// Nobody can send any more.
    closed: bool,
    /// Nobody receives any more.
    ended: bool,
    stats: Stats,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, command: Command) {
        let mut mail = self.lock();
        if mail.ended {
            drop(mail);
            return command.refuse();
        }
        mail.commands.push(command);
        drop(mail);
        self.ready.notify_one();
    }

    /// Takes what has come; waits for something if `idle`. `None` when nothing can come any more.
    pub(super) fn receive(&self, idle: bool) -> Option<Vec<Command>> {
        let mut mail = self.lock();
        while idle && mail.commands.is_empty() && !mail.closed {
            mail = self
                .ready
                .wait(mail)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if idle && mail.commands.is_empty() && mail.closed {
            return None;
        }
        Some(std::mem::take(&mut mail.commands))
    }

    pub(super) fn report(&self, stats: Stats) {
        self.lock().stats = stats;
    }

    /// Says that the engine is gone, to those whose requests it has not taken yet too.
    pub(super) fn end(&self) {
        let mut mail = self.lock();
        mail.ended = true;
        let commands = std::mem::take(&mut mail.commands);
        drop(mail);
        commands.into_iter().for_each(Command::refuse);
    }
}

impl Command {
    /// Ends a request that no engine will serve.
    fn refuse(self) {
        if let Command::Submit(submission) = self {
            submission.channel.fail(EngineError::Stopped);
        }
    }
}

/// Tells the engine when the last handle and the last stream are gone.
struct Alive(Arc<Mailbox>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.ready.notify_one();
    }
}

impl EngineHandle {
    pub(super) fn new(model: Model, n_ctx: usize) -> (EngineHandle, Arc<Mailbox>) {
        let mailbox = Arc::new(Mailbox::default());
        let vocab = model.sampler_vocab();
        let handle = EngineHandle {
            model,
            n_ctx,
            vocab,
            guides: Guides::default(),
            mailbox: mailbox.clone(),
            next_id: Arc::default(),
            _alive: Arc::new(Alive(mailbox.clone())),
        };
        (handle, mailbox)
    }

    /// The model that runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Most tokens of a request, prompt and answer together.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Queues a request. What is wrong with it is told here; what goes wrong later, by the stream.
    pub fn submit(&self, mut request: Request) -> Result<TokenStream> {
        request.adapters = self.strengths(request.adapters)?;
        let n_vocab = self.model.n_vocab();
        if let Some(&token) = request
            .tokens
            .iter()
            .find(|&&token| token as usize >= n_vocab)
        {
            return Err(EngineError::TokenOutOfRange { token, n_vocab }.into());
        }
        let mut sampler =
            Sampler::new(&request.sampling, &self.vocab).map_err(EngineError::Sampling)?;
        sampler.accept_prompt(&request.tokens);
        let stops = StopMatcher::new(&request.sampling.stop).map_err(EngineError::Sampling)?;
        let guide = self.guides.guide(&self.model, request.grammar.as_ref())?;
        let id = SeqId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let channel = Arc::new(Channel::default());
        let submission = Submission {
            id,
            request,
            sampler,
            stops,
            guide,
            channel: channel.clone(),
            submitted: Instant::now(),
        };
        self.mailbox.send(Command::Submit(Box::new(submission)));
        // The stream keeps the engine alive even when the handle is gone.
        let (mailbox, alive) = (self.mailbox.clone(), self._alive.clone());
        Ok(TokenStream::new(channel, move || {
            mailbox.send(Command::Cancel(id));
            drop(alive);
        }))
    }

    /// Checks what a request wants of the adapters; `None` where that is what the model says.
    fn strengths(&self, given: Option<Vec<f32>>) -> Result<Option<Vec<f32>>, EngineError> {
        let Some(mut given) = given else {
            return Ok(None);
        };
        let usual = self.model.adapter_strengths();
        let loaded = usual.len();
        if given.len() > loaded || given.iter().any(|strength| !strength.is_finite()) {
            return Err(EngineError::Adapters { given, loaded });
        }
        given.resize(loaded, 0.0);
        Ok((given != usual).then_some(given))
    }

    /// What tells when the engine has ended.
    pub fn monitor(&self) -> EngineMonitor {
        EngineMonitor(self.mailbox.clone())
    }

    /// Where the engine stood after its last step.
    pub fn stats(&self) -> Stats {
        self.mailbox.lock().stats
    }
}
