//! Runs the steps of a compiled plan, one batch at a time.

use super::attention::AttentionWork;
use super::cache::KvCache;
use super::experts::ExpertWork;
use super::lower::{Linear, Projection, Step, lower};
use super::memory::Buffers;
use super::pool::{MAX_MATRICES, Matrix, Pool};
use super::recurrent::States;
use crate::backend::reference::{magnitude_ratio, threshold};
use crate::backend::slots::Encoded;
use crate::backend::{BackendError, Batch, KvType, Observation, Session, SessionConfig};
use crate::graph::{NormKind, Op, Plan, RopeFrequencies, RopeLayout, ValueId, WeightId};
use crate::kv::BlockId;
use crate::model::{Weight, Weights};
use oxidize_kernels::quant::TensorType;
use oxidize_kernels::{
    Activation, Activations, Epilogue, Kernels, Precision, QuantizedRows, Scratch, TileMut,
    WeightRows,
};
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
    exact: bool,
    steps: Arc<[Step]>,
    n_encoder_steps: usize,
    encoded: Encoded,
    /// Whether sequences must come whole.
    bidirectional: bool,
    quantized: QuantizedRows,
    result: Option<ValueId>,
}

/// What each thread has to itself.
#[derive(Default)]
pub(super) struct Worker {
    pub(super) scratch: Scratch,
    pub(super) floats: Vec<f32>,
    quantized: QuantizedRows,
}

/// How the input of products may be rounded.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    each_alone: bool,
    exact: bool,
}

impl Rounding {
    /// What weights of these types want their input as, if not as floats.
    fn precision(
        self,
        types: impl IntoIterator<Item = TensorType>,
        n_tokens: usize,
    ) -> Option<Precision> {
        // A few tokens always meet floats as they are.
        let few = self.each_alone || self.exact;
        Precision::of(types, if few { 1 } else { n_tokens })
    }
}

/// Elements under which sharing out work costs more than it saves.
const SERIAL: usize = 1 << 14;
/// Bytes of weights in a piece of a projection: a few microseconds of memory traffic.
const PIECE_BYTES: usize = 1 << 16;
/// Rows of a weight that the kernels like to get together.
const PIECE_ROWS: usize = 32;

