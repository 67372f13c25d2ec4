//! The reference backend: runs a plan op by op in f32, unfused, on one thread and with the weights of the file.
//!
//! It is written to be obviously right, not to be fast. Every other backend is tested against it.

mod attention;
mod experts;
mod math;
mod recurrent;

use super::row_math::{magnitude_ratio, sparsity_threshold};
use super::sample::Samples;
use super::{
    Backend, BackendError, Batch, BatchValidator, Device, Readback, Session, SessionConfig,
};
use crate::graph::{Op, Plan, Rows, ValueId, WeightId};
use crate::kv::{BlockCopy, BlockId};
use crate::weights::Weights;
use attention::KvCache;
use math::{activate, add_to, norm, rope, rope_table};
use oxidize_kernels::quant;
use std::ops::Range;
use std::task::{Context, Poll};

/// The reference backend.
pub struct Reference;

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn devices(&self) -> Vec<Device> {
        vec![Device {
            name: "one thread, plain f32".into(),
            memory: None,
        }]
    }

    fn compile(
        &self,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>, BackendError> {
        config.check_device(self)?;
        let weights = weights.loaded();
        let weights = weights.map_err(|error| BackendError::Weights(error.to_string()))?;
        let n_blocks: Vec<usize> = config.group_blocks().collect();
        let caches = plan.caches.iter().zip(config.groups(plan));
        let caches = caches
            .map(|(cache, group)| KvCache::new(*cache, group, n_blocks[group] * config.block_size))
            .collect();
        Ok(Box::new(ReferenceSession {
            plan: plan.clone(),
            validator: BatchValidator::new(plan, &weights, config),
            weights,
            config: config.clone(),
            caches,
            states: recurrent::states(plan, config),
            samples: Samples::new(config.max_outputs),
            values: vec![Vec::new(); plan.values.len()],
        }))
    }
}

struct ReferenceSession {
    plan: Plan,
    weights: Weights,
    config: SessionConfig,
    caches: Vec<KvCache>,
    states: Vec<recurrent::State>,
    samples: Samples,
    validator: BatchValidator,
    /// The rows of each value of the last batch.
    values: Vec<Vec<f32>>,
}

impl Session for ReferenceSession {
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.validator.begin_run(batch, self.samples.len())?;
        self.begin_states();
        self.steps(self.plan.n_encoder_ops..self.plan.ops.len(), batch)
    }

    fn encode(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.validator.begin_encode(batch, self.samples.len())?;
        self.steps(0..self.plan.n_encoder_ops, batch)
    }

    fn sample_greedy(&mut self) -> Result<(), BackendError> {
        if let Some(result) = self.plan.result {
            let width = self.plan.value(result).width;
            let rows = self.values[result.0 as usize].chunks_exact(width);
            self.samples.sample_greedy(rows);
        }
        Ok(())
    }

    fn sampled(&mut self, index: usize) -> Result<u32, BackendError> {
        self.samples.get(index)
    }

    fn poll_finish(
        &mut self,
        _readback: Readback,
        _context: &mut Context<'_>,
    ) -> Poll<Result<(), BackendError>> {
        Poll::Ready(Ok(()))
    }

    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        let result = self
            .plan
            .result
            .ok_or_else(|| malformed("the plan has no result"))?;
        let width = self.plan.value(result).width;
        self.value(result)
            .get(index * width..(index + 1) * width)
            .ok_or_else(|| malformed("no such output"))
    }

    fn copy_states(&mut self, moves: &[(u32, u32)]) -> Result<(), BackendError> {
        for &(from, to) in moves {
            let (from, to) = self.validator.copy_state(from, to)?;
            self.states
                .iter_mut()
                .for_each(|state| state.copy(from, to));
        }
        Ok(())
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<(), BackendError> {
        for &BlockCopy { group, from, to } in copies {
            let mut bytes = Vec::new();
            self.read_block(group, from, &mut bytes)?;
            self.write_block(group, to, &bytes)?;
        }
        Ok(())
    }

    fn block_bytes(&self, group: usize) -> usize {
        let caches = self.caches.iter().filter(|cache| cache.group == group);
        let widths = caches.map(|c| c.info.n_kv_heads * (c.info.key_dim + c.info.kept_value_dim()));
        4 * self.config.block_size * widths.sum::<usize>()
    }

    fn read_block(
        &self,
        group: usize,
        block: BlockId,
        out: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        self.config.check_block(group, block)?;
        out.clear();
        for cache in self.caches.iter().filter(|cache| cache.group == group) {
            for (data, dim) in [
                (&cache.k, cache.info.key_dim),
                (&cache.v, cache.info.kept_value_dim()),
            ] {
                let floats = self.config.block_size * cache.info.n_kv_heads * dim;
                let start = block.0 as usize * floats;
                out.extend_from_slice(bytemuck::cast_slice(&data[start..start + floats]));
            }
        }
        Ok(())
    }

    fn write_block(
        &mut self,
        group: usize,
        block: BlockId,
        mut bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.config.check_block(group, block)?;
        if bytes.len() != self.block_bytes(group) {
            return Err(malformed("the bytes are not those of a block"));
        }
        let block_size = self.config.block_size;
        for cache in self.caches.iter_mut().filter(|cache| cache.group == group) {
            let heads = cache.info.n_kv_heads;
            for (data, dim) in [
                (&mut cache.k, cache.info.key_dim),
                (&mut cache.v, cache.info.kept_value_dim()),
            ] {
                let floats = block_size * heads * dim;
                let start = block.0 as usize * floats;
                let (head, rest) = bytes.split_at(4 * floats);
                bytemuck::cast_slice_mut(&mut data[start..start + floats]).copy_from_slice(head);
                bytes = rest;
            }
        }
        Ok(())
    }
}

