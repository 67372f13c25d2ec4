//! Runs the steps of a compiled plan, one batch at a time; [`super::products`] has the steps that
//! multiply by weights.

use super::attention::AttentionWork;
use super::cache::KvCache;
use super::experts::ExpertWork;
use super::lower::{Linear, Projection, Step, lower};
use super::memory::Buffers;
use super::pool::{Matrix, Pool};
use super::recurrent::States;
use crate::backend::reference::{magnitude_ratio, threshold};
use crate::backend::slots::Encoded;
use crate::backend::{BackendError, Batch, KvType, Session, SessionConfig};
use crate::graph::{NormKind, Op, Plan, RopeFrequencies, RopeLayout, ValueId, WeightId};
use crate::kv::BlockId;
use crate::model::Weights;
use oxidize_kernels::{Kernels, QuantizedRows, Scratch};
use std::ops::Range;
use std::sync::Arc;

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
    /// Whether the batch at hand is one in which each token is computed as if it were alone.
    pub(super) each_alone: bool,
    /// Whether floats meet floats as they are, however many tokens there are: asked for by a cache
    /// that rounds nothing either, and by models without one.
    pub(super) exact: bool,
    steps: Arc<[Step]>,
    n_encoder_steps: usize,
    encoded: Encoded,
    /// Whether sequences must come whole.
    bidirectional: bool,
    pub(super) quantized: QuantizedRows,
    result: Option<ValueId>,
}

/// What each thread has to itself.
#[derive(Default)]
pub(super) struct Worker {
    pub(super) scratch: Scratch,
    pub(super) floats: Vec<f32>,
    pub(super) quantized: QuantizedRows,
}

