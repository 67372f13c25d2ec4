//! [`DraftModel`]: a smaller model that drafts for all sequences of a step, with its own session
//! and cache.

use crate::backend::{Backend, Batch, Readback, SeqSlice, Session, SessionConfig};
use crate::error::Result;
use crate::kv::{BlockId, KvBlocks};
use crate::model::Model;
use crate::sampling::Candidates;
use crate::scheduler::SeqId;
use std::collections::BTreeMap;

/// Draft model with its session and KV cache.
pub(crate) struct DraftModel {
    session: Box<dyn Session>,
    config: SessionConfig,
    kv: KvBlocks,
    sequences: BTreeMap<SeqId, CachedSequence>,
    /// Size of the shared vocabulary; other tokens are neither computed nor drafted.
    n_vocab: u32,
    candidates: Candidates,
    adapters: Vec<f32>,
}

/// Cached tokens of a sequence.
#[derive(Default)]
struct CachedSequence {
    tokens: Vec<u32>,
    blocks: Vec<BlockId>,
}

/// Request to draft for a sequence.
pub(crate) struct DraftRequest<'a> {
    /// Sequence id.
    pub(crate) id: SeqId,
    /// Tokens of the sequence.
    pub(crate) tokens: &'a [u32],
    /// Maximum number of tokens to draft.
    pub(crate) max_tokens: usize,
    /// The draft ends where the probability of its next token is below this.
    pub(crate) min_probability: f32,
}

/// Drafting state of a sequence: tokens to compute next, and the draft so far.
struct DraftState {
    id: SeqId,
    pending: Vec<u32>,
    max_tokens: usize,
    min_probability: f32,
    draft: Vec<u32>,
}

impl DraftModel {
    /// Compiles `model` to draft for a model with `n_target` tokens.
    pub(crate) fn new(
        model: &Model,
        backend: &dyn Backend,
        config: SessionConfig,
        n_target: usize,
    ) -> Result<DraftModel> {
        Ok(DraftModel {
            session: model.session(backend, &config)?,
            kv: KvBlocks::new(
                u32::try_from(config.n_blocks).unwrap_or(u32::MAX),
                config.block_size,
            ),
            config,
            sequences: BTreeMap::new(),
            n_vocab: u32::try_from(n_target.min(model.n_vocab())).unwrap_or(u32::MAX),
            candidates: Candidates::default(),
            adapters: model.adapter_scales().to_vec(),
        })
    }

    /// Drafts for all sequences, in one batch per token.
    pub(crate) async fn draft(&mut self, requests: &[DraftRequest<'_>]) -> Result<Vec<Vec<u32>>> {
        let mut states: Vec<DraftState> = requests
            .iter()
            .map(|request| DraftState {
                id: request.id,
                pending: self.rewind(request),
                max_tokens: request.max_tokens,
                min_probability: request.min_probability,
                draft: Vec::new(),
            })
            .collect();
        while states.iter().any(|state| !state.pending.is_empty()) {
            self.round(&mut states).await?;
        }
        Ok(states.into_iter().map(|state| state.draft).collect())
    }

    /// Number of tokens of a sequence that are not computed yet.
    pub(crate) fn lag(&self, request: &DraftRequest<'_>) -> usize {
        let computed = self
            .sequences
            .get(&request.id)
            .map_or(0, |k| k.tokens.len());
        request.tokens.len().saturating_sub(computed)
    }

    /// Removes a finished sequence.
    pub(crate) fn remove(&mut self, id: SeqId) {
        if let Some(mut kept) = self.sequences.remove(&id) {
            self.kv.release_tail(&mut kept.blocks, 0);
        }
    }

    /// Removes rejected drafts from the cache and returns the tokens to compute, at least the last
    /// one.
    fn rewind(&mut self, request: &DraftRequest<'_>) -> Vec<u32> {
        // A sequence that exceeds the context of this model gets no drafts.
        if request.tokens.len() + request.max_tokens > self.config.max_context
            || request.max_tokens == 0
        {
            return Vec::new();
        }
        let kept = self.sequences.entry(request.id).or_default();
        let pairs = kept.tokens.iter().zip(request.tokens);
        let n_same = pairs.take_while(|(kept, token)| kept == token).count();
        let n_same = n_same.min(request.tokens.len().saturating_sub(1));
        kept.tokens.truncate(n_same);
        self.kv
            .release_tail(&mut kept.blocks, n_same.div_ceil(self.config.block_size));
        let pending = request.tokens.get(n_same..).unwrap_or_default();
        if pending.iter().any(|&token| token >= self.n_vocab) {
            return Vec::new();
        }
        pending.to_vec()
    }

    /// Computes pending tokens, as many as fit in a batch, and extends the drafts of sequences
    /// without pending tokens.
    async fn round(&mut self, states: &mut [DraftState]) -> Result<()> {
        let (mut tokens, mut positions, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        let mut parts = Vec::new();
        for (index, state) in states.iter_mut().enumerate() {
            let room = self.config.max_tokens - tokens.len();
            let n = state.pending.len().min(room);
            if n == 0 || outputs.len() == self.config.max_outputs {
                continue;
            }
            let start = match self.reserve(state.id, n) {
                Some(start) => start,
                None => {
                    state.pending.clear();
                    continue;
                }
            };
            positions.extend((start..start + n).map(|position| position as u32));
            tokens.extend(state.pending.drain(..n));
            if state.pending.is_empty() {
                outputs.push(tokens.len() as u32 - 1);
            }
            parts.push((index, n));
        }
        if parts.is_empty() {
            return Ok(());
        }
        let slices = parts.iter().map(|&(index, n)| SeqSlice {
            n_tokens: n,
            blocks: states
                .get(index)
                .and_then(|state| self.sequences.get(&state.id))
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
        self.session.finish(Readback::Outputs).await?;
        let (mut row, mut output) = (0, 0);
        for (index, n) in parts {
            let Some(state) = states.get_mut(index) else {
                continue;
            };
            if let Some(kept) = self.sequences.get_mut(&state.id) {
                kept.tokens
                    .extend(tokens.get(row..row + n).unwrap_or_default());
            }
            row += n;
            if !state.pending.is_empty() {
                continue;
            }
            self.candidates.load(self.session.output(output)?)?;
            output += 1;
            let best = self.candidates.argmax();
            // The largest weight is 1, so this is the probability of the most likely token.
            let probability = 1.0 / self.candidates.exp_sum();
            if let Some(token) = best.filter(|&token| token < self.n_vocab)
                && probability >= f64::from(state.min_probability)
            {
                state.draft.push(token);
                if state.draft.len() < state.max_tokens {
                    state.pending.push(token);
                }
            }
        }
        Ok(())
    }

    /// Reserves blocks for `n` more tokens of a sequence. Returns the position of the first of
    /// them.
    fn reserve(&mut self, id: SeqId, n: usize) -> Option<usize> {
        let kept = self.sequences.get_mut(&id)?;
        let start = kept.tokens.len();
        while kept.blocks.len() * self.config.block_size < start + n {
            kept.blocks.push(self.kv.allocate()?);
        }
        Some(start)
    }
}