fn malformed(what: &str) -> BackendError {
    BackendError::Malformed(what.to_owned())
}

impl ReferenceSession {
    fn steps(&mut self, ops: Range<usize>, batch: &Batch<'_>) -> Result<(), BackendError> {
        for index in ops {
            let op = self.plan.ops[index].clone();
            self.step(&op, batch)?;
        }
        Ok(())
    }

    fn value(&self, id: ValueId) -> &[f32] {
        &self.values[id.0 as usize]
    }

    fn vector(&self, id: Option<WeightId>) -> Option<&[f32]> {
        id.map(|id| self.weights.get(id).as_f32())
    }

    fn step(&mut self, op: &Op, batch: &Batch<'_>) -> Result<(), BackendError> {
        let out = match op {
            Op::Embed { table, .. } => self.embed(*table, batch)?,
            Op::EmbedPosition { table, offset, .. } => {
                self.embed_position(*table, *offset, batch)?
            }
            Op::RopeTable { rope, .. } => {
                let frequencies = rope.frequencies(self.config.max_context);
                rope_table(&frequencies, batch.positions)
            }
            Op::Norm {
                kind,
                x,
                weight,
                bias,
                epsilon,
                width,
                ..
            } => {
                let (weight, bias) = (self.vector(*weight), self.vector(*bias));
                norm(*kind, self.value(*x), weight, bias, *epsilon, *width)
            }
            Op::Linear {
                x, weight, bias, ..
            } => {
                let mut out = self.matmul(self.value(*x), *weight, 0)?;
                if let Some(bias) = self.vector(*bias) {
                    out.chunks_exact_mut(bias.len())
                        .for_each(|row| add_to(row, bias));
                }
                out
            }
            Op::HeadLinear { x, weight, .. } => self.head_linear(self.value(*x), *weight)?,
            Op::Rope {
                x,
                table,
                head_dim,
                layout,
                ..
            } => {
                let (width, dims) = (self.plan.value(*x).width, self.plan.value(*table).width);
                rope(
                    self.value(*x),
                    self.value(*table),
                    width,
                    dims,
                    *head_dim,
                    *layout,
                )
            }
            Op::StoreKv { layer, k, v } => return self.store(*layer, *k, *v, batch),
            Op::Attention { q, spec, .. } => self.attention(self.value(*q), spec, batch),
            Op::Activate { x, activation, .. } => self
                .value(*x)
                .iter()
                .map(|&x| activate(*activation, x))
                .collect(),
            Op::Glu {
                gate,
                up,
                activation,
                ..
            } => {
                let pairs = self.value(*gate).iter().zip(self.value(*up));
                pairs
                    .map(|(&gate, &up)| activate(*activation, gate) * up)
                    .collect()
            }
            Op::Xielu { x, spec, .. } => self.value(*x).iter().map(|&x| spec.apply(x)).collect(),
            Op::Sparsify {
                x,
                deviations,
                unbiased,
                ..
            } => {
                let width = self.plan.value(*x).width;
                let mut out = self.value(*x).to_vec();
                for row in out.chunks_exact_mut(width) {
                    let threshold = sparsity_threshold(row, *deviations, *unbiased);
                    row.iter_mut().for_each(|x| *x = (*x - threshold).max(0.0));
                }
                out
            }
            Op::Add { a, b, .. } => self
                .value(*a)
                .iter()
                .zip(self.value(*b))
                .map(|(a, b)| a + b)
                .collect(),
            Op::Mul { a, b, .. } => {
                let each = self.plan.value(*a).width / self.plan.value(*b).width;
                let factors = self.value(*b).iter();
                let factors = factors.flat_map(|&b| std::iter::repeat_n(b, each));
                let pairs = self.value(*a).iter().zip(factors);
                pairs.map(|(a, b)| a * b).collect()
            }
            Op::ShortConv { x, spec, .. } => self.short_conv(*x, spec),
            Op::SelectiveScan {
                x, dt, b, c, spec, ..
            } => self.selective_scan([*x, *dt, *b, *c], spec),
            Op::LinearAttention {
                q,
                k,
                v,
                decay,
                spec,
                ..
            } => self.linear_attention([*q, *k, *v, *decay], spec),
            Op::Scale { x, factor, .. } => self.value(*x).iter().map(|x| x * factor).collect(),
            Op::ScaleBy { x, weight, .. } => {
                let factors = self.weights.get(*weight).as_f32().iter().cycle();
                let pairs = self.value(*x).iter().zip(factors);
                pairs.map(|(x, factor)| x * factor).collect()
            }
            Op::AdapterScale {
                x, adapter, factor, ..
            } => {
                let info = self.plan.value(*x);
                let rows = self.value(*x).chunks_exact(info.width);
                rows.zip(batch.scales(info.rows, *adapter))
                    .flat_map(|(row, scale)| row.iter().map(move |x| x * factor * scale))
                    .collect()
            }
            Op::AddVector { x, weight, .. } => {
                let terms = self.weights.get(*weight).as_f32().iter().cycle();
                let pairs = self.value(*x).iter().zip(terms);
                pairs.map(|(x, term)| x + term).collect()
            }
            Op::AddSegment { x, table, .. } => {
                let (width, table) = (self.plan.value(*x).width, self.weights.get(*table).as_f32());
                let rows = self.value(*x).chunks_exact(width).zip(batch.segments());
                rows.flat_map(|(row, segment)| {
                    let terms = &table[segment * width..(segment + 1) * width];
                    row.iter().zip(terms).map(|(x, term)| x + term)
                })
                .collect()
            }
            Op::Temperature { x, spec, .. } => {
                let width = self.plan.value(*x).width;
                let rows = self.value(*x).chunks_exact(width).zip(batch.positions);
                rows.flat_map(|(row, &position)| row.iter().map(move |x| x * spec.at(position)))
                    .collect()
            }
            Op::Clamp { x, limit, .. } => {
                let clamp = |x: &f32| x.clamp(-limit, *limit);
                self.value(*x).iter().map(clamp).collect()
            }
            Op::WeightedSum {
                terms,
                weights,
                offset,
                out,
            } => {
                let width = self.plan.value(*out).width;
                let n_weights = self.plan.value(*weights).width;
                let mut out = vec![0.0; self.value(terms[0]).len()];
                for (row, out) in out.chunks_exact_mut(width).enumerate() {
                    for (i, term) in terms.iter().enumerate() {
                        let factor = self.value(*weights)[row * n_weights + offset + i];
                        let term = &self.value(*term)[row * width..(row + 1) * width];
                        out.iter_mut().zip(term).for_each(|(o, x)| *o += factor * x);
                    }
                }
                out
            }
            Op::MatchMagnitude { x, like, .. } => {
                let width = self.plan.value(*x).width;
                let rows = self.value(*x).chunks_exact(width);
                rows.zip(self.value(*like).chunks_exact(width))
                    .flat_map(|(x, like)| {
                        let factor = magnitude_ratio(x, like);
                        x.iter().map(move |x| x * factor)
                    })
                    .collect()
            }
            Op::Slice {
                x,
                group,
                start,
                len,
                ..
            } => {
                let groups = self.value(*x).chunks_exact(*group);
                groups
                    .flat_map(|group| group[*start..start + len].iter().copied())
                    .collect()
            }
            Op::Concat { a, b, groups, .. } => {
                let (a_len, b_len) = (
                    self.plan.value(*a).width / groups,
                    self.plan.value(*b).width / groups,
                );
                let a = self.value(*a).chunks_exact(a_len);
                let pairs = a.zip(self.value(*b).chunks_exact(b_len));
                pairs
                    .flat_map(|(a, b)| a.iter().chain(b).copied())
                    .collect()
            }
            Op::Softcap { x, cap, .. } => self
                .value(*x)
                .iter()
                .map(|x| cap * (x / cap).tanh())
                .collect(),
            Op::Experts {
                x, router, spec, ..
            } => self.experts(self.value(*x), self.value(*router), spec, batch)?,
            Op::SelectOutputs { x, .. } => {
                let width = self.plan.value(*x).width;
                let rows = batch.outputs.iter().map(|&row| row as usize * width);
                rows.flat_map(|at| self.value(*x)[at..at + width].iter().copied())
                    .collect()
            }
        };
        if let Some(id) = op.output() {
            let info = self.plan.value(id);
            let rows = match info.rows {
                Rows::Tokens => batch.tokens.len(),
                Rows::Outputs => batch.outputs.len(),
            };
            debug_assert_eq!(out.len(), rows * info.width, "{op:?}");
            self.values[id.0 as usize] = out;
        }
        Ok(())
    }

