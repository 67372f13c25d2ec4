//! Attention over the paged cache: what a batch needs is worked out once, then each layer shares it
//! out by heads and runs of tokens, or, when there is little but a long context, by keys.

use super::pool::Matrix;
use super::run::CpuSession;
use crate::backend::Batch;
use crate::graph::{AttentionOp, ValueId, Window};
use oxidize_kernels::{Alibi, AttentionArgs, TileMut, merge_attention};
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
    /// The longest context of any token.
    context: usize,
    /// For each token, the positions it sees in the layer at hand.
    visible: Vec<Range<u32>>,
    parts: Vec<f32>,
}

struct Run {
    tokens: Range<usize>,
    table: Range<usize>,
}

impl AttentionWork {
    /// Works out the runs and slots of a batch, before it has been checked.
    pub(super) fn prepare(&mut self, batch: &Batch<'_>, block_size: usize) {
        self.table.clear();
        self.runs.clear();
        self.rows.clear();
        self.slots.clear();
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
            while token < end {
                let tokens = token..end.min(token + TOKENS);
                token = tokens.end;
                self.rows.push(tokens.clone());
                self.runs.push(Run {
                    tokens,
                    table: table.clone(),
                });
            }
        }
        self.context = batch
            .positions
            .iter()
            .max()
            .map_or(0, |&position| position as usize + 1);
    }

    /// Into how many parts the keys of each token are split: more than one only where every run is
    /// one token, so that heads and sequences alone would leave threads idle.
    fn n_parts(&self, spec: &AttentionOp, n_threads: usize) -> usize {
        if self.runs.iter().any(|run| run.tokens.len() != 1) {
            return 1;
        }
        let context = spec
            .window
            .map_or(self.context, |window| window.span().min(self.context));
        let n_items = self.runs.len() * spec.n_kv_heads;
        (4 * n_threads).div_ceil(n_items).min(context / MIN_KEYS)
    }

    fn look(&mut self, positions: &[u32], window: Option<Window>) {
        self.visible.clear();
        self.visible.extend(positions.iter().map(|&position| {
            let first = window.map_or(0, |window| window.first(position as usize));
            first as u32..position + 1
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
        self.attention.look(batch.positions, spec.window);
        let mut parts = std::mem::take(&mut self.attention.parts);
        let mut taken = self.buffers.take(out);
        let q = self.buffers.get(q);
        let (kernels, block_size) = (self.kernels, self.config.block_size);
        let (work, cache) = (&self.attention, &self.caches[spec.layer]);
        let sinks = spec.sinks.map(|id| self.weights.get(id).as_f32());
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
            }
        };
        let cols = spec.n_heads * spec.value_dim;
        let n_parts = work.n_parts(spec, self.pool.n_threads());
        if n_parts < 2 {
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
            let n_pieces = work.runs.len() * spec.n_kv_heads * n_parts;
            parts.resize((n_pieces * part_len).max(parts.len()), 0.0);
            let used = &mut parts[..n_pieces * part_len];
            self.pool.parts(
                n_pieces,
                used,
                &mut [(); 0],
                &mut self.workers,
                |piece, part, _, worker| {
                    let (item, nth) = (piece / n_parts, piece % n_parts);
                    let args = args(item / spec.n_kv_heads, item % spec.n_kv_heads);
                    let seen = args.visible[0].start as usize..args.visible[0].end as usize;
                    let size = seen.len().div_ceil(n_parts);
                    let start = (seen.start + nth * size).min(seen.end);
                    let keys = start..(start + size).min(seen.end);
                    kernels.attention_part(&args, keys, part, &mut worker.scratch);
                },
            );
            let mut out = TileMut::new(taken.rows(), cols);
            for (item, parts) in used.chunks_exact(n_parts * part_len).enumerate() {
                let (run, head) = (item / spec.n_kv_heads, item % spec.n_kv_heads);
                let tile = out.part(work.rows[run].clone(), head * width..(head + 1) * width);
                merge_attention(parts, sinks_of(head), spec.value_dim, tile);
            }
        }
        self.attention.parts = parts;
        self.buffers.put(taken);
    }
}
