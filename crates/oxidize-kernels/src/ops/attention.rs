//! Attention of some queries over a paged key-value cache, with an online softmax: arguments and reference
//! implementation.
//!
//! A call computes the query heads that share one key-value head, so that each key and value is read once.
//! Attention over a long context may be computed in parts, by several threads, and merged: see
//! [`crate::Kernels::attention_part`] and [`merge_attention`].

use std::ops::Range;

use crate::ops::matmul::{Scratch, dequantize};
use crate::out::TileMut;
use crate::quant::{self, TensorType};

/// Storage type of the elements of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the formats' own spelling")]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 8-bit blocks of 32.
    Q8_0,
    /// 4-bit blocks of 32.
    Q4_0,
}

impl KvType {
    /// Every type.
    pub const ALL: [KvType; 4] = [KvType::F32, KvType::F16, KvType::Q8_0, KvType::Q4_0];

    /// The tensor type with the same layout.
    pub fn tensor_type(self) -> TensorType {
        match self {
            KvType::F32 => TensorType::F32,
            KvType::F16 => TensorType::F16,
            KvType::Q8_0 => TensorType::Q8_0,
            KvType::Q4_0 => TensorType::Q4_0,
        }
    }

    /// Bytes of a row of `n` elements, or `None` if they are not whole blocks.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        usize::try_from(self.tensor_type().bytes_for(n as u64)?).ok()
    }
}

/// Keys and values of one layer and head: blocks of positions, found through a block table (PagedAttention,
/// Kwon et al. 2023).
///
/// Position `p` lies in block `table[p / block_size]`, at row `p % block_size`. Block `b` begins at
/// byte `b · block_stride` of its slice; its rows are `row_stride` bytes apart.
#[derive(Clone, Copy)]
pub struct PagedKv<'a> {
    /// Storage type of keys.
    pub k_ty: KvType,
    /// Storage type of values.
    pub v_ty: KvType,
    /// Keys, from the first row of block 0 of this head on.
    pub k: &'a [u8],
    /// Values, likewise.
    pub v: &'a [u8],
    /// Number of the block that holds each run of `block_size` positions.
    pub table: &'a [u32],
    /// Positions in a block.
    pub block_size: usize,
    /// Bytes from one block of keys to the next.
    pub k_block_stride: usize,
    /// Bytes from one block of values to the next.
    pub v_block_stride: usize,
    /// Bytes from one key to the next.
    pub k_row_stride: usize,
    /// Bytes from one value to the next.
    pub v_row_stride: usize,
    /// Elements of a key.
    pub k_dim: usize,
    /// Elements of a value.
    pub v_dim: usize,
}

