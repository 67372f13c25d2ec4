//! The oracle: walks a plan op by op in plain f32, unfused and on one thread.
//!
//! Written to be read and believed, not to be fast; every other backend is tested against it.

mod recurrent;

use super::routing::route;
use super::slots::{Encoded, StateSlots};
use super::{Backend, BackendError, Batch, Device, KvType, Session, SessionConfig};
use crate::graph::{
    Activation, AttentionOp, CacheInfo, ExpertHalf, ExpertWeights, ExpertsOp, NormKind, Op, Plan,
    RopeFrequencies, RopeLayout, Rows, ValueId, WeightId,
};
use crate::kv::BlockId;
use crate::math::erf;
use crate::model::Weights;
use oxidize_kernels::quant;
use std::ops::Range;

/// The backend of the oracle.
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
        let slots = config.n_blocks * config.block_size;
        let caches = plan
            .caches
            .iter()
            .map(|cache| KvCache::new(*cache, slots))
            .collect();
        let values = vec![Vec::new(); plan.values.len()];
        Ok(Box::new(ReferenceSession {
            plan: plan.clone(),
            weights: weights.clone(),
            config: config.clone(),
            caches,
            states: recurrent::states(plan, config),
            slots: StateSlots::new(config.state_slots),
            encoded: Encoded::new(if plan.n_encoder_ops > 0 {
                config.state_slots
            } else {
                0
            }),
            values,
        }))
    }
}

struct ReferenceSession {
    plan: Plan,
    weights: Weights,
    config: SessionConfig,
    caches: Vec<KvCache>,
    states: Vec<recurrent::State>,
    slots: StateSlots,
    encoded: Encoded,
    /// The rows of each value of the last batch.
    values: Vec<Vec<f32>>,
}

/// Keys and values of one layer, by slot (block · block_size + offset), as f32.
struct KvCache {
    info: CacheInfo,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl KvCache {
    fn new(info: CacheInfo, slots: usize) -> KvCache {
        let k = vec![0.0; slots * info.n_kv_heads * info.key_dim];
        let v = vec![0.0; slots * info.n_kv_heads * info.kept_value_dim()];
        KvCache { info, k, v }
    }

    /// The value of a slot and head.
    fn value(&self, slot: usize, head: usize) -> &[f32] {
        let at = slot * self.info.n_kv_heads + head;
        if self.info.values_in_keys {
            &self.k[at * self.info.key_dim..][..self.info.value_dim]
        } else {
            &self.v[at * self.info.value_dim..][..self.info.value_dim]
        }
    }
}

impl Session for ReferenceSession {
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.begin_states(batch)?;
        if self.plan.is_bidirectional() {
            batch.check_whole()?;
        }
        self.steps(self.plan.n_encoder_ops..self.plan.ops.len(), batch)
    }

