//! Attention over the paged cache: what a batch needs is worked out once, then each layer shares it
//! out by heads and runs of tokens, or, when there is little but a long context, by keys.

use super::pool::Matrix;
use super::run::CpuSession;
use crate::backend::Batch;
use crate::backend::slots::Encoded;
use crate::graph::{AttentionOp, ValueId};
use oxidize_kernels::{Alibi, AttentionArgs, RelativeBias, TileMut, merge_attention};
use std::ops::Range;

/// Tokens of a sequence that are worked on together, so that they share the reading of keys.
const TOKENS: usize = 64;
/// Keys below which splitting the context is not worth a merge.
const MIN_KEYS: usize = 256;

/// What attention needs to know of a batch.
#[derive(Default)]
pub(super) struct AttentionWork {
    /// The block tables of all sequences, one after the other.
    table: Vec<u32>,
    /// Runs of tokens of one sequence each.
    runs: Vec<Run>,
    rows: Vec<Range<usize>>,
    /// The cache slot of each token.
    slots: Vec<usize>,
    /// Whether each token is worked on as if it were alone.
    each_alone: bool,
    /// For each token, how many positions of its sequence are there, and how many of them the
    /// encoder has read.
    extents: Vec<(usize, usize)>,
    /// For each token, the positions it sees in the layer at hand.
    visible: Vec<Range<u32>>,
    pieces: Vec<Piece>,
    parts: Vec<f32>,
}

/// Some of the keys that the token of a run sees.
#[derive(Clone)]
struct Piece {
    run: usize,
    keys: Range<usize>,
}

struct Run {
    tokens: Range<usize>,
    table: Range<usize>,
}

impl AttentionWork {
    /// Works out the runs and slots of a batch, before it has been checked.
    pub(super) fn prepare(
        &mut self,
        batch: &Batch<'_>,
        block_size: usize,
        encoded: &Encoded,
        each_alone: bool,
    ) {
        self.each_alone = each_alone;
        let longest = if each_alone { 1 } else { TOKENS };
        self.table.clear();
        self.runs.clear();
        self.rows.clear();
        self.slots.clear();
        self.extents.clear();
        let mut token = 0;
        for sequence in batch.sequences {
            let table = self.table.len()..self.table.len() + sequence.blocks.len();
            self.table
                .extend(sequence.blocks.iter().map(|block| block.0));
            let end = (token + sequence.n_tokens).min(batch.positions.len());
            for &position in &batch.positions[token..end] {
                let block = sequence.blocks.get(position as usize / block_size);
                let block = block.map_or(0, |block| block.0 as usize);
                self.slots
                    .push(block * block_size + position as usize % block_size);
            }
            let own = batch.positions[token..end].last();
            let extent = own.map_or(0, |&last| last as usize + 1);
            let extent = (extent, encoded.of(sequence.slot) as usize);
            self.extents.resize(end, extent);
            while token < end {
                let tokens = token..end.min(token + longest);
                token = tokens.end;
                self.rows.push(tokens.clone());
                self.runs.push(Run {
                    tokens,
                    table: table.clone(),
                });
            }
        }
    }

    /// Splits the keys of each token into pieces, those of a run one after the other; `false` where
    /// that would gain nothing. It is worth it only where every run is one token, so that heads and
    /// sequences alone would leave threads idle.
    fn split_keys(&mut self, spec: &AttentionOp, n_threads: usize) -> bool {
        self.pieces.clear();
        if self.runs.iter().any(|run| run.tokens.len() != 1) {
            return false;
        }
        // How the keys of a token are split must not depend on others where it counts.
        let n_runs = if self.each_alone { 1 } else { self.runs.len() };
        let wanted = (4 * n_threads).div_ceil(n_runs * spec.n_kv_heads);
        let mut splits = false;
        for (run, seen) in self.visible.iter().enumerate() {
            let seen = seen.start as usize..seen.end as usize;
            let n_parts = wanted.min(seen.len() / MIN_KEYS).max(1);
            let size = seen.len().div_ceil(n_parts).max(1);
            splits |= n_parts > 1;
            self.pieces.extend((0..n_parts).map(|nth| {
                let start = (seen.start + nth * size).min(seen.end);
                let keys = start..(start + size).min(seen.end);
                Piece { run, keys }
            }));
        }
        splits
    }

    fn look(&mut self, positions: &[u32], spec: &AttentionOp) {
        self.visible.clear();
        let tokens = positions.iter().zip(&self.extents);
        self.visible
            .extend(tokens.map(|(&position, &(end, encoded))| {
                let seen = spec.visible(position as usize, end, encoded);
                seen.start as u32..seen.end as u32
            }));
    }
}

