//! Beam search for the most likely answers. Each search runs on a session of its own and does not stream,
//! since no token is final before the search ends.

use super::guide::{Guide, Guides};
use super::request::{Completion, EngineError, FinishReason, Request, Resolved, Timings, Token};
use super::{BLOCK_SIZE, EngineConfig};
use crate::backend::MemoryPlan;
use crate::backend::{Backend, Batch, Readback, SeqSlice, Session, SessionConfig};
use crate::error::Result;
use crate::kv::{BlockCopy, BlockId, KvBlocks};
use crate::model::Model;
use crate::sampling::{Sampler, SamplingParams, StopMatcher, StopStep};
use crate::scheduler::SubmitError;
use crate::speculative::DraftCounts;
use crate::tokenizer::{StreamDecoder, Tokenizer};
use std::time::Duration;

/// Parameters of a beam search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamParams {
    /// Number of beams, and the maximum number of answers.
    pub beams: usize,
    /// Exponent of the answer length that divides its log probability: 0 prefers short answers, 1 compares
    /// the mean log probability per token.
    pub length_penalty: f32,
}

/// Maximum number of beams.
pub const MAX_BEAMS: usize = 64;

/// An answer found by a beam search.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamSequence {
    /// Token ids, without the end-of-generation token.
    pub tokens: Vec<u32>,
    /// Text.
    pub text: String,
    /// Log probability under the model, after biases, penalties and grammar.
    pub logprob: f32,
    /// Log probability divided by length to the power [`BeamParams::length_penalty`]; answers are ordered by
    /// it.
    pub score: f32,
    /// Finish reason.
    pub finish_reason: FinishReason,
    /// Tokens that belong to reasoning before the answer.
    pub reasoning_tokens: usize,
}

impl BeamSequence {
    /// The answer in the form of a [`TokenStream`](super::TokenStream): one token with all of its text, and the
    /// completion. `took` is the duration of the search.
    pub fn into_stream_parts(self, prompt_tokens: usize, took: Duration) -> (Token, Completion) {
        let completion = Completion {
            finish_reason: self.finish_reason,
            prompt_tokens,
            cached_tokens: 0,
            generated_tokens: self.tokens.len(),
            reasoning_tokens: self.reasoning_tokens,
            end_token: None,
            seed: 0,
            drafts: DraftCounts::default(),
            timings: Timings {
                generation: took,
                ..Timings::default()
            },
        };
        let token = Token {
            id: self.tokens.last().copied().unwrap_or_default(),
            text: self.text,
            logprob: None,
            top: Vec::new(),
        };
        (token, completion)
    }
}

/// Finds the most likely answers to a request, the best first. Temperature and the truncating samplers are
/// ignored; grammar, penalties, biases, banned strings and stop strings apply. Ends early, with the best
/// answers so far, when `keep_going` returns false.
pub fn beam_search(
    model: &Model,
    backend: &dyn Backend,
    config: &EngineConfig,
    request: &Request,
    params: BeamParams,
    mut keep_going: impl FnMut() -> bool,
) -> Result<Vec<BeamSequence>> {
    let mut search = Search::new(model, backend, config, request, params)?;
    search.compute_prompt()?;
    while !search.live.is_empty() && !search.is_decided() && keep_going() {
        search.step()?;
    }
    Ok(search.answers())
}

/// State of a search.
struct Search<'a> {
    request: &'a Request,
    prompt: Vec<u32>,
    params: BeamParams,
    tokenizer: &'a Tokenizer,
    session: Box<dyn Session>,
    config: SessionConfig,
    kv: KvBlocks,
    live: Vec<Beam>,
    finished: Vec<BeamSequence>,
    max_new_tokens: usize,
    adapters: &'a [f32],
    is_recurrent: bool,
}

