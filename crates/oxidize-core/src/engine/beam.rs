//! Beam search: the most likely answers as a whole, of which the most likely first token need not be
//! part. Not streamed, and on a session of its own: no word is certain before the last.

use super::guide::{Guide, Guides};
use super::request::{EngineError, FinishReason, Request};
use super::{BLOCK_SIZE, EngineConfig};
use crate::backend::{Backend, Batch, SeqSlice, Session, SessionConfig};
use crate::error::Result;
use crate::kv::{BlockId, KvBlocks};
use crate::model::{MemoryPlan, Model};
use crate::sampling::{Sampler, SamplingParams, StopMatcher};
use crate::scheduler::SubmitError;
use crate::tokenizer::{StreamDecoder, Tokenizer};

/// How wide a search is, and which answers it prefers.
#[derive(Clone, Copy, Debug)]
pub struct BeamParams {
    /// Answers that are followed at once, and how many are returned at most.
    pub beams: usize,
    /// An answer's log probability is divided by its length to this power: 0 prefers short answers,
    /// 1 compares them by the token.
    pub length_penalty: f32,
}

/// Most answers that are followed at once.
pub const MOST_BEAMS: usize = 64;

/// An answer that a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamAnswer {
    /// Its tokens, without one that ends it.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Its log probability under the model, as biases, penalties and grammar leave it.
    pub logprob: f32,
    /// What answers are compared by: the log probability over the length to the power asked for.
    pub score: f32,
    /// Why it ended.
    pub reason: FinishReason,
}

/// Finds the most likely answers to a request, the best first. Temperature and the truncating samplers
/// play no part; grammar, penalties, biases, bans and stop strings do. Ends early, with the best so far,
/// when `go_on` says no.
pub fn beam_search(
    model: &Model,
    backend: &dyn Backend,
    config: &EngineConfig,
    request: &Request,
    params: BeamParams,
    mut go_on: impl FnMut() -> bool,
) -> Result<Vec<BeamAnswer>> {
    let mut search = Search::new(model, backend, config, request, params)?;
    search.read_prompt()?;
    while !search.live.is_empty() && !search.is_decided() && go_on() {
        search.step()?;
    }
    Ok(search.answers())
}

/// A search under way.
struct Search<'a> {
    request: &'a Request,
    params: BeamParams,
    tokenizer: &'a Tokenizer,
    session: Box<dyn Session>,
    config: SessionConfig,
    kv: KvBlocks,
    live: Vec<Beam>,
    finished: Vec<BeamAnswer>,
    most_tokens: usize,
    adapters: &'a [f32],
    is_recurrent: bool,
}

/// An answer that goes on.
#[derive(Clone)]
struct Beam {
    tokens: Vec<u32>,
    logprob: f32,
    text: String,
    sampler: Sampler,
    guide: Guide,
    stops: StopMatcher,
    decoder: StreamDecoder,
    /// Where its positions are, those of the prompt included; shared with others of the same beginning.
    blocks: Vec<BlockId>,
    /// The place of its logits among the outputs of the last batch.
    output: usize,
    /// The place of its recurrent state, if the model has one.
    slot: u32,
}

