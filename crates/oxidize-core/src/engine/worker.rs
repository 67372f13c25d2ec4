//! One step of the engine after the other: plan it, run it, sample, commit, report.

mod encoder;

use super::disk::Disk;
use super::drafting::{Decoding, Drafting};
use super::guide::Guide;
use super::handle::{Command, CommandQueue, Submission};
use super::request::{
    Completion, EngineError, Event, FinishReason, PromptProgress, PromptToken, Request, Timings,
    Token,
};
use super::stream::Channel;
use super::unwind::{catch_unwind_in, panic_message};
use crate::backend::{Backend, Batch, Readback, SeqSlice, Session, SessionConfig};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::sampling::{self, Sampler, StopMatcher, StopStep, TokenScore};
use crate::scheduler::{self, LogitsAt, Sampled, Scheduler, SeqId, SequenceRequest, Step};
use crate::speculative::DraftCounts;
use crate::tokenizer::{StreamDecoder, Tokenizer};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// State of the engine.
pub(super) struct Worker {
    model: Model,
    backend: Arc<dyn Backend>,
    session_config: SessionConfig,
    session: Box<dyn Session>,
    tokenizer: Tokenizer,
    scheduler: Scheduler,
    drafting: Option<Drafting>,
    disk: Option<Disk>,
    queue: Arc<CommandQueue>,
    active: BTreeMap<SeqId, Active>,
    /// A step that the session computes.
    in_flight: Option<InFlight>,
}

/// A step whose results are not read yet.
struct InFlight {
    step: Step,
    since: Instant,
}

/// A queued or running request.
struct Active {
    /// The prompt.
    tokens: Vec<u32>,
    /// Tokens that precede the answer: the prompt, and the first token of a decoder behind an encoder.
    n_prompt: usize,
    /// Tokens of the predicted answer.
    prediction: Vec<u32>,
    request: Request,
    sampler: Sampler,
    stops: StopMatcher,
    guide: Guide,
    decoder: StreamDecoder,
    channel: Arc<Channel>,
    cached_tokens: usize,
    /// Tokens of the prompt that were cached before its first step, once that was run.
    cached_at_start: Option<usize>,
    generated_tokens: usize,
    drafts: DraftCounts,
    /// Generated tokens, for the logits processor and the disk cache.
    answer: Vec<u32>,
    /// Logits that the processor has changed.
    processed: Vec<f32>,
    /// Namespace in the prefix cache.
    salt: u64,
    /// A sampled token that is sent once the step is committed.
    pending: Vec<Token>,
    /// The token that ends the answer and is not part of it, once it was sampled.
    end_token: Option<Token>,
    /// Finish reason, once the last token is known.
    ended: Option<FinishReason>,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl Worker {
    pub(super) fn new(
        model: Model,
        backend: Arc<dyn Backend>,
        session_config: SessionConfig,
        session: Box<dyn Session>,
        scheduler: Scheduler,
        drafting: Option<Drafting>,
        disk: Option<Disk>,
        queue: Arc<CommandQueue>,
    ) -> Result<Worker> {
        let tokenizer = model.tokenizer()?.clone();
        Ok(Worker {
            model,
            backend,
            session_config,
            session,
            tokenizer,
            scheduler,
            drafting,
            disk,
            queue,
            active: BTreeMap::new(),
            in_flight: None,
        })
    }

    /// Commands, waiting for one if there is nothing else to do. `None` when there will be no more.
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn wait_for_commands(&self) -> Option<Vec<Command>> {
        match self.in_flight {
            Some(_) => Some(Vec::new()),
            None => self.queue.receive(self.scheduler.is_idle()),
        }
    }

    /// Commands that are there. `None` when there is nothing to do, and there will be no more.
    pub(super) fn take_commands(&self) -> Option<Vec<Command>> {
        match self.is_idle() {
            true => self.queue.take(),
            // The scheduler must not change while a step that it has planned is computed.
            false if self.in_flight.is_some() => Some(Vec::new()),
            false => Some(self.queue.take().unwrap_or_default()),
        }
    }

    /// True if there is nothing to compute.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.scheduler.is_idle()
    }

