//! [`CpuSession`] runs the steps of a compiled plan, one batch at a time.
//!
//! [`super::row_ops`] has the ops on rows, [`super::matmul`] and [`super::experts`] the products with weights,
//! [`super::attention`] and [`super::recurrent`] the ops with a state.

use super::attention::AttentionWork;
use super::cache::{self, KvCache, Plane};
use super::experts::ExpertWork;
use super::lower::{Lowered, Step, lower};
use super::memory::Buffers;
use super::pool::Pool;
use super::recurrent::States;
use super::repack::repack;
use crate::backend::row_math::{magnitude_ratio, sparsity_threshold};
use crate::backend::sample::Samples;
use crate::backend::{
    BackendError, Batch, BatchValidator, KvType, Readback, Session, SessionConfig,
};
use crate::graph::{Op, Plan, ValueId};
use crate::kv::{BlockCopy, BlockId};
use crate::weights::Weights;
use oxidize_kernels::{Kernels, QuantizedRows, Scratch};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A plan compiled for the CPU.
pub(super) struct CpuSession {
    pub(super) kernels: &'static Kernels,
    pub(super) pool: Pool,
    pub(super) config: SessionConfig,
    pub(super) weights: Arc<Weights>,
    pub(super) buffers: Buffers,
    pub(super) caches: Vec<KvCache>,
    pub(super) states: States,
    pub(super) workers: Vec<Worker>,
    pub(super) attention: AttentionWork,
    pub(super) experts: ExpertWork,
    /// True if the results of each token of the current batch must not depend on the other tokens.
    pub(super) batch_invariant: bool,
    /// True if 16-bit float weights are multiplied in f32 in batches of any size: so that a cache of f32 is not
    /// rounded elsewhere, and in models without a cache.
    pub(super) f32_products: bool,
    pub(super) quantized: QuantizedRows,
    pub(super) samples: Samples,
    pub(super) segments: Vec<usize>,
    pub(super) validator: BatchValidator,
    steps: Arc<[Step]>,
    n_encoder_steps: usize,
    result: Option<ValueId>,
}

/// Working memory of one thread.
#[derive(Default)]
pub(super) struct Worker {
    pub(super) scratch: Scratch,
    pub(super) floats: Vec<f32>,
    pub(super) quantized: QuantizedRows,
}

impl CpuSession {
    pub(super) fn new(
        kernels: &'static Kernels,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<CpuSession, BackendError> {
        let n_threads = config.n_threads.unwrap_or_else(super::default_threads);
        if n_threads > super::MAX_THREADS {
            return Err(BackendError::TooManyThreads {
                requested: n_threads,
                limit: super::MAX_THREADS,
            });
        }
        // Caches first: if they do not fit, no weight has been repacked in vain.
        let caches = cache::caches(plan, config)?;
        let states = States::new(plan, config)?;
        let pool = Pool::new(n_threads, &config.spawner);
        let weights = repack(plan, weights, config.repack, kernels, &pool)?;
        weights.use_huge_pages();
        let Lowered {
            steps,
            n_encoder_steps,
        } = lower(plan, config.max_context);
        Ok(CpuSession {
            kernels,
            config: config.clone(),
            validator: BatchValidator::new(plan, &weights, config),
            weights: Arc::new(weights),
            buffers: Buffers::new(plan, &steps, config),
            caches,
            states,
            workers: (0..pool.n_threads()).map(|_| Worker::default()).collect(),
            pool,
            attention: AttentionWork::new(config),
            experts: ExpertWork::default(),
            batch_invariant: false,
            f32_products: plan.is_bidirectional()
                || [config.key_type, config.value_type].contains(&KvType::F32),
            quantized: QuantizedRows::new(),
            samples: Samples::new(config.max_outputs),
            segments: Vec::new(),
            steps: steps.into(),
            n_encoder_steps,
            result: plan.result,
        })
    }

    fn steps(&mut self, steps: Range<usize>, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.buffers.n_tokens = batch.tokens.len();
        self.buffers.n_outputs = batch.outputs.len();
        self.batch_invariant = batch.is_batch_invariant(&self.config);
        let block_size = self.config.block_size;
        self.attention
            .prepare(batch, block_size, &self.validator, self.batch_invariant);
        let all = self.steps.clone();
        let mut steps = all[steps].iter();
        steps.try_for_each(|step| self.step(step, batch))
    }