/// A beam that may go on by a token.
struct Choice {
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
        if !(1..=MOST_BEAMS).contains(&params.beams) || !params.length_penalty.is_finite() {
            return Err(EngineError::Beams(params.beams).into());
        }
        let (n_prompt, n_ctx) = (request.tokens.len(), config.context(model));
        if n_prompt == 0 {
            return Err(EngineError::Submit(SubmitError::Empty).into());
        }
        let (asked, limit) = (n_prompt + 1, n_ctx);
        if asked > limit {
            return Err(EngineError::Submit(SubmitError::TooLong { asked, limit }).into());
        }
        let n_vocab = model.n_vocab();
        if let Some(&token) = request.tokens.iter().find(|&&t| t as usize >= n_vocab) {
            return Err(EngineError::TokenOutOfRange { token, n_vocab }.into());
        }
        let most_tokens = request
            .max_tokens
            .unwrap_or(usize::MAX)
            .min(n_ctx - n_prompt);
        // Each beam writes blocks of its own, and one is copied before it is written.
        let own = most_tokens.div_ceil(BLOCK_SIZE) + 2;
        let n_blocks = n_prompt.div_ceil(BLOCK_SIZE) + params.beams * own;
        let session_config = SessionConfig {
            n_blocks,
            max_tokens: config.max_batch_tokens.max(params.beams),
            max_outputs: params.beams,
            // Those of a step, and those that the next one copies them to.
            state_slots: 2 * params.beams,
            ..config.session(model)
        };
        if config.check_memory {
            MemoryPlan::new(model, &session_config).check(model)?;
        }
        let sampling = SamplingParams {
            // Leaves the stages that reweigh and drops those that cut.
            temperature: 0.0,
            ..request.sampling.clone()
        };
        let vocab = model.sampler_vocab();
        let mut sampler = Sampler::new(&sampling, &vocab).map_err(EngineError::Sampling)?;
        sampler.accept_prompt(&request.tokens);
        let tokenizer = model.tokenizer()?;
        let beam = Beam {
            tokens: Vec::new(),
            logprob: 0.0,
            text: String::new(),
            sampler,
            guide: Guides::default().guide(model, request.grammar.as_ref())?,
            stops: StopMatcher::new(&request.sampling.stop).map_err(EngineError::Sampling)?,
            decoder: tokenizer.stream().render_special(request.render_special),
            blocks: Vec::new(),
            output: 0,
            slot: 0,
        };
        Ok(Search {
            request,
            params,
            tokenizer,
            session: model.session(backend, &session_config)?,
            kv: KvBlocks::new(u32::try_from(n_blocks).unwrap_or(u32::MAX)),
            config: session_config,
            live: vec![beam],
            finished: Vec::new(),
            most_tokens,
            is_recurrent: !model.plan().states.is_empty(),
            adapters: request
                .adapters
                .as_deref()
                .unwrap_or(model.adapter_strengths()),
        })
    }

    /// Computes the prompt, after which the one beam has logits.
    fn read_prompt(&mut self) -> Result<()> {
        let Some(beam) = self.live.first_mut() else {
            return Ok(());
        };
        let tokens = &self.request.tokens;
        for _ in 0..tokens.len().div_ceil(BLOCK_SIZE) {
            beam.blocks.push(self.kv.allocate().ok_or_else(no_block)?);
        }
        let positions: Vec<u32> = (0..tokens.len() as u32).collect();
        let size = self.config.max_tokens;
        let pieces = tokens.chunks(size).zip(positions.chunks(size));
        for (tokens, positions) in pieces {
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
        Ok(())
    }

    /// Lets the best continuations go on by a token, and computes them.
    fn step(&mut self) -> Result<()> {
        let choices = self.rank()?;
        let old = std::mem::take(&mut self.live);
        for choice in choices {
            if self.live.len() == self.params.beams {
                break;
            }
            let Some(parent) = old.get(choice.beam) else {
                continue;
            };
            self.follow(parent, &choice)?;
        }
        for mut beam in old {
            self.kv.release_tail(&mut beam.blocks, 0);
        }
        if self.live.is_empty() {
            return Ok(());
        }
        self.compute()
    }

    /// The best continuations of all beams, twice as many as go on: some may be ends.
    fn rank(&mut self) -> Result<Vec<Choice>> {
        let mut choices = Vec::new();
        for (index, beam) in self.live.iter_mut().enumerate() {
            let logits = self.session.output(beam.output)?;
            let mask = beam.guide.mask()?;
            let ranked = beam.sampler.ranked(logits, mask, 2 * self.params.beams);
            for (token, logprob) in ranked.map_err(EngineError::Sampling)? {
                choices.push(Choice {
                    beam: index,
                    token,
                    logprob: beam.logprob + logprob,
                });
            }
        }
        choices.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        choices.truncate(2 * self.params.beams);
        Ok(choices)
    }

    /// A beam with one more token, which goes on or is finished.
    fn follow(&mut self, parent: &Beam, choice: &Choice) -> Result<()> {
        let mut beam = parent.clone();
        beam.logprob = choice.logprob;
        beam.sampler.accept(choice.token);
        let complete = beam.guide.accept(choice.token)?;
        let may_end = !self.request.ignore_eos || beam.guide.is_some();
        if may_end && self.tokenizer.is_end_of_generation(choice.token) {
            self.finish(beam, FinishReason::EndOfText);
            return Ok(());
        }
        beam.tokens.push(choice.token);
        let stop = beam.stops.push(beam.decoder.push(choice.token));
        beam.text.push_str(&stop.text);
        if let Some(index) = stop.stopped_by {
            self.finish(beam, FinishReason::StopString(index));
        } else if complete {
            self.finish(beam, FinishReason::EndOfText);
        } else if beam.tokens.len() >= self.most_tokens {
            self.finish(beam, FinishReason::Length);
        } else {
            beam.blocks.iter().for_each(|&block| self.kv.retain(block));
            self.live.push(beam);
        }
        Ok(())
    }

    /// Keeps an answer if it is among the best.
    fn finish(&mut self, mut beam: Beam, reason: FinishReason) {
        let rest = beam.stops.push(beam.decoder.finish());
        beam.text.push_str(&rest.text);
        beam.text.push_str(&beam.stops.finish());
        self.finished.push(BeamAnswer {
            score: self.score(beam.logprob, beam.tokens.len()),
            tokens: beam.tokens,
            text: beam.text,
            logprob: beam.logprob,
            reason,
        });
        self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(self.params.beams);
    }

    fn score(&self, logprob: f32, length: usize) -> f32 {
        logprob / (length.max(1) as f32).powf(self.params.length_penalty)
    }

    /// Whether no beam that goes on can be among the best any more: log probabilities only fall, so
    /// none can do better than to go on for free to the longest length that helps.
    fn is_decided(&self) -> bool {
        let Some(worst) = self.finished.last() else {
            return false;
        };
        let full = self.finished.len() == self.params.beams;
        let helps = self.params.length_penalty > 0.0;
        let best = self.live.iter().map(|beam| {
            let length = if helps {
                self.most_tokens
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
        // States go back and forth between two sets of slots, so that none is overwritten too early.
        let beams = self.params.beams as u32;
        let first_slot = self.live.first().map_or(0, |beam| beam.slot) / beams * beams;
        let other_slots = (beams - first_slot)..;
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        for ((output, beam), slot) in self.live.iter_mut().enumerate().zip(other_slots) {
            let position = self.request.tokens.len() + beam.tokens.len() - 1;
            match beam.blocks.get_mut(position / BLOCK_SIZE) {
                Some(block) => {
                    // Another beam may go on in the same block with other tokens.
                    let own = self.kv.make_writable(*block).ok_or_else(no_block)?;
                    if own != *block {
                        copies.push((*block, own));
                        *block = own;
                    }
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
        Ok(self.session.run(&Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
        })?)
    }

    /// What was found, and what was under way where nothing has ended.
    fn answers(mut self) -> Vec<BeamAnswer> {
        if self.finished.is_empty() {
            for beam in std::mem::take(&mut self.live) {
                self.finish(beam, FinishReason::Length);
            }
        }
        self.finished
    }
}

fn no_block() -> EngineError {
    EngineError::Internal("the search has no block left".into())
}