    /// Ready when there is something to do, with true, or when there will be nothing more, with false. The borrow is
    /// mutable so that futures of it are `Send`: a session is not `Sync`.
    pub(super) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        match self.is_idle() {
            true => self.queue.poll_ready(context),
            false => Poll::Ready(true),
        }
    }

    /// Handles commands and computes a step. An error ends the engine.
    ///
    /// If the future is dropped before it is ready, the next call completes the step.
    pub(super) async fn advance(&mut self, commands: Vec<Command>) -> Result<()> {
        for command in commands {
            self.handle_command(command);
        }
        if self.in_flight.is_none() {
            self.draft().await;
            if let Some(step) = self.scheduler.plan() {
                self.submit(step)?;
            }
        }
        if self.in_flight.is_some() {
            let finished = catch_unwind_in(self.session.finish(Readback::Outputs)).await;
            if let Some(InFlight { step, since }) = self.in_flight.take() {
                let finished = finished.map(|result| result.map_err(Error::from));
                if let Some(step) = self.check(step, finished)? {
                    self.complete(step, since);
                }
            }
        }
        self.queue.report(self.scheduler.stats());
        Ok(())
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Cancel(id) => {
                self.scheduler.cancel(id);
                self.remove(id);
            }
            Command::Submit(submission) => self.admit(*submission),
        }
    }

    fn admit(&mut self, submission: Submission) {
        let Submission {
            id,
            tokens: prompt,
            request,
            prediction,
            sampler,
            stops,
            guide,
            channel,
            submitted,
        } = submission;
        let mut tokens = prompt.clone();
        // The decoder behind an encoder begins with a token of its own; no prompt stays none.
        if !tokens.is_empty() {
            tokens.extend(self.model.hparams().decoder_start);
        }
        let n_prompt = tokens.len();
        let reuse_prefix = !request.ignore_cache && request.prompt_logprobs.is_none();
        let salt = request.cache_salt ^ adapter_salt(request.adapters.as_deref());
        let sequence = SequenceRequest {
            id,
            tokens,
            max_new_tokens: request.max_tokens.unwrap_or(usize::MAX),
            priority: request.priority,
            salt,
            logits: match request.prompt_logprobs {
                Some(_) => LogitsAt::Every,
                None => LogitsAt::Last,
            },
            reuse_prefix,
        };
        if let Err(error) = self.scheduler.submit(sequence) {
            return channel.fail(EngineError::Submit(error));
        }
        if let Some(disk) = self.disk.as_mut().filter(|_| reuse_prefix) {
            let session = self.session.as_mut();
            disk.restore(salt, &prompt, &mut self.scheduler, session);
        }
        let decoder = self
            .tokenizer
            .stream()
            .render_special(request.render_special);
        let active = Active {
            tokens: prompt,
            n_prompt,
            prediction,
            request,
            sampler,
            stops,
            guide,
            decoder,
            channel,
            cached_tokens: 0,
            cached_at_start: None,
            generated_tokens: 0,
            drafts: DraftCounts::default(),
            answer: Vec::new(),
            processed: Vec::new(),
            salt,
            pending: Vec::new(),
            end_token: None,
            ended: None,
            submitted,
            started: None,
            first_token: None,
        };
        self.active.insert(id, active);
    }

    /// Submits a step to the session.
    fn submit(&mut self, step: Step) -> Result<()> {
        let since = Instant::now();
        for part in &step.sequences {
            if let Some(active) = self.active.get_mut(&part.id) {
                active.started.get_or_insert(since);
            }
        }
        let submitted = catch_unwind(AssertUnwindSafe(|| self.compute(&step)));
        let step = self.check(step, submitted)?;
        self.in_flight = step.map(|step| InFlight { step, since });
        Ok(())
    }

    /// Returns a step that was computed so far. An error ends its requests; a panic restarts the session too.
    fn check(
        &mut self,
        step: Step,
        computed: std::thread::Result<Result<()>>,
    ) -> Result<Option<Step>> {
        match computed {
            Ok(Ok(())) => Ok(Some(step)),
            Ok(Err(error)) => {
                self.fail_step(step, &error.to_string());
                Ok(None)
            }
            Err(panic) => {
                self.fail_step(step, &panic_message(panic.as_ref()));
                self.restart().map(|()| None)
            }
        }
    }

    /// Samples from the results of a step, commits it and sends its tokens.
    fn complete(&mut self, step: Step, since: Instant) {
        if let Some(drafting) = &mut self.drafting {
            drafting.add_step_time(since.elapsed());
        }
        self.report_prompts(&step);
        let mut sampled = Vec::new();
        for part in step.sequences.iter().filter(|part| part.samples) {
            match catch_unwind(AssertUnwindSafe(|| self.sample(&step, part))) {
                Ok(Ok(choice)) => sampled.extend(choice),
                Ok(Err(error)) => self.fail(part.id, error),
                Err(panic) => {
                    let problem = panic_message(panic.as_ref());
                    self.fail(part.id, EngineError::Internal(problem));
                }
            }
        }
        if let Some(drafting) = &mut self.drafting {
            drafting.record_step(&step, &sampled);
        }
        let events = self.scheduler.commit(step, &sampled);
        // Before clients learn of an end: the totals that they read then include it.
        self.queue.report(self.scheduler.stats());
        for event in events {
            self.handle_event(event);
        }
        for sampled in &sampled {
            if let Some(active) = self.active.get_mut(&sampled.id) {
                active.send_pending();
            }
        }
    }

    fn compute(&mut self, step: &Step) -> Result<()> {
        self.session.copy_blocks(&step.copies)?;
        self.session.copy_states(&step.state_copies)?;
        if self.model.plan().n_encoder_ops > 0 {
            return self.compute_encoded(step);
        }
        let sequences: Vec<SeqSlice<'_>> = step
            .sequences
            .iter()
            .map(|part| SeqSlice {
                n_tokens: part.rows.len(),
                blocks: step.blocks_of(part),
                windows: step.windows_of(part),
                slot: part.slot,
                adapters: adapters(&self.active, &self.model, part.id),
                ..SeqSlice::default()
            })
            .collect();
        let batch = Batch {
            tokens: &step.tokens,
            positions: &step.positions,
            sequences: &sequences,
            outputs: &step.outputs,
        };
        Ok(self.session.run(&batch)?)
    }

    /// Adds draft tokens to the next step. A fault while drafting turns speculation off and nothing else.
    async fn draft(&mut self) {
        let Some(drafting) = &mut self.drafting else {
            return;
        };
        let decoding = self.active.iter().filter(|(_, a)| a.first_token.is_some());
        let decoding: Vec<Decoding<'_>> = decoding
            .map(|(&id, active)| Decoding {
                id,
                n_prompt: active.n_prompt,
                params: &active.request.drafts,
                prediction: &active.prediction,
            })
            .collect();
        let proposed = catch_unwind_in(drafting.propose(&mut self.scheduler, &decoding)).await;
        let problem = match proposed {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_message(panic.as_ref()),
        };
        self.drafting = None;
        tracing::error!(%problem, "speculative decoding is off");
    }

    /// Samples the next token of a sequence; then further ones, as long as the sampled token equals the draft.
    fn sample(&mut self, step: &Step, part: &scheduler::StepSequence) -> Result<Option<Sampled>> {
        let Some(first) = part.outputs.end.checked_sub(part.n_draft + 1) else {
            return Ok(None);
        };
        let fed = step.tokens_of(part);
        let drafts = fed.get(fed.len() - part.n_draft..).unwrap_or_default();
        let mut accepted = 0;
        loop {
            let logits = self.session.output(first + accepted)?;
            let Some(active) = self.active.get_mut(&part.id) else {
                return Ok(None);
            };
            let token = active.choose(logits, &self.tokenizer)?;
            let finished = active.ended.is_some();
            if drafts.get(accepted) == Some(&token) && !finished {
                accepted += 1;
                continue;
            }
            active.drafts.drafted += part.n_draft;
            active.drafts.accepted += accepted;
            return Ok(Some(Sampled {
                id: part.id,
                accepted,
                token,
                finished,
            }));
        }
    }

    /// Reports the progress of prompts in a step, and the scores of their tokens. An error ends its request.
    fn report_prompts(&mut self, step: &Step) {
        for part in &step.sequences {
            let Some(active) = self.active.get(&part.id) else {
                continue;
            };
            if part.start < active.tokens.len()
                && let Err(error) = self.report_prompt(step, part)
            {
                self.fail(part.id, error);
            }
        }
    }

    fn report_prompt(&mut self, step: &Step, part: &scheduler::StepSequence) -> Result<()> {
        let Some(active) = self.active.get_mut(&part.id) else {
            return Ok(());
        };
        if let Some(n) = active.request.prompt_logprobs {
            let mut scored = Vec::new();
            for (index, &row) in part.outputs.clone().zip(step.outputs_of(part)) {
                let next = part.start + (row as usize).saturating_sub(part.rows.start) + 1;
                let Some(&id) = active.tokens.get(next) else {
                    break;
                };
                if next == 1 {
                    scored.extend(
                        active
                            .tokens
                            .first()
                            .map(|&id| PromptToken { id, score: None }),
                    );
                }
                let logits = self.session.output(index)?;
                let score =
                    TokenScore::new(logits, id, n as usize).map_err(EngineError::Sampling)?;
                scored.push(PromptToken {
                    id,
                    score: Some(score),
                });
            }
            if active.tokens.len() == 1 && part.start == 0 {
                scored.extend(
                    active
                        .tokens
                        .first()
                        .map(|&id| PromptToken { id, score: None }),
                );
            }
            active.channel.send(Event::PromptLogprobs(scored));
        }
        if active.request.report_progress {
            let cached = *active.cached_at_start.get_or_insert(part.start);
            let processed = part.start + part.rows.len();
            active.channel.send(Event::Progress(PromptProgress {
                total: active.tokens.len(),
                cached,
                processed: processed.min(active.tokens.len()),
                time: active
                    .started
                    .map_or(Duration::ZERO, |since| since.elapsed()),
            }));
        }
        Ok(())
    }

    fn handle_event(&mut self, event: scheduler::Event) {
        match event {
            scheduler::Event::CacheHit { id, tokens } => {
                if let Some(active) = self.active.get_mut(&id) {
                    active.cached_tokens = tokens;
                }
            }
            scheduler::Event::Finished { id } => {
                if let Some(active) = self.remove(id) {
                    if let Some(disk) = &mut self.disk {
                        let tokens = [&*active.tokens, &*active.answer].concat();
                        let session = self.session.as_ref();
                        disk.save(active.salt, &tokens, &self.scheduler, session);
                    }
                    active.finish();
                }
            }
            scheduler::Event::Preempted { id } => {
                tracing::debug!(id = id.0, "the request is back in the queue");
            }
        }
    }

    /// Ends one request with an error.
    fn fail(&mut self, id: SeqId, error: impl Into<Error>) {
        self.scheduler.cancel(id);
        if let Some(mut active) = self.remove(id) {
            active.send_pending();
            active.channel.fail(error);
        }
    }

    fn remove(&mut self, id: SeqId) -> Option<Active> {
        if let Some(drafting) = &mut self.drafting {
            drafting.remove(id);
        }
        self.active.remove(&id)
    }

    /// Ends every request of a step that could not be computed.
    fn fail_step(&mut self, step: Step, problem: &str) {
        let ids: Vec<SeqId> = step.sequences.iter().map(|part| part.id).collect();
        self.scheduler.abandon(step);
        for id in ids {
            self.fail(id, EngineError::Internal(problem.to_owned()));
        }
    }

    /// Replaces the session and its cache after a panic, which may have left them inconsistent. Requests that had
    /// started fail; requests that had not go on.
    fn restart(&mut self) -> Result<()> {
        let begun = self.active.iter().filter(|(_, a)| a.started.is_some());
        let begun: Vec<SeqId> = begun.map(|(&id, _)| id).collect();
        for id in begun {
            let problem = "the engine was restarted after a fault";
            self.fail(id, EngineError::Internal(problem.into()));
        }
        self.scheduler.clear_prefix_cache();
        self.session = self
            .model
            .session(self.backend.as_ref(), &self.session_config)?;
        Ok(())
    }
}