    fn step(&mut self, step: &Step, batch: &Batch<'_>) -> Result<(), BackendError> {
        match step {
            Step::Op(op) => return self.op(op, batch),
            Step::RopeTable { frequencies, out } => self.rope_table(frequencies, *out, batch),
            Step::Project { x, parts } => self.project(*x, parts),
            Step::GatedProject {
                x,
                gate,
                up,
                activation,
                out,
            } => self.gated_project(*x, gate, up, *activation, *out),
        }
        Ok(())
    }

    fn op(&mut self, op: &Op, batch: &Batch<'_>) -> Result<(), BackendError> {
        let kernels = self.kernels;
        match op {
            Op::RopeTable { .. } | Op::Linear { .. } => {
                unreachable!("lowering turns {op:?} into a step of its own")
            }
            Op::Embed { table, out } => self.embed(*table, *out, batch)?,
            Op::EmbedPosition { table, offset, out } => {
                self.embed_position(*table, *offset, *out, batch)?;
            }
            Op::Norm {
                kind,
                x,
                weight,
                bias,
                epsilon,
                width,
                out,
            } => self.norm(*kind, *x, [*weight, *bias], *epsilon, *width, *out),
            Op::HeadLinear { x, weight, out } => self.head_linear(*x, *weight, *out),
            Op::Rope {
                x,
                table,
                head_dim,
                layout,
                out,
            } => self.rope(*x, *table, *head_dim, *layout, *out),
            Op::StoreKv { layer, k, v } => self.store_kv(*layer, *k, *v),
            Op::Attention { q, spec, out } => self.attend(spec, *q, *out, batch),
            Op::Activate { x, activation, out } => {
                self.map(*x, *out, |x| kernels.activate(*activation, x));
            }
            Op::Xielu { x, spec, out } => {
                self.map(*x, *out, |x| x.iter_mut().for_each(|x| *x = spec.apply(*x)));
            }
            Op::Sparsify {
                x,
                deviations,
                unbiased,
                out,
            } => self.map(*x, *out, |x| {
                let threshold = sparsity_threshold(x, *deviations, *unbiased);
                x.iter_mut().for_each(|x| *x = (*x - threshold).max(0.0));
            }),
            Op::Glu {
                gate,
                up,
                activation,
                out,
            } => {
                self.zip(*gate, *up, *out, |gate, up| {
                    kernels.glu(*activation, gate, up)
                });
            }
            Op::Add { a, b, out } => self.zip(*a, *b, *out, |a, b| kernels.add(a, b)),
            Op::Mul { a, b, out } => self.mul(*a, *b, *out),
            Op::ShortConv { x, spec, out } => self.short_conv(*x, spec, *out),
            Op::SelectiveScan {
                x,
                dt,
                b,
                c,
                spec,
                out,
            } => self.selective_scan([*x, *dt, *b, *c], spec, *out),
            Op::LinearAttention {
                q,
                k,
                v,
                decay,
                spec,
                out,
            } => self.linear_attention([*q, *k, *v, *decay], spec, *out),
            Op::Scale { x, factor, out } => self.map(*x, *out, |x| kernels.scale(x, *factor)),
            Op::AdapterScale {
                x,
                adapter,
                factor,
                out,
            } => self.adapter_scale(*x, *adapter, *factor, *out, batch),
            Op::ScaleBy { x, weight, out } => {
                let weights = self.weights.clone();
                let factors = weights.get(*weight).as_f32();
                self.map(*x, *out, |x| kernels.mul(x, factors));
            }
            Op::AddVector { x, weight, out } => {
                let weights = self.weights.clone();
                let terms = weights.get(*weight).as_f32();
                self.map(*x, *out, |x| kernels.add(x, terms));
            }
            Op::AddSegment { x, table, out } => self.add_segment(*x, *table, *out, batch),
            Op::Temperature { x, spec, out } => self.each_row(Some(*x), *out, |row, x| {
                kernels.scale(x, spec.at(batch.positions[row]));
            }),
            Op::Clamp { x, limit, out } => self.map(*x, *out, |x| {
                x.iter_mut().for_each(|x| *x = x.clamp(-limit, *limit));
            }),
            Op::WeightedSum {
                terms,
                weights,
                offset,
                out,
            } => self.weighted_sum(terms, *weights, *offset, *out),
            Op::MatchMagnitude { x, like, out } => self.zip(*x, *like, *out, |x, like| {
                kernels.scale(x, magnitude_ratio(x, like));
            }),
            Op::Slice {
                x,
                group,
                start,
                len,
                out,
            } => self.gather(*out, *x, |x, out| {
                let groups = x.chunks_exact(*group).zip(out.chunks_exact_mut(*len));
                groups.for_each(|(x, out)| out.copy_from_slice(&x[*start..start + len]));
            }),
            Op::Concat { a, b, groups, out } => self.concat(*a, *b, *groups, *out),
            Op::Softcap { x, cap, out } => self.map(*x, *out, |x| kernels.softcap(x, *cap)),
            Op::Experts {
                x,
                router,
                spec,
                out,
            } => self.run_experts(spec, *x, *router, *out, batch),
            Op::SelectOutputs { x, out } => self.select_outputs(*x, *out, batch),
        }
        Ok(())
    }