/// Elements under which sharing out work costs more than it saves.
const SERIAL: usize = 1 << 14;
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
                asked: n_threads,
                limit: super::MAX_THREADS,
            });
        }
        let weights = weights.spelled_out(kernels, n_threads);
        weights.settle();
        let (steps, n_encoder_steps) = lower(plan, config.max_context);
        let encoder_slots = match n_encoder_steps {
            0 => 0,
            _ => config.state_slots,
        };
        let caches = plan.caches.iter().map(|info| KvCache::new(info, config));
        let pool = Pool::new(n_threads);
        Ok(CpuSession {
            kernels,
            config: config.clone(),
            weights: Arc::new(weights),
            buffers: Buffers::new(plan, &steps, config),
            caches: caches.collect::<Result<_, _>>()?,
            states: States::new(plan, config)?,
            workers: (0..pool.n_threads()).map(|_| Worker::default()).collect(),
            pool,
            attention: AttentionWork::default(),
            experts: ExpertWork::default(),
            each_alone: false,
            exact: plan.is_bidirectional()
                || [config.key_type, config.value_type].contains(&KvType::F32),
            steps: steps.into(),
            n_encoder_steps,
            encoded: Encoded::new(encoder_slots),
            bidirectional: plan.is_bidirectional(),
            quantized: QuantizedRows::new(),
            result: plan.result,
        })
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
            Op::Embed { table, out } => self.embed(*table, *out, batch)?,
            Op::EmbedPosition { table, offset, out } => {
                self.embed_position(*table, *offset, *out, batch)?
            }
            Op::RopeTable { rope, out } => {
                let frequencies = rope.frequencies(self.config.max_context);
                self.rope_table(&frequencies, *out, batch);
            }
            Op::Norm { .. } => self.norm(op),
            Op::Linear {
                x,
                weight,
                bias,
                out,
            } => {
                let linear = Linear {
                    weight: *weight,
                    bias: *bias,
                };
                let residual = None;
                let out = *out;
                self.project(
                    *x,
                    &[Projection {
                        linear,
                        residual,
                        out,
                    }],
                );
            }
            Op::HeadLinear { x, weight, out } => self.head_linear(*x, *weight, *out),
            Op::Rope {
                x,
                table,
                head_dim,
                layout,
                out,
            } => {
                self.rope(*x, *table, *head_dim, *layout, *out);
            }
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
                let cut = threshold(x, *deviations, *unbiased);
                x.iter_mut().for_each(|x| *x = (*x - cut).max(0.0));
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
            Op::AddSegment { x, table, out } => {
                let weights = self.weights.clone();
                let (width, table) = (self.buffers.width(*x), weights.get(*table).as_f32());
                let segments: Vec<usize> = batch.segments().collect();
                self.each_row(Some(*x), *out, |row, x| {
                    kernels.add(x, &table[segments[row] * width..][..width]);
                });
            }
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
            } => self.mix_experts(spec, *x, *router, *out, batch),
            Op::SelectOutputs { x, out } => {
                let width = self.buffers.width(*x);
                let mut taken = self.buffers.take(*out);
                let x = self.buffers.get(*x);
                for (out, &row) in taken.rows().chunks_exact_mut(width).zip(batch.outputs) {
                    out.copy_from_slice(&x[row as usize * width..][..width]);
                }
                self.buffers.put(taken);
            }
        }
        Ok(())
    }

    fn embed(
        &mut self,
        table: WeightId,
        out: ValueId,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        let table = self.weights.get(table);
        batch.check(&self.config, table.rows)?;
        let mut taken = self.buffers.take(out);
        for (row, &token) in taken.rows().chunks_exact_mut(table.cols).zip(batch.tokens) {
            table
                .read_row(token as usize, row)
                .map_err(|e| BackendError::Malformed(e.to_string()))?;
        }
        self.buffers.put(taken);
        Ok(())
    }

    fn embed_position(
        &mut self,
        table: WeightId,
        offset: usize,
        out: ValueId,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        let table = self.weights.get(table);
        for &position in batch.positions {
            batch.check_position(position, offset, table.rows)?;
        }
        let mut taken = self.buffers.take(out);
        let rows = taken.rows().chunks_exact_mut(table.cols);
        for (row, &position) in rows.zip(batch.positions) {
            table
                .read_row(position as usize + offset, row)
                .map_err(|e| BackendError::Malformed(e.to_string()))?;
        }
        self.buffers.put(taken);
        Ok(())
    }

    fn rope_table(&mut self, frequencies: &RopeFrequencies, out: ValueId, batch: &Batch<'_>) {
        let RopeFrequencies { radians, magnitude } = frequencies;
        self.each_row(None, out, |row, out| {
            let position = batch.positions[row] as f32;
            let (cos, sin) = out.split_at_mut(radians.len());
            for ((cos, sin), radians) in cos.iter_mut().zip(sin).zip(radians) {
                let (s, c) = (position * radians).sin_cos();
                (*cos, *sin) = (c * magnitude, s * magnitude);
            }
        });
    }

    fn norm(&mut self, op: &Op) {
        let Op::Norm {
            kind,
            x,
            weight,
            bias,
            epsilon,
            width,
            out,
        } = op
        else {
            return;
        };
        let (kernels, weights, width) = (self.kernels, self.weights.clone(), *width);
        // Groups share their weights, or take turns in those of a whole row.
        let of_group = |id: &Option<WeightId>, group: usize| {
            let all = id.map(|id| weights.get(id).as_f32());
            all.map(|all| &all[group % (all.len() / width) * width..][..width])
        };
        self.map(*x, *out, |x| {
            for (index, group) in x.chunks_exact_mut(width).enumerate() {
                let (weight, bias) = (of_group(weight, index), of_group(bias, index));
                match kind {
                    NormKind::Rms => {
                        kernels.rms_norm_in_place(group, weight, *epsilon);
                        if let Some(bias) = bias {
                            kernels.add(group, bias);
                        }
                    }
                    NormKind::Layer => kernels.layer_norm_in_place(group, weight, bias, *epsilon),
                }
            }
        });
    }

    fn weighted_sum(&mut self, terms: &[ValueId], weights: ValueId, offset: usize, out: ValueId) {
        let (width, n_weights) = (self.buffers.width(out), self.buffers.width(weights));
        let mut taken = self.buffers.take(out);
        let factors = self.buffers.get(weights);
        for (row, out) in taken.rows().chunks_exact_mut(width).enumerate() {
            out.fill(0.0);
            for (i, &term) in terms.iter().enumerate() {
                let term = &self.buffers.get(term)[row * width..(row + 1) * width];
                let factor = factors[row * n_weights + offset + i];
                self.kernels.add_scaled(out, term, factor);
            }
        }
        self.buffers.put(taken);
    }

    /// Scales what an adapter adds by what each sequence wants of it. The rows are as short as the
    /// adapter's rank.
    fn adapter_scale(
        &mut self,
        x: ValueId,
        adapter: usize,
        factor: f32,
        out: ValueId,
        batch: &Batch<'_>,
    ) {
        let (kernels, width) = (self.kernels, self.buffers.width(out));
        let mut taken = self.buffers.take(out);
        if let Some(source) = self.buffers.source(x, out) {
            taken.rows().copy_from_slice(source);
        }
        let strengths = batch.strengths(self.buffers.row_kind(out), adapter);
        for (row, strength) in taken.rows().chunks_exact_mut(width).zip(strengths) {
            kernels.scale(row, factor * strength);
        }
        self.buffers.put(taken);
    }

    /// `out = a · b`, where an element of `b` may stand for several neighbours of `a`.
    fn mul(&mut self, a: ValueId, b: ValueId, out: ValueId) {
        let (kernels, width) = (self.kernels, self.buffers.width(a));
        let b_width = self.buffers.width(b);
        let mut taken = self.buffers.take(out);
        let (source, b) = (self.buffers.source(a, out), self.buffers.get(b));
        let (pool, workers) = (&self.pool, &mut self.workers);
        share_rows(pool, workers, source, taken.rows(), width, |row, a| {
            let b = &b[row * b_width..(row + 1) * b_width];
            if b_width == width {
                return kernels.mul(a, b);
            }
            let groups = a.chunks_exact_mut(width / b_width).zip(b);
            groups.for_each(|(group, &factor)| kernels.scale(group, factor));
        });
        self.buffers.put(taken);
    }

    /// Fills each row of `out` from a row of `x` that may be wider.
    fn gather(&mut self, out: ValueId, x: ValueId, f: impl Fn(&[f32], &mut [f32]) + Sync) {
        let x_width = self.buffers.width(x);
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let x = self.buffers.get(x);
        let (pool, workers) = (&self.pool, &mut self.workers);
        share_rows(pool, workers, None, taken.rows(), width, |row, out| {
            f(&x[row * x_width..(row + 1) * x_width], out);
        });
        self.buffers.put(taken);
    }

    fn concat(&mut self, a: ValueId, b: ValueId, groups: usize, out: ValueId) {
        let (a_len, b_len) = (
            self.buffers.width(a) / groups,
            self.buffers.width(b) / groups,
        );
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let (a, b) = (self.buffers.get(a), self.buffers.get(b));
        let (pool, workers) = (&self.pool, &mut self.workers);
        share_rows(pool, workers, None, taken.rows(), width, |row, out| {
            for (group, out) in out.chunks_exact_mut(a_len + b_len).enumerate() {
                let index = row * groups + group;
                let (first, second) = out.split_at_mut(a_len);
                first.copy_from_slice(&a[index * a_len..(index + 1) * a_len]);
                second.copy_from_slice(&b[index * b_len..(index + 1) * b_len]);
            }
        });
        self.buffers.put(taken);
    }

    fn rope(
        &mut self,
        x: ValueId,
        table: ValueId,
        head_dim: usize,
        layout: RopeLayout,
        out: ValueId,
    ) {
        let (kernels, dims) = (self.kernels, self.buffers.width(table));
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let (source, table) = (self.buffers.source(x, out), self.buffers.get(table));
        share_rows(
            &self.pool,
            &mut self.workers,
            source,
            taken.rows(),
            width,
            |row, x| {
                let (cos, sin) = table[row * dims..(row + 1) * dims].split_at(dims / 2);
                kernels.rope(x, head_dim, cos, sin, layout);
            },
        );
        self.buffers.put(taken);
    }

    /// `out = f(x)`, row by row.
    fn map(&mut self, x: ValueId, out: ValueId, f: impl Fn(&mut [f32]) + Sync) {
        self.each_row(Some(x), out, |_, row| f(row));
    }

    /// Fills `out` row by row, from a copy of `x` where given.
    fn each_row(&mut self, x: Option<ValueId>, out: ValueId, f: impl Fn(usize, &mut [f32]) + Sync) {
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let source = x.and_then(|x| self.buffers.source(x, out));
        share_rows(
            &self.pool,
            &mut self.workers,
            source,
            taken.rows(),
            width,
            f,
        );
        self.buffers.put(taken);
    }

    /// `out = f(a, b)`, row by row.
    fn zip(&mut self, a: ValueId, b: ValueId, out: ValueId, f: impl Fn(&mut [f32], &[f32]) + Sync) {
        let width = self.buffers.width(out);
        let mut taken = self.buffers.take(out);
        let (source, b) = (self.buffers.source(a, out), self.buffers.get(b));
        share_rows(
            &self.pool,
            &mut self.workers,
            source,
            taken.rows(),
            width,
            |row, a| {
                f(a, &b[row * width..(row + 1) * width]);
            },
        );
        self.buffers.put(taken);
    }
}