impl Worker {
    /// Ends the engine: fails all open requests, so that no client waits forever.
    pub(super) fn end(&mut self) {
        // Finish pending writes to disk first.
        self.disk = None;
        self.queue.end();
        for active in std::mem::take(&mut self.active).into_values() {
            active.channel.fail(EngineError::Stopped);
        }
    }
}

/// However the thread ends.
impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

impl Active {
    /// Samples the next token. It is sent after the step is committed.
    fn choose(&mut self, logits: &[f32], tokenizer: &Tokenizer) -> Result<u32> {
        let processed = match self.process(logits)? {
            ControlFlow::Continue(processed) => processed,
            ControlFlow::Break(()) => {
                self.ended = Some(FinishReason::Processor);
                // The scheduler counts a token, which is neither computed nor sent.
                return Ok(0);
            }
        };
        let logits = processed.as_deref().unwrap_or(logits);
        let mut choice = self.sample(logits)?;
        if tokenizer.is_end_of_generation(choice.token) && self.guide.close_reasoning() {
            choice = self.sample(logits)?;
        }
        self.processed = processed.unwrap_or_default();
        // Stop strings end no answer that is shorter than its minimum.
        let may_stop = self.sampler.has_min_tokens();
        self.sampler.accept(choice.token);
        self.answer.push(choice.token);
        let complete = self.guide.accept(choice.token, tokenizer)?;
        self.first_token.get_or_insert_with(Instant::now);
        // A grammar only lets the answer end where it may.
        let may_end = !self.request.ignore_eos || self.guide.has_grammar();
        if may_end && tokenizer.is_end_of_generation(choice.token) {
            self.ended = Some(FinishReason::EndOfText);
        } else if self.sampler.is_stop_token(choice.token) {
            self.ended = Some(FinishReason::StopToken(choice.token));
        }
        if self.ended.is_some() {
            self.end_token = Some(Token {
                id: choice.token,
                text: String::new(),
                logprob: choice.logprob,
                top: choice.top,
            });
            return Ok(choice.token);
        }
        self.generated_tokens += 1;
        let text = self.decoder.push(choice.token);
        let stop = match may_stop {
            true => self.stops.push(text),
            false => StopStep {
                text: text.to_owned(),
                stopped_by: None,
            },
        };
        self.ended = stop.stopped_by.map(FinishReason::StopString);
        if complete {
            self.ended.get_or_insert(FinishReason::EndOfText);
        }
        self.pending.push(Token {
            id: choice.token,
            text: stop.text,
            logprob: choice.logprob,
            top: choice.top,
        });
        Ok(choice.token)
    }

