//! Attention of the reference backend, and its cache.

use super::math::dot;
use super::{ReferenceSession, malformed};
use crate::backend::row_math::softmax;
use crate::backend::{BackendError, Batch, KvType};
use crate::graph::{AttentionOp, CacheInfo, ValueId};
use oxidize_kernels::quant;

/// Keys and values of one layer, by slot (block · block_size + offset), as f32.
pub(super) struct KvCache {
    pub(super) info: CacheInfo,
    /// Group of layers whose block table applies.
    pub(super) group: usize,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
}

impl KvCache {
    pub(super) fn new(info: CacheInfo, group: usize, slots: usize) -> KvCache {
        let k = vec![0.0; slots * info.n_kv_heads * info.key_dim];
        let v = vec![0.0; slots * info.n_kv_heads * info.kept_value_dim()];
        KvCache { info, group, k, v }
    }

    /// The value of a head in a slot.
    fn value(&self, slot: usize, head: usize) -> &[f32] {
        let at = slot * self.info.n_kv_heads + head;
        if self.info.values_in_keys {
            &self.k[at * self.info.key_dim..][..self.info.value_dim]
        } else {
            &self.v[at * self.info.value_dim..][..self.info.value_dim]
        }
    }
}

impl ReferenceSession {
    pub(super) fn store(
        &mut self,
        layer: usize,
        k: ValueId,
        v: Option<ValueId>,
        batch: &Batch<'_>,
    ) -> Result<(), BackendError> {
        let block_size = self.config.block_size;
        let cache = &mut self.caches[layer];
        let slots: Vec<usize> = slots(batch, cache.group, block_size).collect();
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

    pub(super) fn attention(&self, q: &[f32], spec: &AttentionOp, batch: &Batch<'_>) -> Vec<f32> {
        let cache = &self.caches[spec.layer];
        let group = spec.n_heads / spec.n_kv_heads;
        let mut out = vec![0.0; batch.tokens.len() * spec.n_heads * spec.value_dim];
        let mut token = 0;
        for sequence in batch.sequences {
            let table = sequence.table(cache.group);
            let slot_of = |position: usize| {
                let block = table[position / self.config.block_size].0 as usize;
                block * self.config.block_size + position % self.config.block_size
            };
            let last = batch.positions[token..][..sequence.n_tokens].last();
            let end = last.map_or(0, |&last| last as usize + 1);
            let encoded = self.validator.encoded(sequence.slot);
            for _ in 0..sequence.n_tokens {
                let position = batch.positions[token] as usize;
                let visible = spec.visible(position, end, encoded);
                for head in 0..spec.n_heads {
                    let q_at = (token * spec.n_heads + head) * spec.key_dim;
                    let q = &q[q_at..q_at + spec.key_dim];
                    let kv_head = head / group;
                    let slope = spec.slopes.as_ref().map_or(0.0, |slopes| slopes[head]);
                    let relative = self.vector(spec.relative).map(|table| {
                        let row = table.len() / spec.n_heads;
                        &table[head * row..(head + 1) * row]
                    });
                    let mut scores: Vec<f32> = visible
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
                    // A sink is part of the softmax, but has no value.
                    scores.extend(self.vector(spec.sinks).map(|sinks| sinks[head]));
                    softmax(&mut scores);
                    let out_at = (token * spec.n_heads + head) * spec.value_dim;
                    for (p, &weight) in visible.clone().zip(&scores) {
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
}

/// The cache slot of each token of a batch.
fn slots<'a>(
    batch: &'a Batch<'a>,
    group: usize,
    block_size: usize,
) -> impl Iterator<Item = usize> + 'a {
    let owners = batch
        .sequences
        .iter()
        .flat_map(move |s| std::iter::repeat_n(s.table(group), s.n_tokens));
    owners.zip(batch.positions).map(move |(blocks, &position)| {
        let position = position as usize;
        blocks[position / block_size].0 as usize * block_size + position % block_size
    })
}

/// Rounds `x` to the cache type `ty`.
fn round_to(ty: KvType, x: &[f32], out: &mut [f32]) -> Result<(), BackendError> {
    let ty = ty.tensor_type();
    let mut bytes = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
    quant::quantize(ty, x, &mut bytes)
        .and_then(|()| quant::dequantize(ty, &bytes, out))
        .map_err(|e| malformed(&e.to_string()))
}