    /// The keys and values of the layers of a group.
    fn planes(&self, group: usize) -> impl Iterator<Item = &Plane> {
        let caches = self.caches.iter();
        caches
            .filter(move |cache| cache.group == group)
            .flat_map(KvCache::planes)
    }

    fn planes_mut(&mut self, group: usize) -> impl Iterator<Item = &mut Plane> {
        let caches = self.caches.iter_mut();
        caches
            .filter(move |cache| cache.group == group)
            .flat_map(KvCache::planes_mut)
    }

    /// The results of all outputs, row by row; none before the first batch.
    fn results(&self) -> Option<impl Iterator<Item = &[f32]>> {
        let result = self.result?;
        let width = self.buffers.width(result);
        Some(self.buffers.get(result).chunks_exact(width))
    }
}

impl Session for CpuSession {
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.validator.begin_run(batch, self.samples.len())?;
        self.states.begin(self.validator.state_runs());
        self.steps(self.n_encoder_steps..self.steps.len(), batch)
    }

    fn encode(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.validator.begin_encode(batch, self.samples.len())?;
        self.steps(0..self.n_encoder_steps, batch)
    }

    fn poll_finish(
        &mut self,
        _readback: Readback,
        _context: &mut Context<'_>,
    ) -> Poll<Result<(), BackendError>> {
        Poll::Ready(Ok(()))
    }

    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        let row = self.results().and_then(|mut rows| rows.nth(index));
        row.ok_or_else(|| BackendError::Malformed(format!("no output {index}")))
    }

    fn sample_greedy(&mut self) -> Result<(), BackendError> {
        let mut samples = std::mem::take(&mut self.samples);
        samples.sample_greedy(self.results().into_iter().flatten());
        self.samples = samples;
        Ok(())
    }

    fn sampled(&mut self, index: usize) -> Result<u32, BackendError> {
        self.samples.get(index)
    }

    fn copy_states(&mut self, moves: &[(u32, u32)]) -> Result<(), BackendError> {
        for &(from, to) in moves {
            let (from, to) = self.validator.copy_state(from, to)?;
            self.states.copy(from, to);
        }
        Ok(())
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<(), BackendError> {
        for &BlockCopy { group, from, to } in copies {
            for block in [from, to] {
                self.config.check_block(group, block)?;
            }
            for plane in self.planes_mut(group) {
                plane.copy_block(from.index(), to.index());
            }
        }
        Ok(())
    }

    fn block_bytes(&self, group: usize) -> usize {
        self.planes(group).map(Plane::block_len).sum()
    }

    fn read_block(
        &self,
        group: usize,
        block: BlockId,
        out: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        self.config.check_block(group, block)?;
        out.clear();
        for plane in self.planes(group) {
            for bytes in plane.block(block.index()) {
                out.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn write_block(
        &mut self,
        group: usize,
        block: BlockId,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.config.check_block(group, block)?;
        let block_bytes = self.block_bytes(group);
        if bytes.len() != block_bytes {
            let what = format!("{} bytes for a block of {block_bytes}", bytes.len());
            return Err(BackendError::Malformed(what));
        }
        let mut rest = bytes;
        for plane in self.planes_mut(group) {
            let (bytes, after) = rest.split_at(plane.block_len());
            plane.write_block(block.index(), bytes);
            rest = after;
        }
        Ok(())
    }
}