impl CpuSession {
    pub(super) fn new(
        kernels: &'static Kernels,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<CpuSession, BackendError> {
        let (steps, n_encoder_steps) = lower(plan, config.max_context);
        let encoder_slots = match n_encoder_steps {
            0 => 0,
            _ => config.state_slots,
        };
        let caches = plan.caches.iter().map(|info| KvCache::new(info, config));
        let pool = Pool::new(config.n_threads.unwrap_or_else(super::default_threads));
        Ok(CpuSession {
            kernels,
            config: config.clone(),
            weights: Arc::new(weights.clone()),
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

    pub(super) fn rounding(&self) -> Rounding {
        Rounding {
            each_alone: self.each_alone,
            exact: self.exact,
        }
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

    /// Each head on a thread of its own: gathered, multiplied, put back.
    fn head_linear(&mut self, x: ValueId, weight: WeightId, out: ValueId) {
        let weights = self.weights.clone();
        let weight = weights.get(weight);
        let (width, inputs) = (self.buffers.width(x), weight.cols);
        let mut taken = self.buffers.take(out);
        let (kernels, x) = (self.kernels, self.buffers.get(x));
        let (each_alone, rounding) = (self.each_alone, self.rounding());
        let n_tokens = x.len() / width;
        let cols = weight.rows * weight.n_experts;
        let data = taken.rows();
        let body = |_: usize, head: usize, out: TileMut<'_>, worker: &mut Worker| {
            let Worker {
                scratch,
                floats,
                quantized,
            } = worker;
            floats.clear();
            for token in x.chunks_exact(width) {
                floats.extend_from_slice(&token[head * inputs..(head + 1) * inputs]);
            }
            let acts = match rounding.precision([weight.ty], n_tokens) {
                Some(precision) => {
                    quantized.resize(precision, n_tokens, inputs);
                    kernels.quantize_rows(floats, quantized.rows_mut());
                    Activations::new(floats, quantized)
                }
                None => Activations::floats(floats, inputs),
            };
            let acts = acts.each_alone(each_alone);
            let rows = weight_rows(weight, head);
            kernels.matmul(rows, &acts, Epilogue::STORE, out, scratch);
        };
        let rows = 0..n_tokens;
        self.pool.grid(
            Matrix { data, cols },
            &[rows],
            weight.rows,
            &mut self.workers,
            body,
        );
        self.buffers.put(taken);
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

    fn project(&mut self, x: ValueId, parts: &[Projection]) {
        let weights = self.weights.clone();
        let mut taken: [_; MAX_MATRICES] =
            std::array::from_fn(|i| parts.get(i).map(|part| self.buffers.take(part.out)));
        let list: [Option<ExpertMatrix<'_>>; MAX_MATRICES] =
            std::array::from_fn(|i| parts.get(i).map(|part| resolve(&weights, &part.linear)));
        for (part, taken) in parts.iter().zip(taken.iter_mut().flatten()) {
            // The residual may still be elsewhere, if something else needs it later.
            if let Some(source) = part.residual.and_then(|r| self.buffers.source(r, part.out)) {
                taken.rows().copy_from_slice(source);
            }
        }
        let types = list.map(|matrix| matrix.map(|matrix| matrix.weight.ty));
        let input = self.buffers.get(x);
        observe(&self.config, list.iter().flatten(), input);
        let rounding = self.rounding();
        let acts = activations(
            self.kernels,
            &self.pool,
            &mut self.workers,
            &mut self.quantized,
            input,
            self.buffers.width(x),
            types.into_iter().flatten(),
            rounding,
        );
        let chunk = list
            .iter()
            .flatten()
            .map(|matrix| piece_rows(matrix.weight, self.pool.n_threads()))
            .min();
        let kernels = self.kernels;
        let mut outputs = taken
            .iter_mut()
            .flatten()
            .zip(parts)
            .map(|(taken, part)| Matrix {
                data: taken.rows(),
                cols: weights.get(part.linear.weight).rows,
            });
        let mut matrices: [Matrix<'_>; MAX_MATRICES] = std::array::from_fn(|_| {
            outputs.next().unwrap_or(Matrix {
                data: &mut [],
                cols: 1,
            })
        });
        self.pool.columns(
            &mut matrices[..parts.len()],
            chunk.unwrap_or(PIECE_ROWS),
            &mut self.workers,
            |index, rows, out, worker| {
                let Some(ExpertMatrix { weight, bias, .. }) = list[index] else {
                    return;
                };
                let bias = bias.map(|bias| &bias[rows.clone()]);
                let epilogue = Epilogue {
                    bias,
                    accumulate: parts[index].residual.is_some(),
                };
                kernels.matmul(
                    weight_rows(weight, 0).slice(rows),
                    &acts,
                    epilogue,
                    out,
                    &mut worker.scratch,
                );
            },
        );
        taken
            .into_iter()
            .flatten()
            .for_each(|taken| self.buffers.put(taken));
    }

    fn gated_project(
        &mut self,
        x: ValueId,
        gate: &Linear,
        up: &Linear,
        activation: Activation,
        out: ValueId,
    ) {
        let weights = self.weights.clone();
        let (gate, up) = (resolve(&weights, gate), resolve(&weights, up));
        let mut taken = self.buffers.take(out);
        let input = self.buffers.get(x);
        observe(&self.config, [gate, up].iter(), input);
        let types = [gate, up].map(|matrix| Some(matrix.weight.ty));
        let rounding = self.rounding();
        let acts = activations(
            self.kernels,
            &self.pool,
            &mut self.workers,
            &mut self.quantized,
            input,
            self.buffers.width(x),
            types.into_iter().flatten(),
            rounding,
        );
        let hidden = Matrix {
            data: taken.rows(),
            cols: gate.weight.rows,
        };
        let glu = Glu {
            activation,
            limit: None,
        };
        half_layer(
            self.kernels,
            &self.pool,
            &mut self.workers,
            Some(gate),
            up,
            glu,
            &acts,
            hidden,
        );
        self.buffers.put(taken);
    }
}

/// Shows the input of some matrices to whoever wants to see it.
pub(super) fn observe<'m>(
    config: &SessionConfig,
    matrices: impl Iterator<Item = &'m ExpertMatrix<'m>>,
    rows: &[f32],
) {
    let Some(observer) = &config.observer else {
        return;
    };
    let mut names: Vec<&str> = Vec::new();
    let (mut expert, mut n_experts, mut width) = (0, 1, 1);
    for matrix in matrices {
        (expert, n_experts) = (matrix.expert, matrix.weight.n_experts);
        width = matrix.weight.cols;
        // Parts of one matrix of the file have its name.
        if !names.contains(&matrix.weight.name.as_str()) {
            names.push(&matrix.weight.name);
        }
    }
    observer.look(&Observation {
        weights: &names,
        expert,
        n_experts,
        rows,
        width,
    });
}

/// One matrix of a stack, or a matrix by itself, with its biases and what adapters add.
#[derive(Clone, Copy)]
pub(super) struct ExpertMatrix<'a> {
    pub(super) weight: &'a Weight,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) expert: usize,
    pub(super) added: &'a [LowRank<'a>],
}

/// What an adapter adds to the products of an expert's matrix: `up · low`.
pub(super) struct LowRank<'a> {
    pub(super) up: &'a Weight,
    pub(super) low: Activations<'a>,
}