impl PagedKv<'_> {
    /// The stored key of a position.
    ///
    /// # Panics
    /// If the position is not in the table or the block not in the slice.
    #[inline]
    pub(crate) fn key(&self, position: usize) -> &[u8] {
        let start = self.table[position / self.block_size] as usize * self.k_block_stride
            + position % self.block_size * self.k_row_stride;
        &self.k[start..][..row_bytes(self.k_ty, self.k_dim)]
    }

    /// The stored value of a position; panics as [`PagedKv::key`] does.
    #[inline]
    pub(crate) fn value(&self, position: usize) -> &[u8] {
        let start = self.table[position / self.block_size] as usize * self.v_block_stride
            + position % self.block_size * self.v_row_stride;
        &self.v[start..][..row_bytes(self.v_ty, self.v_dim)]
    }

    /// Looks up the stored keys and values of as many consecutive positions as `rows` has elements.
    ///
    /// Cheaper than a lookup of each position: only a new block needs the table.
    #[inline]
    pub(crate) fn rows(&self, first: usize, rows: &mut [(*const u8, *const u8)]) {
        let (mut block, mut row) = (first / self.block_size, first % self.block_size);
        let (k_bytes, v_bytes) = (
            row_bytes(self.k_ty, self.k_dim),
            row_bytes(self.v_ty, self.v_dim),
        );
        let mut rows = rows.iter_mut();
        while rows.len() > 0 {
            let n = rows.len().min(self.block_size - row);
            let id = self.table[block] as usize;
            let k = id * self.k_block_stride + row * self.k_row_stride;
            let v = id * self.v_block_stride + row * self.v_row_stride;
            let k = &self.k[k..][..(n - 1) * self.k_row_stride + k_bytes];
            let v = &self.v[v..][..(n - 1) * self.v_row_stride + v_bytes];
            for (i, row) in rows.by_ref().take(n).enumerate() {
                let k = k[i * self.k_row_stride..].as_ptr();
                *row = (k, v[i * self.v_row_stride..].as_ptr());
            }
            (block, row) = (block + 1, 0);
        }
    }

    /// Checks that every position below `end` lies inside the cache.
    ///
    /// # Panics
    /// If one does not.
    pub(crate) fn check(&self, end: usize) {
        assert!(self.block_size > 0 && self.k_dim > 0 && self.v_dim > 0);
        assert!(
            self.k_ty.row_bytes(self.k_dim).is_some(),
            "keys of {} elements",
            self.k_dim
        );
        assert!(
            self.v_ty.row_bytes(self.v_dim).is_some(),
            "values of {} elements",
            self.v_dim
        );
        let blocks = &self.table[..end.div_ceil(self.block_size)];
        for (i, &block) in blocks.iter().enumerate() {
            let last = (end - i * self.block_size).min(self.block_size) - 1;
            let reaches = |slice: &[u8], block_stride: usize, row_stride: usize, row: usize| {
                let start = (block as usize).checked_mul(block_stride)?;
                let end = start + last * row_stride + row;
                (end <= slice.len()).then_some(())
            };
            let (k_row, v_row) = (
                row_bytes(self.k_ty, self.k_dim),
                row_bytes(self.v_ty, self.v_dim),
            );
            let inside = reaches(self.k, self.k_block_stride, self.k_row_stride, k_row).and(
                reaches(self.v, self.v_block_stride, self.v_row_stride, v_row),
            );
            assert!(inside.is_some(), "block {block} lies outside the cache");
        }
    }
}

/// Linear biases by distance (ALiBi): `−slope · |position − key position|`.
#[derive(Clone, Copy)]
pub struct Alibi<'a> {
    /// Slope of each query head of the group.
    pub slopes: &'a [f32],
    /// Position of each token.
    pub positions: &'a [u32],
}

/// Learned biases by distance (T5, Raffel et al. 2020).
#[derive(Clone, Copy)]
pub struct RelativeBias<'a> {
    /// For each query head of the group, an odd number of biases: of keys from some maximal distance before
    /// the query to the same distance after it. Keys farther away have the bias of the maximal distance.
    pub table: &'a [f32],
    /// Position of each token.
    pub positions: &'a [u32],
}

impl RelativeBias<'_> {
    /// Bias of a key, with `heads` heads in the table.
    #[inline]
    pub(crate) fn at(&self, heads: usize, (token, head): (usize, usize), key: usize) -> f32 {
        let row = self.table.len() / heads;
        let max_distance = (row / 2) as i64;
        let distance = key as i64 - i64::from(self.positions[token]);
        let column = distance.clamp(-max_distance, max_distance) + max_distance;
        self.table[head * row + column as usize]
    }
}

/// Arguments of attention.
#[derive(Clone, Copy)]
pub struct AttentionArgs<'a> {
    /// Queries: the heads of a token lie one after the other, tokens `q_stride` apart.
    pub q: &'a [f32],
    /// Elements from one token's queries to the next's.
    pub q_stride: usize,
    /// Query heads that share the key-value head.
    pub heads: usize,
    /// The keys and values.
    pub kv: PagedKv<'a>,
    /// For each token, the positions that it sees.
    pub visible: &'a [Range<u32>],
    /// Factor of the dot products of queries and keys.
    pub scale: f32,
    /// Bound of the scores, applied as `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// For each head, the score of an attention sink, which takes part in the softmax but has no value.
    pub sinks: Option<&'a [f32]>,
    /// Biases by distance.
    pub alibi: Option<Alibi<'a>>,
    /// Biases by distance, from a table.
    pub relative: Option<RelativeBias<'a>>,
}