/// An unfinished answer.
#[derive(Clone)]
struct Beam {
    tokens: Vec<u32>,
    logprob: f32,
    text: String,
    sampler: Sampler,
    guide: Guide,
    stops: StopMatcher,
    decoder: StreamDecoder,
    /// Block table, which includes the prompt; beams with the same beginning share blocks.
    blocks: Vec<BlockId>,
    /// Index of the beam's logits in the outputs of the last batch.
    output: usize,
    /// Slot of the beam's recurrent state, if the model has one.
    slot: u32,
}

/// A possible next token of a beam.
struct Candidate {
    beam: usize,
    token: u32,
    logprob: f32,
}

impl<'a> Search<'a> {
    fn new(
        model: &'a Model,
        backend: &dyn Backend,
        config: &EngineConfig,
        request: &'a Request,
        params: BeamParams,
    ) -> Result<Search<'a>> {
        if !(1..=MAX_BEAMS).contains(&params.beams) || !params.length_penalty.is_finite() {
            return Err(EngineError::Beams(params.beams).into());
        }
        if request.logits_processor.is_some() {
            let problem = "beam search takes none".to_owned();
            return Err(EngineError::Processor(problem).into());
        }
        let Resolved {
            tokens: prompt,
            sampling,
            reasoning,
        } = request.resolve(model)?;
        let (n_prompt, n_ctx) = (prompt.len(), config.context(model));
        if n_prompt == 0 {
            return Err(EngineError::Submit(SubmitError::Empty).into());
        }
        let (requested, limit) = (n_prompt + 1, n_ctx);
        if requested > limit {
            return Err(EngineError::Submit(SubmitError::TooLong { requested, limit }).into());
        }
        let n_vocab = model.n_vocab();
        if let Some(&token) = prompt.iter().find(|&&t| t as usize >= n_vocab) {
            return Err(EngineError::TokenOutOfRange { token, n_vocab }.into());
        }
        let max_new_tokens = request
            .max_tokens
            .unwrap_or(usize::MAX)
            .min(n_ctx - n_prompt);
        // Each beam needs blocks for its own tokens, and a copy of a shared block before writing to it.
        let n_own = max_new_tokens.div_ceil(BLOCK_SIZE) + 2;
        let n_blocks = n_prompt.div_ceil(BLOCK_SIZE) + params.beams * n_own;
        let session_config = SessionConfig {
            n_blocks,
            // All layers share the tables of the beams.
            windows: Vec::new(),
            max_tokens: config.max_batch_tokens.max(params.beams),
            max_outputs: params.beams,
            // The slots of one step, and those to which the next step copies the states.
            state_slots: 2 * params.beams,
            ..config.session(model)
        };
        if config.check_memory {
            MemoryPlan::new(model, backend, &session_config).check(model)?;
        }
        let sampling = SamplingParams {
            // Greedy keeps penalties and biases and skips the truncating samplers.
            temperature: 0.0,
            ..sampling
        };
        let vocab = model.sampler_vocab();
        let mut sampler = Sampler::new(&sampling, &vocab).map_err(EngineError::Sampling)?;
        sampler.accept_prompt(&prompt);
        let tokenizer = model.tokenizer()?;
        let beam = Beam {
            tokens: Vec::new(),
            logprob: 0.0,
            text: String::new(),
            sampler,
            guide: Guides::default().guide(model, request.grammar.as_ref(), reasoning)?,
            stops: StopMatcher::new(&sampling.stop).map_err(EngineError::Sampling)?,
            decoder: tokenizer.stream().render_special(request.render_special),
            blocks: Vec::new(),
            output: 0,
            slot: 0,
        };
        Ok(Search {
            request,
            prompt,
            params,
            tokenizer,
            session: model.session(backend, &session_config)?,
            kv: KvBlocks::new(u32::try_from(n_blocks).unwrap_or(u32::MAX), BLOCK_SIZE),
            config: session_config,
            live: vec![beam],
            finished: Vec::new(),
            max_new_tokens,
            is_recurrent: !model.plan().states.is_empty(),
            adapters: request
                .adapters
                .as_deref()
                .unwrap_or(model.adapter_scales()),
        })
    }

    /// Computes the prompt, after which the only beam has logits.
    fn compute_prompt(&mut self) -> Result<()> {
        let Some(beam) = self.live.first_mut() else {
            return Ok(());
        };
        let tokens = &self.prompt;
        for _ in 0..tokens.len().div_ceil(BLOCK_SIZE) {
            beam.blocks.push(self.kv.allocate().ok_or_else(no_block)?);
        }
        let positions: Vec<u32> = (0..tokens.len() as u32).collect();
        let size = self.config.max_tokens;
        let chunks = tokens.chunks(size).zip(positions.chunks(size));
        for (tokens, positions) in chunks {
            self.session.run(&Batch {
                tokens,
                positions,
                sequences: &[SeqSlice {
                    n_tokens: tokens.len(),
                    blocks: &beam.blocks,
                    slot: beam.slot,
                    adapters: self.adapters,
                    ..SeqSlice::default()
                }],
                outputs: &[tokens.len() as u32 - 1],
            })?;
        }
        Ok(self.session.finish_blocking(Readback::Outputs)?)
    }

    /// Extends the best beams by a token and computes the next logits.
    fn step(&mut self) -> Result<()> {
        let candidates = self.best_candidates()?;
        let old = std::mem::take(&mut self.live);
        for candidate in candidates {
            if self.live.len() == self.params.beams {
                break;
            }
            let Some(parent) = old.get(candidate.beam) else {
                continue;
            };
            self.extend(parent, &candidate)?;
        }
        for mut beam in old {
            self.kv.release_tail(&mut beam.blocks, 0);
        }
        if self.live.is_empty() {
            return Ok(());
        }
        self.compute()
    }

    /// Returns the best candidates of all beams. There are twice as many as beams, because some may end their
    /// answer.
    fn best_candidates(&mut self) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::new();
        for (index, beam) in self.live.iter_mut().enumerate() {
            let logits = self.session.output(beam.output)?;
            let mask = beam.guide.mask()?;
            let ranked = beam.sampler.ranked(logits, mask, 2 * self.params.beams);
            for (token, logprob) in ranked.map_err(EngineError::Sampling)? {
                candidates.push(Candidate {
                    beam: index,
                    token,
                    logprob: beam.logprob + logprob,
                });
            }
        }
        candidates.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        candidates.truncate(2 * self.params.beams);
        Ok(candidates)
    }

    /// Extends a beam by a token, which may finish it.
    fn extend(&mut self, parent: &Beam, candidate: &Candidate) -> Result<()> {
        let mut beam = parent.clone();
        beam.logprob = candidate.logprob;
        let may_stop = beam.sampler.has_min_tokens();
        beam.sampler.accept(candidate.token);
        let complete = beam.guide.accept(candidate.token, self.tokenizer)?;
        let may_end = !self.request.ignore_eos || beam.guide.has_grammar();
        if may_end && self.tokenizer.is_end_of_generation(candidate.token) {
            self.finish(beam, FinishReason::EndOfText);
            return Ok(());
        }
        if beam.sampler.is_stop_token(candidate.token) {
            self.finish(beam, FinishReason::StopToken(candidate.token));
            return Ok(());
        }
        beam.tokens.push(candidate.token);
        let text = beam.decoder.push(candidate.token);
        let stop = match may_stop {
            true => beam.stops.push(text),
            false => StopStep {
                text: text.to_owned(),
                stopped_by: None,
            },
        };
        beam.text.push_str(&stop.text);
        if let Some(index) = stop.stopped_by {
            self.finish(beam, FinishReason::StopString(index));
        } else if complete {
            self.finish(beam, FinishReason::EndOfText);
        } else if beam.tokens.len() >= self.max_new_tokens {
            let reason = FinishReason::of_length(beam.tokens.len(), self.request.max_tokens);
            self.finish(beam, reason);
        } else {
            beam.blocks.iter().for_each(|&block| self.kv.retain(block));
            self.live.push(beam);
        }
        Ok(())
    }

    /// Adds a finished answer if it is among the best.
    fn finish(&mut self, mut beam: Beam, reason: FinishReason) {
        let rest = beam.stops.push(beam.decoder.finish());
        beam.text.push_str(&rest.text);
        beam.text.push_str(&beam.stops.finish());
        self.finished.push(BeamSequence {
            score: self.score(beam.logprob, beam.tokens.len()),
            tokens: beam.tokens,
            reasoning_tokens: beam.guide.reasoning_tokens(),
            text: beam.text,
            logprob: beam.logprob,
            finish_reason: reason,
        });
        self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(self.params.beams);
    }

    fn score(&self, logprob: f32, length: usize) -> f32 {
        logprob / (length.max(1) as f32).powf(self.params.length_penalty)
    }

    /// True if no unfinished beam can become one of the best answers. Log probabilities only decrease, so the
    /// best possible score of a beam is its current log probability at the length with the highest score.
    fn is_decided(&self) -> bool {
        let Some(worst) = self.finished.last() else {
            return false;
        };
        let full = self.finished.len() == self.params.beams;
        let prefers_long = self.params.length_penalty > 0.0;
        let best = self.live.iter().map(|beam| {
            let length = if prefers_long {
                self.max_new_tokens
            } else {
                beam.tokens.len()
            };
            self.score(beam.logprob, length)
        });
        full && best.fold(f32::NEG_INFINITY, f32::max) <= worst.score
    }

    /// Computes the last token of each beam.
    fn compute(&mut self) -> Result<()> {
        let (mut copies, mut states) = (Vec::new(), Vec::new());
        // States alternate between two sets of slots, so that none is overwritten before it is copied.
        let beams = self.params.beams as u32;
        let first_slot = self.live.first().map_or(0, |beam| beam.slot) / beams * beams;
        let other_slots = (beams - first_slot)..;
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        for ((output, beam), slot) in self.live.iter_mut().enumerate().zip(other_slots) {
            let position = self.prompt.len() + beam.tokens.len() - 1;
            match beam.blocks.get_mut(position / BLOCK_SIZE) {
                Some(block) => {
                    // Another beam may continue in the same block with other tokens.
                    let writable = self.kv.make_writable(*block).ok_or_else(no_block)?;
                    let from = std::mem::replace(block, writable);
                    copies.extend((from != writable).then_some(BlockCopy {
                        group: 0,
                        from,
                        to: writable,
                    }));
                }
                None => beam.blocks.push(self.kv.allocate().ok_or_else(no_block)?),
            }
            tokens.extend(beam.tokens.last());
            positions.push(position as u32);
            beam.output = output;
            states.push((beam.slot, slot));
            beam.slot = slot;
        }
        self.session.copy_blocks(&copies)?;
        if self.is_recurrent {
            self.session.copy_states(&states)?;
        }
        let slices = self.live.iter().map(|beam| SeqSlice {
            n_tokens: 1,
            blocks: &beam.blocks,
            slot: beam.slot,
            adapters: self.adapters,
            ..SeqSlice::default()
        });
        let sequences: Vec<SeqSlice<'_>> = slices.collect();
        let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
        self.session.run(&Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
        })?;
        Ok(self.session.finish_blocking(Readback::Outputs)?)
    }

    /// Returns the finished answers, or the unfinished ones if none has ended.
    fn answers(mut self) -> Vec<BeamSequence> {
        if self.finished.is_empty() {
            for beam in std::mem::take(&mut self.live) {
                self.finish(beam, FinishReason::Length);
            }
        }
        self.finished
    }
}

fn no_block() -> EngineError {
    EngineError::Internal("the beam search ran out of KV cache blocks".into())
}