impl ExpertMatrix<'_> {
    /// `out = rows of the matrix · acts + bias`.
    pub(super) fn multiply(
        &self,
        kernels: &Kernels,
        rows: std::ops::Range<usize>,
        acts: &Activations<'_>,
        mut out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        let bias = self.bias.map(|bias| &bias[rows.clone()]);
        let epilogue = Epilogue {
            bias,
            accumulate: false,
        };
        let matrix = weight_rows(self.weight, self.expert).slice(rows.clone());
        kernels.matmul(matrix, acts, epilogue, out.reborrow(), scratch);
        for LowRank { up, low } in self.added {
            let epilogue = Epilogue {
                bias: None,
                accumulate: true,
            };
            let matrix = weight_rows(up, self.expert).slice(rows.clone());
            kernels.matmul(matrix, low, epilogue, out.reborrow(), scratch);
        }
    }
}

/// How the halves of a gated unit meet.
#[derive(Clone, Copy)]
pub(super) struct Glu {
    pub(super) activation: Activation,
    pub(super) limit: Option<f32>,
}

impl Glu {
    fn apply(self, kernels: &Kernels, gate: &mut [f32], up: &mut [f32]) {
        if let Some(limit) = self.limit {
            gate.iter_mut().for_each(|x| *x = x.min(limit));
            up.iter_mut()
                .for_each(|x| *x = x.clamp(-limit, limit) + 1.0);
        }
        kernels.glu(self.activation, gate, up);
    }
}

/// `out = activation(gate · x) · (up · x)`, or `activation(up · x)` without a gate.
pub(super) fn half_layer(
    kernels: &Kernels,
    pool: &Pool,
    workers: &mut [Worker],
    gate: Option<ExpertMatrix<'_>>,
    up: ExpertMatrix<'_>,
    glu: Glu,
    acts: &Activations<'_>,
    out: Matrix<'_>,
) {
    // Both matrices are read for a piece, so it has half as many rows.
    let chunk = (piece_rows(up.weight, pool.n_threads()) / 2).next_multiple_of(PIECE_ROWS);
    pool.columns(&mut [out], chunk, workers, |_, rows, mut out, worker| {
        let width = rows.len();
        let Worker {
            scratch, floats, ..
        } = worker;
        let Some(gate) = gate else {
            up.multiply(kernels, rows, acts, out.reborrow(), scratch);
            for token in 0..acts.rows() {
                kernels.activate(glu.activation, out.row(token));
            }
            return;
        };
        floats.resize((acts.rows() * width).max(floats.len()), 0.0);
        let product = &mut floats[..acts.rows() * width];
        gate.multiply(kernels, rows.clone(), acts, out.reborrow(), scratch);
        up.multiply(kernels, rows, acts, TileMut::new(product, width), scratch);
        for (token, up) in product.chunks_exact_mut(width).enumerate() {
            glu.apply(kernels, out.row(token), up);
        }
    });
}

/// The input of projections by weights of these types, quantised on all threads if they want it so.
pub(super) fn activations<'a>(
    kernels: &Kernels,
    pool: &Pool,
    workers: &mut [Worker],
    quantized: &'a mut QuantizedRows,
    floats: &'a [f32],
    k: usize,
    types: impl IntoIterator<Item = TensorType>,
    rounding: Rounding,
) -> Activations<'a> {
    let (n_tokens, each_alone) = (floats.len() / k, rounding.each_alone);
    let Some(precision) = rounding.precision(types, n_tokens) else {
        return Activations::floats(floats, k).each_alone(each_alone);
    };
    quantized.resize(precision, n_tokens, k);
    pool.quantize(kernels, floats, quantized, serial_rows(k), workers);
    Activations::new(floats, quantized).each_alone(each_alone)
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
fn serial_rows(width: usize) -> usize {
    (SERIAL / width).max(1)
}

/// Rows of a weight in one piece of work: small enough to even out, large enough to stream.
fn piece_rows(weight: &Weight, n_threads: usize) -> usize {
    let by_bytes = PIECE_BYTES / weight.row_bytes().max(1);
    let by_share = weight.rows / (4 * n_threads);
    by_bytes
        .min(by_share)
        .next_multiple_of(PIECE_ROWS)
        .max(PIECE_ROWS)
}

fn resolve<'a>(weights: &'a Weights, linear: &Linear) -> ExpertMatrix<'a> {
    ExpertMatrix {
        weight: weights.get(linear.weight),
        bias: linear.bias.map(|id| weights.get(id).as_f32()),
        expert: 0,
        added: &[],
    }
}

/// One matrix of a weight, as the kernels take it.
pub(super) fn weight_rows(weight: &Weight, expert: usize) -> WeightRows<'_> {
    WeightRows::new(weight.ty, weight.cols, weight.expert(expert)).unwrap_or_else(|| {
        unreachable!("{}: its shape was checked when it was loaded", weight.name)
    })
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
