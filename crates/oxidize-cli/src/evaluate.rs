//! Runs a model over a given text, one sequence alone: what measuring needs and an engine does not.

use oxidize_core::Error;
use oxidize_core::backend::{Backend, Batch, SeqSlice, Session, SessionConfig};
use oxidize_core::kv::BlockId;
use oxidize_core::model::{MemoryPlan, Model};

use crate::model_args::ModelArgs;

/// A session for one sequence.
pub(crate) struct Evaluator {
    session: Box<dyn Session>,
    blocks: Vec<BlockId>,
    max_tokens: usize,
    max_outputs: usize,
    adapters: Vec<f32>,
}

impl Evaluator {
    /// A session for up to `n_ctx` tokens with results at any of them.
    pub(crate) fn new(
        model: &Model,
        backend: &dyn Backend,
        args: &ModelArgs,
        n_ctx: usize,
    ) -> anyhow::Result<Evaluator> {
        let trained = model.hparams().n_ctx_train;
        anyhow::ensure!(n_ctx > 0, "there is nothing to compute");
        anyhow::ensure!(
            n_ctx <= trained,
            "{n_ctx} tokens, the model's context holds {trained}"
        );
        Evaluator::with_outputs(model, backend, args, n_ctx, args.batch_size.clamp(1, n_ctx))
    }

    /// A session that measures speed: results at one token of a batch, and any length of context.
    pub(crate) fn for_bench(
        model: &Model,
        backend: &dyn Backend,
        args: &ModelArgs,
        n_ctx: usize,
    ) -> anyhow::Result<Evaluator> {
        Evaluator::with_outputs(model, backend, args, n_ctx, 1)
    }

    fn with_outputs(
        model: &Model,
        backend: &dyn Backend,
        args: &ModelArgs,
        n_ctx: usize,
        max_outputs: usize,
    ) -> anyhow::Result<Evaluator> {
        let max_tokens = args.batch_size.clamp(1, n_ctx.max(1));
        let config = SessionConfig {
            max_tokens,
            max_outputs,
            key_type: args.cache_type_k,
            value_type: args.cache_type_v,
            n_threads: args.threads,
            ..SessionConfig::for_context(n_ctx)
        };
        if !args.no_memory_check {
            MemoryPlan::new(model, &config)
                .check(model)
                .map_err(Error::from)?;
        }
        let session = model.session(backend, &config)?;
        let blocks = (0..config.n_blocks as u32).map(BlockId).collect();
        Ok(Evaluator {
            session,
            blocks,
            max_tokens,
            max_outputs: config.max_outputs,
            adapters: model.adapter_strengths().to_vec(),
        })
    }

    /// Computes `tokens` from position `start` on, with results for those of `outputs` (indexes
    /// into `tokens`, ascending).
    pub(crate) fn run(
        &mut self,
        tokens: &[u32],
        start: usize,
        outputs: &[u32],
    ) -> Result<(), Error> {
        let positions: Vec<u32> = (start as u32..(start + tokens.len()) as u32).collect();
        let sequences = [SeqSlice {
            n_tokens: tokens.len(),
            blocks: &self.blocks,
            slot: 0,
            adapters: &self.adapters,
        }];
        let batch = Batch {
            tokens,
            positions: &positions,
            sequences: &sequences,
            outputs,
        };
        Ok(self.session.run(&batch)?)
    }

    /// Computes `tokens` from position `start` on, with results for the last only, as a prompt is.
    pub(crate) fn prompt(&mut self, tokens: &[u32], start: usize) -> Result<(), Error> {
        let mut at = start;
        let mut pieces = tokens.chunks(self.max_tokens).peekable();
        while let Some(piece) = pieces.next() {
            let last = [piece.len() as u32 - 1];
            self.run(piece, at, if pieces.peek().is_none() { &last } else { &[] })?;
            at += piece.len();
        }
        Ok(())
    }

    /// Puts `tokens` into the context.
    pub(crate) fn fill(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let mut at = 0;
        for piece in tokens.chunks(self.max_tokens) {
            self.run(piece, at, &[])?;
            at += piece.len();
        }
        Ok(())
    }

    /// Computes all of `tokens` and calls `visit` with the logits of each position from `first` on.
    pub(crate) fn each_logits(
        &mut self,
        tokens: &[u32],
        first: usize,
        mut visit: impl FnMut(usize, &[f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let size = self.max_tokens.min(self.max_outputs);
        for (index, piece) in tokens.chunks(size).enumerate() {
            let start = index * size;
            let outputs: Vec<u32> = (0..piece.len() as u32)
                .filter(|&i| start + i as usize >= first)
                .collect();
            self.run(piece, start, &outputs)?;
            for (nth, &output) in outputs.iter().enumerate() {
                visit(start + output as usize, self.session.output(nth)?)?;
            }
        }
        Ok(())
    }
}