    fn embed(&self, table: WeightId, batch: &Batch<'_>) -> Result<Vec<f32>, BackendError> {
        let table = self.weights.get(table);
        let mut out = vec![0.0; batch.tokens.len() * table.cols];
        for (row, &token) in out.chunks_exact_mut(table.cols).zip(batch.tokens) {
            let token = self.samples.resolve(token);
            table
                .read_row(token as usize, row)
                .map_err(|e| malformed(&e.to_string()))?;
        }
        Ok(out)
    }

    fn embed_position(
        &self,
        table: WeightId,
        offset: usize,
        batch: &Batch<'_>,
    ) -> Result<Vec<f32>, BackendError> {
        let table = self.weights.get(table);
        let mut out = vec![0.0; batch.positions.len() * table.cols];
        for (row, &position) in out.chunks_exact_mut(table.cols).zip(batch.positions) {
            table
                .read_row(position as usize + offset, row)
                .map_err(|e| malformed(&e.to_string()))?;
        }
        Ok(out)
    }

    fn head_linear(&self, x: &[f32], weight: WeightId) -> Result<Vec<f32>, BackendError> {
        let (heads, inputs) = {
            let weight = self.weights.get(weight);
            (weight.n_experts, weight.cols)
        };
        let mut out = Vec::new();
        for (i, x) in x.chunks_exact(inputs).enumerate() {
            out.extend(self.matmul(x, weight, i % heads)?);
        }
        Ok(out)
    }

    /// `x · weightᵀ` for one matrix of a stack, summed in f64.
    fn matmul(&self, x: &[f32], weight: WeightId, expert: usize) -> Result<Vec<f32>, BackendError> {
        let weight = self.weights.get(weight);
        let mut out = vec![0.0; x.len() / weight.cols * weight.rows];
        let mut row = vec![0.0; weight.cols];
        for (r, bytes) in weight
            .expert(expert)
            .chunks_exact(weight.row_bytes())
            .enumerate()
        {
            quant::dequantize(weight.ty, bytes, &mut row).map_err(|e| malformed(&e.to_string()))?;
            for (t, x) in x.chunks_exact(weight.cols).enumerate() {
                let dot: f64 = x
                    .iter()
                    .zip(&row)
                    .map(|(&x, &w)| f64::from(x) * f64::from(w))
                    .sum();
                out[t * weight.rows + r] = dot as f32;
            }
        }
        Ok(out)
    }
}
