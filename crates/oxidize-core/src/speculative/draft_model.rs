//! A smaller model that guesses for all sequences of a step, with a session and a cache of its own.

use crate::backend::{Backend, Batch, SeqSlice, Session, SessionConfig};
use crate::error::Result;
use crate::kv::{BlockId, KvBlocks};
use crate::model::Model;
use crate::sampling::Candidates;
use crate::scheduler::SeqId;
use std::collections::BTreeMap;

/// Runs the draft model.
pub(crate) struct DraftModel {
    session: Box<dyn Session>,
    config: SessionConfig,
    kv: KvBlocks,
    sequences: BTreeMap<SeqId, Kept>,
    /// Tokens that both models have: others are neither computed nor guessed.
    n_vocab: u32,
    candidates: Candidates,
    adapters: Vec<f32>,
}

/// What is in the cache of a sequence.
#[derive(Default)]
struct Kept {
    tokens: Vec<u32>,
    blocks: Vec<BlockId>,
}

/// A sequence that wants guesses.
pub(crate) struct DraftAsk<'a> {
    /// The sequence.
    pub(crate) id: SeqId,
    /// Its tokens so far.
    pub(crate) tokens: &'a [u32],
    /// Most tokens to guess.
    pub(crate) most: usize,
}

/// A sequence of a round: what is to be computed next, and what was guessed.
struct Turn {
    id: SeqId,
    pending: Vec<u32>,
    most: usize,
    guess: Vec<u32>,
}

impl DraftModel {
    /// Compiles `model` to guess for one with `n_target` tokens.
    pub(crate) fn new(
        model: &Model,
        backend: &dyn Backend,
        config: SessionConfig,
        n_target: usize,
    ) -> Result<DraftModel> {
        Ok(DraftModel {
            session: model.session(backend, &config)?,
            kv: KvBlocks::new(u32::try_from(config.n_blocks).unwrap_or(u32::MAX)),
            config,
            sequences: BTreeMap::new(),
            n_vocab: u32::try_from(n_target.min(model.n_vocab())).unwrap_or(u32::MAX),
            candidates: Candidates::default(),
            adapters: model.adapter_strengths().to_vec(),
        })
    }

    /// Guesses for each sequence, all in one batch after the other, while the model holds its guess at
    /// least `min_probability` likely.
    pub(crate) fn guess(
        &mut self,
        asks: &[DraftAsk<'_>],
        min_probability: f32,
    ) -> Result<Vec<Vec<u32>>> {
        let mut turns: Vec<Turn> = asks
            .iter()
            .map(|ask| Turn {
                id: ask.id,
                pending: self.rewind(ask),
                most: ask.most,
                guess: Vec::new(),
            })
            .collect();
        while turns.iter().any(|turn| !turn.pending.is_empty()) {
            self.round(&mut turns, min_probability)?;
        }
        Ok(turns.into_iter().map(|turn| turn.guess).collect())
    }

    /// Tokens of a sequence that are not computed yet.
    pub(crate) fn lag(&self, ask: &DraftAsk<'_>) -> usize {
        let computed = self.sequences.get(&ask.id).map_or(0, |k| k.tokens.len());
        ask.tokens.len().saturating_sub(computed)
    }

    /// A sequence is over.
    pub(crate) fn forget(&mut self, id: SeqId) {
        if let Some(mut kept) = self.sequences.remove(&id) {
            self.kv.release_tail(&mut kept.blocks, 0);
        }
    }

    /// Takes wrong guesses back and returns the tokens that are not computed: at least the last one.
    fn rewind(&mut self, ask: &DraftAsk<'_>) -> Vec<u32> {
        // A sequence longer than this model can be gets no guesses.
        if ask.tokens.len() + ask.most > self.config.max_context || ask.most == 0 {
            return Vec::new();
        }
        let kept = self.sequences.entry(ask.id).or_default();
        let pairs = kept.tokens.iter().zip(ask.tokens);
        let same = pairs.take_while(|(kept, token)| kept == token).count();
        let same = same.min(ask.tokens.len().saturating_sub(1));
        kept.tokens.truncate(same);
        self.kv
            .release_tail(&mut kept.blocks, same.div_ceil(self.config.block_size));
        let pending = ask.tokens.get(same..).unwrap_or_default();
        if pending.iter().any(|&token| token >= self.n_vocab) {
            return Vec::new();
        }
        pending.to_vec()
    }

    /// Computes what is pending, as much as fits in a batch, and guesses where nothing is left.
    fn round(&mut self, turns: &mut [Turn], min_probability: f32) -> Result<()> {
        let (mut tokens, mut positions, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        let mut fed = Vec::new();
        for (index, turn) in turns.iter_mut().enumerate() {
            let room = self.config.max_tokens - tokens.len();
            let n = turn.pending.len().min(room);
            if n == 0 || outputs.len() == self.config.max_outputs {
                continue;
            }
            let start = match self.reserve(turn.id, n) {
                Some(start) => start,
                None => {
                    turn.pending.clear();
                    continue;
                }
            };
            positions.extend((start..start + n).map(|position| position as u32));
            tokens.extend(turn.pending.drain(..n));
            if turn.pending.is_empty() {
                outputs.push(tokens.len() as u32 - 1);
            }
            fed.push((index, n));
        }
        if fed.is_empty() {
            return Ok(());
        }
        let slices = fed.iter().map(|&(index, n)| SeqSlice {
            n_tokens: n,
            blocks: turns
                .get(index)
                .and_then(|turn| self.sequences.get(&turn.id))
                .map_or(&[], |kept| &*kept.blocks),
            adapters: &self.adapters,
            ..SeqSlice::default()
        });
        let sequences: Vec<SeqSlice<'_>> = slices.collect();
        self.session.run(&Batch {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
        })?;
        let (mut row, mut output) = (0, 0);
        for (index, n) in fed {
            let Some(turn) = turns.get_mut(index) else {
                continue;
            };
            if let Some(kept) = self.sequences.get_mut(&turn.id) {
                kept.tokens
                    .extend(tokens.get(row..row + n).unwrap_or_default());
            }
            row += n;
            if !turn.pending.is_empty() {
                continue;
            }
            self.candidates
                .load(self.session.output(output)?)
                .map_err(crate::engine::EngineError::Sampling)?;
            output += 1;
            let best = self.candidates.argmax();
            // The largest weight is 1, so this is the probability of the most likely token.
            let probability = 1.0 / self.candidates.weigh();
            if let Some(token) = best.filter(|&token| token < self.n_vocab)
                && probability >= f64::from(min_probability)
            {
                turn.guess.push(token);
                if turn.guess.len() < turn.most {
                    turn.pending.push(token);
                }
            }
        }
        Ok(())
    }

    /// Blocks for `n` more tokens of a sequence; the position of the first of them.
    fn reserve(&mut self, id: SeqId, n: usize) -> Option<usize> {
        let kept = self.sequences.get_mut(&id)?;
        let start = kept.tokens.len();
        while kept.blocks.len() * self.config.block_size < start + n {
            kept.blocks.push(self.kv.allocate()?);
        }
        Some(start)
    }
}