impl AttentionArgs<'_> {
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.visible.len()
    }

    /// Number of floats that [`crate::Kernels::attention_part`] writes: for each token and head a record of
    /// the largest score, the sum of weights and the weighted sum of values.
    pub fn part_len(&self) -> usize {
        self.tokens() * self.heads * (self.kv.v_dim + 2)
    }

    /// One query.
    #[inline]
    pub(crate) fn query(&self, token: usize, head: usize) -> &[f32] {
        &self.q[token * self.q_stride + head * self.kv.k_dim..][..self.kv.k_dim]
    }

    /// The keys of the range that a token sees, as indices from the start of the range.
    #[inline]
    pub(crate) fn visible_in(&self, token: usize, keys: &Range<usize>) -> Range<usize> {
        let visible = &self.visible[token];
        let lane = |key: u32| (key as usize).clamp(keys.start, keys.end) - keys.start;
        lane(visible.start)..lane(visible.end)
    }

    /// Score of a key, from its dot product with the query.
    #[inline]
    pub(crate) fn score(&self, dot: f32, token: usize, head: usize, key: usize) -> f32 {
        let mut score = dot * self.scale;
        if let Some(cap) = self.softcap {
            score = cap * (score / cap).tanh();
        }
        if let Some(alibi) = &self.alibi {
            let distance = (alibi.positions[token] as usize).abs_diff(key);
            score -= alibi.slopes[head] * distance as f32;
        }
        if let Some(relative) = &self.relative {
            score += relative.at(self.heads, (token, head), key);
        }
        score
    }

    /// End of the positions that any token sees.
    pub(crate) fn end(&self) -> usize {
        self.visible
            .iter()
            .filter(|r| !r.is_empty())
            .map(|r| r.end as usize)
            .max()
            .unwrap_or(0)
    }

    /// Checks everything that the kernels rely on.
    ///
    /// # Panics
    /// If the shapes do not fit together, or a visible position lies outside the cache.
    pub(crate) fn check(&self) {
        assert!(self.heads > 0);
        if let Some(last) = self.tokens().checked_sub(1) {
            assert!(self.q.len() >= last * self.q_stride + self.heads * self.kv.k_dim);
        }
        assert!(self.sinks.is_none_or(|sinks| sinks.len() == self.heads));
        assert!(self.alibi.is_none_or(
            |alibi| alibi.slopes.len() == self.heads && alibi.positions.len() == self.tokens()
        ));
        assert!(self.relative.is_none_or(|relative| {
            let row = relative.table.len() / self.heads;
            row * self.heads == relative.table.len()
                && row % 2 == 1
                && relative.positions.len() == self.tokens()
        }));
        self.kv.check(self.end());
    }
}

/// Bytes of a row of whole blocks.
#[inline]
pub(crate) fn row_bytes(ty: KvType, dim: usize) -> usize {
    match ty {
        KvType::F32 => dim * 4,
        KvType::F16 => dim * 2,
        KvType::Q8_0 => dim / 32 * 34,
        KvType::Q4_0 => dim / 32 * 18,
    }
}

/// Writes a row of the cache.
pub(crate) fn store_kv(ty: KvType, x: &[f32], out: &mut [u8]) {
    quant::quantize(ty.tensor_type(), x, out)
        .expect("as many whole blocks as the row has elements");
}

/// Attention over the keys in `keys`: one record `[max, sum, acc…]` per token and head.
pub(crate) fn attention_part(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    let kv = &args.kv;
    let (k_ty, v_ty) = (kv.k_ty.tensor_type(), kv.v_ty.tensor_type());
    let (key_row, value_row) = scratch.floats(kv.k_dim + kv.v_dim).split_at_mut(kv.k_dim);
    for record in part.chunks_exact_mut(kv.v_dim + 2) {
        record.fill(0.0);
        record[0] = f32::NEG_INFINITY;
    }
    for key in keys {
        if !args
            .visible
            .iter()
            .any(|visible| visible.contains(&(key as u32)))
        {
            continue;
        }
        dequantize(k_ty, kv.key(key), key_row);
        dequantize(v_ty, kv.value(key), value_row);
        let mut records = part.chunks_exact_mut(kv.v_dim + 2);
        for (token, visible) in args.visible.iter().enumerate() {
            for (head, record) in records.by_ref().take(args.heads).enumerate() {
                if !visible.contains(&(key as u32)) {
                    continue;
                }
                let dot = super::elementwise::dot(args.query(token, head), key_row);
                let score = args.score(dot, token, head, key);
                let (stats, acc) = record.split_at_mut(2);
                let max = stats[0].max(score);
                let (rescale, weight) = ((stats[0] - max).exp(), (score - max).exp());
                stats[0] = max;
                stats[1] = stats[1] * rescale + weight;
                for (acc, value) in acc.iter_mut().zip(&*value_row) {
                    *acc = *acc * rescale + weight * value;
                }
            }
        }
    }
}

