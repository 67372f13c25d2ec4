//! The oracle: walks a plan op by op in plain f32, unfused and on one thread.
//!
//! Written to be read and believed, not to be fast; every other backend is tested against it.

use super::{Backend, BackendError, Batch, Device, KvType, Session, SessionConfig};
use crate::graph::{
    Activation, AttentionOp, CacheInfo, ExpertsOp, Gating, NormKind, Op, Plan, RopeFrequencies,
    RopeLayout, Rows, ValueId, WeightId,
};
use crate::kv::BlockId;
use crate::model::Weights;
use oxidize_kernels::quant;

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

    fn supports(&self, _op: &Op) -> bool {
        true
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
            values,
        }))
    }
}

struct ReferenceSession {
    plan: Plan,
    weights: Weights,
    config: SessionConfig,
    caches: Vec<KvCache>,
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
        let v = vec![0.0; slots * info.n_kv_heads * info.value_dim];
        KvCache { info, k, v }
    }
}

impl Session for ReferenceSession {
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        for index in 0..self.plan.ops.len() {
            let op = self.plan.ops[index].clone();
            self.step(&op, batch)?;
        }
        Ok(())
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
            .map(|c| c.info.n_kv_heads * (c.info.key_dim + c.info.value_dim));
        4 * self.config.block_size * widths.sum::<usize>()
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.check_block(block)?;
        out.clear();
        for cache in &self.caches {
            for (data, dim) in [
                (&cache.k, cache.info.key_dim),
                (&cache.v, cache.info.value_dim),
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
                (&mut cache.v, cache.info.value_dim),
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
            Op::RopeTable { frequencies, .. } => rope_table(frequencies, batch.positions),
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
            Op::Add { a, b, .. } => self
                .value(*a)
                .iter()
                .zip(self.value(*b))
                .map(|(a, b)| a + b)
                .collect(),
            Op::Scale { x, factor, .. } => self.value(*x).iter().map(|x| x * factor).collect(),
            Op::Softcap { x, cap, .. } => self
                .value(*x)
                .iter()
                .map(|x| cap * (x / cap).tanh())
                .collect(),
            Op::Experts {
                x, router, spec, ..
            } => self.experts(self.value(*x), self.value(*router), spec)?,
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
        v: ValueId,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        let block_size = self.config.block_size;
        let slots: Vec<usize> = slots(batch, block_size).collect();
        let cache = &mut self.caches[layer];
        let heads = cache.info.n_kv_heads;
        let parts = [
            (k, &mut cache.k, cache.info.key_dim, self.config.key_type),
            (
                v,
                &mut cache.v,
                cache.info.value_dim,
                self.config.value_type,
            ),
        ];
        for (value, data, dim, ty) in parts {
            let width = heads * dim;
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
            for _ in 0..sequence.n_tokens {
                let position = batch.positions[token] as usize;
                let first = spec
                    .window
                    .map_or(0, |window| (position + 1).saturating_sub(window));
                for head in 0..spec.n_heads {
                    let q_at = (token * spec.n_heads + head) * spec.key_dim;
                    let q = &q[q_at..q_at + spec.key_dim];
                    let kv_head = head / group;
                    let scores: Vec<f32> = (first..=position)
                        .map(|p| {
                            let at = (slot_of(p) * spec.n_kv_heads + kv_head) * spec.key_dim;
                            let score = spec.scale * dot(q, &cache.k[at..at + spec.key_dim]);
                            spec.softcap.map_or(score, |cap| cap * (score / cap).tanh())
                        })
                        .collect();
                    let weights = softmax(&scores);
                    let out_at = (token * spec.n_heads + head) * spec.value_dim;
                    for (p, weight) in (first..=position).zip(weights) {
                        let at = (slot_of(p) * spec.n_kv_heads + kv_head) * spec.value_dim;
                        for i in 0..spec.value_dim {
                            out[out_at + i] += weight * cache.v[at + i];
                        }
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
    ) -> Result<Vec<f32>, BackendError> {
        let width = self.weights.get(spec.down).rows;
        let mut out = vec![0.0; x.len()];
        for (t, (x, logits)) in x
            .chunks_exact(width)
            .zip(router.chunks_exact(spec.n_experts))
            .enumerate()
        {
            for (expert, weight) in route(logits, spec) {
                let gate = self.matmul(x, spec.gate, expert)?;
                let up = self.matmul(x, spec.up, expert)?;
                let hidden: Vec<f32> = gate
                    .iter()
                    .zip(&up)
                    .map(|(&g, &u)| activate(spec.activation, g) * u)
                    .collect();
                let down = self.matmul(&hidden, spec.down, expert)?;
                for (out, down) in out[t * width..(t + 1) * width].iter_mut().zip(down) {
                    *out += weight * down;
                }
            }
        }
        Ok(out)
    }
}

/// The chosen experts of one token and their weights, best first.
pub(crate) fn route(logits: &[f32], spec: &ExpertsOp) -> Vec<(usize, f32)> {
    let scores = match spec.gating {
        Gating::Softmax => softmax(logits),
        Gating::Sigmoid => logits.iter().map(|&x| 1.0 / (1.0 + (-x).exp())).collect(),
    };
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order.truncate(spec.n_used);
    let total: f32 = order.iter().map(|&e| scores[e]).sum();
    let factor = if spec.renormalize { 1.0 / total } else { 1.0 };
    order.into_iter().map(|e| (e, scores[e] * factor)).collect()
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
    for group in out.chunks_exact_mut(width) {
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
        if let Some(weight) = weight {
            group.iter_mut().zip(weight).for_each(|(x, w)| *x *= w);
        }
        if let Some(bias) = bias {
            add_to(group, bias);
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
    }
}

/// The error function: Taylor's series near zero, a continued fraction far from it.
fn erf(x: f64) -> f64 {
    if x.abs() > 3.0 {
        let mut fraction = 0.0;
        for k in (1..60).rev() {
            fraction = f64::from(k) / 2.0 / (x.abs() + fraction);
        }
        let tail = (-x * x).exp() / (std::f64::consts::PI.sqrt() * (x.abs() + fraction));
        return x.signum() * (1.0 - tail);
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn softmax(x: &[f32]) -> Vec<f32> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_right_on_both_sides_of_the_seam() {
        // Abramowitz and Stegun, table 7.1.
        for (x, expected) in [
            (0.5, 0.520_499_877_8),
            (2.0, 0.995_322_265_0),
            (3.5, 0.999_999_256_9),
        ] {
            assert!((erf(x) - expected).abs() < 1e-10, "erf({x}) = {}", erf(x));
            assert!((erf(-x) + expected).abs() < 1e-10);
        }
    }
}