/// Calls `f` with each row of `out`, filled from `source` where given.
pub(super) fn share_rows(
    pool: &Pool,
    workers: &mut [Worker],
    source: Option<&[f32]>,
    out: &mut [f32],
    width: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    pool.rows(
        Matrix {
            data: out,
            cols: width,
        },
        serial_rows(width),
        workers,
        |rows, data, _| {
            if let Some(source) = source {
                data.copy_from_slice(&source[rows.start * width..rows.end * width]);
            }
            for (row, data) in rows.zip(data.chunks_exact_mut(width)) {
                f(row, data);
            }
        },
    );
}

/// Rows that one thread takes at a time; fewer are not worth sharing out.
pub(super) fn serial_rows(width: usize) -> usize {
    (SERIAL / width).max(1)
}

impl Session for CpuSession {
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.states.begin(batch)?;
        if self.bidirectional {
            batch.check_whole()?;
        }
        self.steps(self.n_encoder_steps..self.steps.len(), batch)
    }

    fn encode(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        if self.n_encoder_steps == 0 {
            let problem = "the model has no encoder".to_owned();
            return Err(BackendError::Malformed(problem));
        }
        self.encoded.begin(batch)?;
        self.steps(0..self.n_encoder_steps, batch)
    }

    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        let missing = || BackendError::Malformed(format!("no output {index}"));
        let result = self.result.ok_or_else(missing)?;
        let width = self.buffers.width(result);
        self.buffers
            .get(result)
            .get(index * width..(index + 1) * width)
            .ok_or_else(missing)
    }

    fn copy_states(&mut self, moves: &[(u32, u32)]) -> Result<(), BackendError> {
        self.states.copy(moves)
    }

    fn copy_blocks(&mut self, moves: &[(BlockId, BlockId)]) -> Result<(), BackendError> {
        for &(from, to) in moves {
            for block in [from, to] {
                self.check_block(block)?;
            }
            for plane in self.caches.iter_mut().flat_map(KvCache::planes_mut) {
                plane.copy_block(from.0 as usize, to.0 as usize);
            }
        }
        Ok(())
    }

    fn block_bytes(&self) -> usize {
        let planes = self.caches.iter().flat_map(KvCache::planes);
        planes.map(|plane| plane.block_len()).sum()
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.check_block(block)?;
        out.clear();
        for plane in self.caches.iter().flat_map(KvCache::planes) {
            plane
                .block(block.0 as usize)
                .for_each(|bytes| out.extend_from_slice(bytes));
        }
        Ok(())
    }

    fn write_block(&mut self, block: BlockId, mut bytes: &[u8]) -> Result<(), BackendError> {
        self.check_block(block)?;
        if bytes.len() != self.block_bytes() {
            let what = format!(
                "{} bytes for a block of {}",
                bytes.len(),
                self.block_bytes()
            );
            return Err(BackendError::Malformed(what));
        }
        for plane in self.caches.iter_mut().flat_map(KvCache::planes_mut) {
            let (head, rest) = bytes.split_at(plane.block_len());
            plane.write_block(block.0 as usize, head);
            bytes = rest;
        }
        Ok(())
    }
}

impl CpuSession {
    fn steps(&mut self, steps: Range<usize>, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.buffers.n_tokens = batch.tokens.len();
        self.buffers.n_outputs = batch.outputs.len();
        self.each_alone = batch.is_exact(&self.config);
        let block_size = self.config.block_size;
        self.attention
            .prepare(batch, block_size, &self.encoded, self.each_alone);
        let all = self.steps.clone();
        let mut steps = all[steps].iter();
        steps.try_for_each(|step| self.step(step, batch))
    }

    fn check_block(&self, block: BlockId) -> Result<(), BackendError> {
        if (block.0 as usize) < self.config.n_blocks {
            return Ok(());
        }
        Err(BackendError::Malformed(format!(
            "block {} of {}",
            block.0, self.config.n_blocks
        )))
    }
}