    /// The logits as the processor of the request has changed them; `None` without one. `Break` if it ends the answer.
    fn process(&mut self, logits: &[f32]) -> Result<ControlFlow<(), Option<Vec<f32>>>> {
        let Some(processor) = &self.request.logits_processor else {
            return Ok(ControlFlow::Continue(None));
        };
        let mut processed = std::mem::take(&mut self.processed);
        processed.clear();
        processed.extend_from_slice(logits);
        let flow = processor.process(&self.answer, &mut processed);
        Ok(match flow.map_err(EngineError::Processor)? {
            ControlFlow::Continue(()) => ControlFlow::Continue(Some(processed)),
            ControlFlow::Break(()) => ControlFlow::Break(()),
        })
    }

    /// Samples from the tokens that the guide allows.
    fn sample(&mut self, logits: &[f32]) -> Result<sampling::Sampled, EngineError> {
        let sample = self.sampler.sample(logits, self.guide.mask()?);
        sample.map_err(EngineError::Sampling)
    }

    fn send_pending(&mut self) {
        for token in self.pending.drain(..) {
            self.channel.send(Event::Token(token));
        }
    }

    /// Adds text that the decoder or the stop matcher held back to the last token, which may be the
    /// end-of-generation token.
    fn append_text(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        let end_token = self.end_token.as_ref().map(|token| token.id);
        match (self.pending.last_mut(), end_token) {
            (Some(last), None) => last.text.push_str(&text),
            (_, end_token) => self.pending.push(Token {
                id: end_token
                    .or(self.answer.last().copied())
                    .unwrap_or_default(),
                text,
                logprob: None,
                top: Vec::new(),
            }),
        }
    }