    fn encode(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        if self.plan.n_encoder_ops == 0 {
            return Err(malformed("the model has no encoder"));
        }
        self.encoded.begin(batch)?;
        self.steps(0..self.plan.n_encoder_ops, batch)
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
            let (from, to) = self.slots.copy(from, to)?;
            self.states
                .iter_mut()
                .for_each(|state| state.copy(from, to));
        }
        Ok(())
    }

    fn copy_blocks(&mut self, moves: &[(BlockId, BlockId)]) -> Result<(), BackendError> {
        for &(from, to) in moves {
            let mut bytes = Vec::new();
            self.read_block(from, &mut bytes)?;
            self.write_block(to, &bytes)?;
        }
        Ok(())
    }

    fn block_bytes(&self) -> usize {
        let widths = self
            .caches
            .iter()
            .map(|c| c.info.n_kv_heads * (c.info.key_dim + c.info.kept_value_dim()));
        4 * self.config.block_size * widths.sum::<usize>()
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.check_block(block)?;
        out.clear();
        for cache in &self.caches {
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

    fn write_block(&mut self, block: BlockId, mut bytes: &[u8]) -> Result<(), BackendError> {
        self.check_block(block)?;
        if bytes.len() != self.block_bytes() {
            return Err(malformed("a block of another size"));
        }
        let block_size = self.config.block_size;
        for cache in &mut self.caches {
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

    fn check_block(&self, block: BlockId) -> Result<(), BackendError> {
        if (block.0 as usize) < self.config.n_blocks {
            return Ok(());
        }
        Err(malformed("no such block"))
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
                    let cut = threshold(row, *deviations, *unbiased);
                    row.iter_mut().for_each(|x| *x = (*x - cut).max(0.0));
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
                rows.zip(batch.strengths(info.rows, *adapter))
                    .flat_map(|(row, strength)| row.iter().map(move |x| x * factor * strength))
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
        batch.check(&self.config, table.rows)?;
        let mut out = vec![0.0; batch.tokens.len() * table.cols];
        for (row, &token) in out.chunks_exact_mut(table.cols).zip(batch.tokens) {
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
            batch.check_position(position, offset, table.rows)?;
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

    /// `x · weightᵀ` for one matrix of a stack, with f64 sums.
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

    fn store(
        &mut self,
        layer: usize,
        k: ValueId,
        v: Option<ValueId>,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        let block_size = self.config.block_size;
        let slots: Vec<usize> = slots(batch, block_size).collect();
        let cache = &mut self.caches[layer];
        let CacheInfo {
            n_kv_heads,
            key_dim,
            value_dim,
            ..
        } = cache.info;
        let keys = (k, &mut cache.k, key_dim, self.config.key_type);
        let values = v.map(|v| (v, &mut cache.v, value_dim, self.config.value_type));
        for (value, data, dim, ty) in std::iter::once(keys).chain(values) {
            let width = n_kv_heads * dim;
            for (row, &slot) in self.values[value.0 as usize]
                .chunks_exact(width)
                .zip(&slots)
            {
                let place = &mut data[slot * width..(slot + 1) * width];
                for (head, place) in row.chunks_exact(dim).zip(place.chunks_exact_mut(dim)) {
                    round_to(ty, head, place)?;
                }
            }
        }
        Ok(())
    }

    fn attention(&self, q: &[f32], spec: &AttentionOp, batch: &Batch<'_>) -> Vec<f32> {
        let cache = &self.caches[spec.layer];
        let group = spec.n_heads / spec.n_kv_heads;
        let mut out = vec![0.0; batch.tokens.len() * spec.n_heads * spec.value_dim];
        let mut token = 0;
        for sequence in batch.sequences {
            let slot_of = |position: usize| {
                let block = sequence.blocks[position / self.config.block_size].0 as usize;
                block * self.config.block_size + position % self.config.block_size
            };
            let last = batch.positions[token..][..sequence.n_tokens].last();
            let end = last.map_or(0, |&last| last as usize + 1);
            let encoded = self.encoded.of(sequence.slot) as usize;
            for _ in 0..sequence.n_tokens {
                let position = batch.positions[token] as usize;
                let seen = spec.visible(position, end, encoded);
                for head in 0..spec.n_heads {
                    let q_at = (token * spec.n_heads + head) * spec.key_dim;
                    let q = &q[q_at..q_at + spec.key_dim];
                    let kv_head = head / group;
                    let slope = spec.slopes.as_ref().map_or(0.0, |slopes| slopes[head]);
                    let relative = self.vector(spec.relative).map(|table| {
                        let row = table.len() / spec.n_heads;
                        &table[head * row..(head + 1) * row]
                    });
                    let mut scores: Vec<f32> = seen
                        .clone()
                        .map(|p| {
                            let at = (slot_of(p) * spec.n_kv_heads + kv_head) * spec.key_dim;
                            let score = spec.scale * dot(q, &cache.k[at..at + spec.key_dim]);
                            let score =
                                spec.softcap.map_or(score, |cap| cap * (score / cap).tanh());
                            let learned = relative.map_or(0.0, |table| {
                                let reach = table.len() / 2;
                                let column = (p + reach).saturating_sub(position);
                                table[column.min(2 * reach)]
                            });
                            score - slope * position.abs_diff(p) as f32 + learned
                        })
                        .collect();
                    // A sink takes part in the softmax, but has no value.
                    scores.extend(self.vector(spec.sinks).map(|sinks| sinks[head]));
                    let weights = softmax(&scores);
                    let out_at = (token * spec.n_heads + head) * spec.value_dim;
                    for (p, weight) in seen.clone().zip(weights) {
                        let value = cache.value(slot_of(p), kv_head);
                        let out = &mut out[out_at..out_at + spec.value_dim];
                        out.iter_mut()
                            .zip(value)
                            .for_each(|(o, v)| *o += weight * v);
                    }
                }
                token += 1;
            }
        }
        out
    }

    fn experts(
        &self,
        x: &[f32],
        router: &[f32],
        spec: &ExpertsOp,
        batch: &Batch<'_>,
    ) -> Result<Vec<f32>, BackendError> {
        let width = self.weights.get(spec.down.weight).rows;
        let mut out = vec![0.0; x.len()];
        for (t, (x, logits)) in x
            .chunks_exact(width)
            .zip(router.chunks_exact(spec.routing.n_experts))
            .enumerate()
        {
            for (expert, weight) in route(logits, &spec.routing, &self.weights) {
                let (before, after) = match spec.routing.weigh_input {
                    true => (weight, 1.0),
                    false => (1.0, weight),
                };
                let x: Vec<f32> = x.iter().map(|x| x * before).collect();
                let product = |x: &[f32], stack: ExpertWeights, half: ExpertHalf| {
                    let mut out = self.expert(x, stack, expert)?;
                    for adapter in spec.adapters_of(half) {
                        let strengths = batch.strengths(Rows::Tokens, adapter.adapter).nth(t);
                        let factor = adapter.factor * strengths.unwrap_or(0.0);
                        let low = self.matmul(x, adapter.down, expert)?;
                        let low: Vec<f32> = low.iter().map(|x| x * factor).collect();
                        add_to(&mut out, &self.matmul(&low, adapter.up, expert)?);
                    }
                    Ok::<_, BackendError>(out)
                };
                let mut hidden = product(&x, spec.up, ExpertHalf::Up)?;
                match spec.gate {
                    Some(gate) => {
                        let gate = product(&x, gate, ExpertHalf::Gate)?;
                        for (h, g) in hidden.iter_mut().zip(gate) {
                            *h = gated(spec, g, *h);
                        }
                    }
                    None => hidden
                        .iter_mut()
                        .for_each(|h| *h = activate(spec.activation, *h)),
                }
                let down = product(&hidden, spec.down, ExpertHalf::Down)?;
                for (out, down) in out[t * width..(t + 1) * width].iter_mut().zip(down) {
                    *out += after * down;
                }
            }
        }
        Ok(out)
    }

    /// One row times one matrix of a stack, plus its bias.
    fn expert(
        &self,
        x: &[f32],
        stack: ExpertWeights,
        expert: usize,
    ) -> Result<Vec<f32>, BackendError> {
        let mut out = self.matmul(x, stack.weight, expert)?;
        if let Some(bias) = self.vector(stack.bias) {
            let len = out.len();
            add_to(&mut out, &bias[expert * len..(expert + 1) * len]);
        }
        Ok(out)
    }
}

/// Both halves of a gated unit brought together.
fn gated(spec: &ExpertsOp, gate: f32, up: f32) -> f32 {
    match spec.glu_limit {
        Some(limit) => activate(spec.activation, gate.min(limit)) * (up.clamp(-limit, limit) + 1.0),
        None => activate(spec.activation, gate) * up,
    }
}

/// `mean + deviations · σ` of a row.
pub(super) fn threshold(row: &[f32], deviations: f32, unbiased: bool) -> f32 {
    let n = row.len() as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares: f64 = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
    let divisor = if unbiased { (n - 1.0).max(1.0) } else { n };
    (mean + f64::from(deviations) * (squares / divisor).sqrt()) as f32
}

/// The factor that gives `x` the root mean square of `like`.
pub(super) fn magnitude_ratio(x: &[f32], like: &[f32]) -> f32 {
    // Rows of almost nothing are not blown up; the bound is Gemma 3n's.
    const SMALLEST: f32 = 1e-5;
    let mean_square =
        |x: &[f32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() as f32 / x.len() as f32;
    mean_square(like).sqrt() / mean_square(x).max(SMALLEST).sqrt()
}

/// The cache slot of each token of a batch.
fn slots<'a>(batch: &'a Batch<'a>, block_size: usize) -> impl Iterator<Item = usize> + 'a {
    let owners = batch
        .sequences
        .iter()
        .flat_map(|s| std::iter::repeat_n(s.blocks, s.n_tokens));
    owners.zip(batch.positions).map(move |(blocks, &position)| {
        let position = position as usize;
        blocks[position / block_size].0 as usize * block_size + position % block_size
    })
}

/// What is left of `x` after it was kept as `ty`.
fn round_to(ty: KvType, x: &[f32], out: &mut [f32]) -> Result<(), BackendError> {
    let ty = ty.tensor_type();
    let mut bytes = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
    quant::quantize(ty, x, &mut bytes)
        .and_then(|()| quant::dequantize(ty, &bytes, out))
        .map_err(|e| malformed(&e.to_string()))
}

fn rope_table(frequencies: &RopeFrequencies, positions: &[u32]) -> Vec<f32> {
    let pairs = frequencies.radians.len();
    let mut out = Vec::with_capacity(positions.len() * 2 * pairs);
    for &position in positions {
        let angles = frequencies.radians.iter().map(|f| position as f32 * f);
        out.extend(
            angles
                .clone()
                .map(|angle| angle.cos() * frequencies.magnitude),
        );
        out.extend(angles.map(|angle| angle.sin() * frequencies.magnitude));
    }
    out
}

fn rope(
    x: &[f32],
    table: &[f32],
    width: usize,
    dims: usize,
    head_dim: usize,
    layout: RopeLayout,
) -> Vec<f32> {
    let mut out = x.to_vec();
    for (row, table) in out.chunks_exact_mut(width).zip(table.chunks_exact(dims)) {
        let (cos, sin) = table.split_at(dims / 2);
        for head in row.chunks_exact_mut(head_dim) {
            for i in 0..dims / 2 {
                let (a, b) = match layout {
                    RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                    RopeLayout::Halves => (i, i + dims / 2),
                };
                let (x, y) = (head[a], head[b]);
                head[a] = x * cos[i] - y * sin[i];
                head[b] = x * sin[i] + y * cos[i];
            }
        }
    }
    out
}

fn norm(
    kind: NormKind,
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    epsilon: f32,
    width: usize,
) -> Vec<f32> {
    let mut out = x.to_vec();
    for (index, group) in out.chunks_exact_mut(width).enumerate() {
        // Groups share their weights, or take turns in those of a whole row.
        let of_group = |all: &'_ [f32]| -> Vec<f32> {
            all[index % (all.len() / width) * width..][..width].to_vec()
        };
        if kind == NormKind::Layer {
            let mean = (group.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64) as f32;
            group.iter_mut().for_each(|x| *x -= mean);
        }
        let square = group
            .iter()
            .map(|&x| f64::from(x) * f64::from(x))
            .sum::<f64>()
            / width as f64;
        let factor = 1.0 / (square as f32 + epsilon).sqrt();
        group.iter_mut().for_each(|x| *x *= factor);
        if let Some(weight) = weight.map(of_group) {
            group.iter_mut().zip(weight).for_each(|(x, w)| *x *= w);
        }
        if let Some(bias) = bias.map(of_group) {
            add_to(group, &bias);
        }
    }
    out
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => {
            (f64::from(x) * 0.5 * (1.0 + erf(f64::from(x) / 2f64.sqrt()))) as f32
        }
        Activation::GeluQuick => x / (1.0 + (-1.702 * x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0) * x.max(0.0),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Activation::Reciprocal => 1.0 / x,
        Activation::Exp => x.exp(),
    }
}

pub(super) fn softmax(x: &[f32]) -> Vec<f32> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp: Vec<f32> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f32 = exp.iter().sum();
    exp.into_iter().map(|x| x / sum).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum::<f64>() as f32
}

fn add_to(row: &mut [f32], other: &[f32]) {
    row.iter_mut().zip(other).for_each(|(x, y)| *x += y);
}