impl CpuSession {
    pub(super) fn store_kv(&mut self, layer: usize, k: ValueId, v: Option<ValueId>) {
        let values = std::iter::once(k).chain(v);
        for (plane, value) in self.caches[layer].planes_mut().zip(values) {
            let x = self.buffers.get(value);
            let (kernels, slots) = (self.kernels, &self.attention.slots);
            let (dim, ty) = (plane.dim, plane.ty);
            let n_heads = x.len() / slots.len() / dim;
            let mut data = std::mem::take(&mut plane.data);
            let body = |head: usize, data: &mut [u8]| {
                for (token, &slot) in slots.iter().enumerate() {
                    let x = &x[(token * n_heads + head) * dim..][..dim];
                    kernels.store_kv(ty, x, &mut data[plane.row(slot)]);
                }
            };
            if slots.len() < 8 {
                let len = data.len() / n_heads;
                let heads = data.chunks_exact_mut(len);
                heads.enumerate().for_each(|(head, data)| body(head, data));
            } else {
                let body = |head: usize, data: &mut [u8], _: &mut [()], _: &mut _| body(head, data);
                self.pool
                    .parts(n_heads, &mut data, &mut [], &mut self.workers, body);
            }
            plane.data = data;
        }
    }

    pub(super) fn attend(
        &mut self,
        spec: &AttentionOp,
        q: ValueId,
        out: ValueId,
        batch: &Batch<'_>,
    ) {
        self.attention.look(batch.positions, spec);
        let splits = self.attention.split_keys(spec, self.pool.n_threads());
        let mut parts = std::mem::take(&mut self.attention.parts);
        let mut taken = self.buffers.take(out);
        let q = self.buffers.get(q);
        let (kernels, block_size) = (self.kernels, self.config.block_size);
        let (work, cache) = (&self.attention, &self.caches[spec.layer]);
        let sinks = spec.sinks.map(|id| self.weights.get(id).as_f32());
        let relative = spec.relative.map(|id| self.weights.get(id).as_f32());
        let group = spec.n_heads / spec.n_kv_heads;
        let (q_stride, width) = (spec.n_heads * spec.key_dim, group * spec.value_dim);
        let sinks_of = |head: usize| sinks.map(|sinks| &sinks[head * group..(head + 1) * group]);
        let args = |run: usize, head: usize| {
            let Run { tokens, table } = &work.runs[run];
            let slopes = spec.slopes.as_deref();
            AttentionArgs {
                q: &q[tokens.start * q_stride + head * group * spec.key_dim..],
                q_stride,
                heads: group,
                kv: cache.head(head, &work.table[table.clone()], block_size),
                visible: &work.visible[tokens.clone()],
                scale: spec.scale,
                softcap: spec.softcap,
                sinks: sinks_of(head),
                alibi: slopes.map(|slopes| Alibi {
                    slopes: &slopes[head * group..(head + 1) * group],
                    positions: &batch.positions[tokens.clone()],
                }),
                relative: relative.map(|table| {
                    let rows = table.len() / spec.n_heads * group;
                    RelativeBias {
                        table: &table[head * rows..(head + 1) * rows],
                        positions: &batch.positions[tokens.clone()],
                    }
                }),
            }
        };
        let cols = spec.n_heads * spec.value_dim;
        if !splits {
            let matrix = Matrix {
                data: taken.rows(),
                cols,
            };
            self.pool.grid(
                matrix,
                &work.rows,
                width,
                &mut self.workers,
                |run, head, out, worker| {
                    kernels.attention(&args(run, head), out, &mut worker.scratch);
                },
            );
        } else {
            let part_len = group * (spec.value_dim + 2);
            let n_pieces = work.pieces.len();
            let needed = spec.n_kv_heads * n_pieces * part_len;
            parts.resize(needed.max(parts.len()), 0.0);
            let used = &mut parts[..needed];
            self.pool.parts(
                spec.n_kv_heads * n_pieces,
                used,
                &mut [(); 0],
                &mut self.workers,
                |index, part, _, worker| {
                    let Piece { run, keys } = work.pieces[index % n_pieces].clone();
                    let args = args(run, index / n_pieces);
                    kernels.attention_part(&args, keys, part, &mut worker.scratch);
                },
            );
            let mut out = TileMut::new(taken.rows(), cols);
            for (head, mut parts) in used.chunks_exact(n_pieces * part_len).enumerate() {
                for pieces in work.pieces.chunk_by(|a, b| a.run == b.run) {
                    let (of_run, rest) = parts.split_at(pieces.len() * part_len);
                    parts = rest;
                    let rows = work.rows[pieces[0].run].clone();
                    let tile = out.part(rows, head * width..(head + 1) * width);
                    merge_attention(of_run, sinks_of(head), spec.value_dim, tile);
                }
            }
        }
        self.attention.parts = parts;
        self.buffers.put(taken);
    }
}