    fn finish(mut self) {
        let stop = self.stops.push(self.decoder.finish());
        self.ended = self.ended.or(stop.stopped_by.map(FinishReason::StopString));
        let text = stop.text + &self.stops.finish();
        self.append_text(text);
        self.send_pending();
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        self.channel.send(Event::Completion(Completion {
            finish_reason: self.ended.unwrap_or_else(|| {
                FinishReason::of_length(self.generated_tokens, self.request.max_tokens)
            }),
            prompt_tokens: self.tokens.len(),
            cached_tokens: self.cached_tokens,
            generated_tokens: self.generated_tokens,
            reasoning_tokens: self.guide.reasoning_tokens(),
            end_token: self.end_token,
            seed: self.sampler.seed(),
            drafts: self.drafts,
            timings: Timings {
                queued: started - self.submitted,
                prompt: first_token - started,
                generation: now - first_token,
            },
        }));
    }
}

/// Adapter scales of a sequence.
fn adapters<'a>(active: &'a BTreeMap<SeqId, Active>, model: &'a Model, id: SeqId) -> &'a [f32] {
    active
        .get(&id)
        .and_then(|active| active.request.adapters.as_deref())
        .unwrap_or(model.adapter_scales())
}

/// Separates prefixes computed with other adapter scales.
fn adapter_salt(scales: Option<&[f32]>) -> u64 {
    let Some(scales) = scales else { return 0 };
    let mut hasher = std::hash::DefaultHasher::new();
    scales.iter().for_each(|x| x.to_bits().hash(&mut hasher));
    hasher.finish() | 1
}