/// Merges results of [`crate::Kernels::attention_part`] over disjoint ranges of keys.
///
/// `parts` holds one part after the other. A token that sees no key gets zeros. The rows of `out` are the
/// tokens, its columns the heads' values.
///
/// # Panics
/// If the lengths do not fit together.
pub fn merge_attention(parts: &[f32], sinks: Option<&[f32]>, v_dim: usize, mut out: TileMut<'_>) {
    let (tokens, heads) = (out.rows(), out.cols() / v_dim);
    let record_len = v_dim + 2;
    let part_len = tokens * heads * record_len;
    assert!(out.cols() == heads * v_dim && parts.len().is_multiple_of(part_len.max(1)));
    assert!(sinks.is_none_or(|sinks| sinks.len() == heads));
    for token in 0..tokens {
        let row = out.row(token);
        for (head, out) in row.chunks_exact_mut(v_dim).enumerate() {
            let record = |part: usize| {
                &parts[part * part_len + (token * heads + head) * record_len..][..record_len]
            };
            let n_parts = parts.len() / part_len;
            let sink = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
            let max = (0..n_parts)
                .map(|part| record(part)[0])
                .fold(sink, f32::max);
            out.fill(0.0);
            if max == f32::NEG_INFINITY {
                continue;
            }
            let mut sum = (sink - max).exp();
            for part in 0..n_parts {
                let record = record(part);
                let weight = (record[0] - max).exp();
                if weight > 0.0 {
                    sum += weight * record[1];
                    out.iter_mut()
                        .zip(&record[2..])
                        .for_each(|(o, a)| *o += weight * a);
                }
            }
            let scale = 1.0 / sum;
            out.iter_mut().for_each(|o| *o *= scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attention of one head of dimension 1 over three positions, in blocks of two that are out of order.
    fn run(visible: Range<u32>, sinks: Option<&[f32]>) -> f32 {
        let bytes = |x: [f32; 4]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let (k, v) = (bytes([3.0, 0.0, 1.0, 2.0]), bytes([30.0, 0.0, 10.0, 20.0]));
        let kv = PagedKv {
            k_ty: KvType::F32,
            v_ty: KvType::F32,
            k: &k,
            v: &v,
            table: &[1, 0],
            block_size: 2,
            k_block_stride: 8,
            v_block_stride: 8,
            k_row_stride: 4,
            v_row_stride: 4,
            k_dim: 1,
            v_dim: 1,
        };
        let visible = [visible];
        let args = AttentionArgs {
            q: &[1.0],
            q_stride: 1,
            heads: 1,
            kv,
            visible: &visible,
            scale: 1.0,
            softcap: None,
            sinks,
            alibi: None,
            relative: None,
        };
        args.check();
        let mut parts = vec![0.0; 2 * args.part_len()];
        let (first, second) = parts.split_at_mut(args.part_len());
        attention_part(&args, 0..1, first, &mut Scratch::new());
        attention_part(&args, 1..3, second, &mut Scratch::new());
        let mut out = [0.0];
        merge_attention(&parts, sinks, 1, TileMut::new(&mut out, 1));
        out[0]
    }

    #[test]
    fn attention_weights_are_a_softmax_of_the_scores() {
        let weights = [1.0f32, 2.0, 3.0].map(f32::exp);
        let want = (10.0 * weights[0] + 20.0 * weights[1] + 30.0 * weights[2])
            / weights.iter().sum::<f32>();
        assert!((run(0..3, None) - want).abs() < 1e-4);
        assert!((run(1..2, None) - 20.0).abs() < 1e-4);
        assert_eq!(run(2..2, None), 0.0);
        assert!((run(1..2, Some(&[2.0])) - 10.0).abs() < 1e-4);
    }
}
