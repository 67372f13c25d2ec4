//! Attention over the paged KV cache. A batch is prepared once; then each layer distributes the work by heads
//! and runs of tokens or, where there are few tokens and long contexts, by ranges of keys (as Flash-Decoding).

use super::pool::Matrix;
use super::session::CpuSession;
use crate::backend::{Batch, BatchValidator, SessionConfig};
use crate::graph::{AttentionOp, ValueId};
use crate::kv::BlockId;
use oxidize_kernels::{Alibi, AttentionArgs, RelativeBias, TileMut, merge_attention};
use std::ops::Range;

/// Maximum number of tokens in a run: they share the reading of keys.
const RUN_TOKENS: usize = 64;
/// Minimum number of keys in a range, below which splitting does not pay for the merge.
const MIN_KEYS: usize = 256;

/// Work of attention in a batch. All buffers are reused.
#[derive(Default)]
pub(super) struct AttentionWork {
    /// Block tables of each group of layers.
    groups: Vec<GroupTables>,
    /// Runs of tokens, each of one sequence.
    runs: Vec<TokenRun>,
    rows: Vec<Range<usize>>,
    /// True if the results of a token must not depend on the other tokens.
    batch_invariant: bool,
    /// For each token, the number of positions of its sequence, and the number of them that the encoder has
    /// read.
    extents: Vec<(usize, usize)>,
    /// For each token, the positions that it attends to in the current layer.
    visible: Vec<Range<u32>>,
    key_ranges: Vec<KeyRange>,
    parts: Vec<f32>,
}

/// Places of a batch in the caches of a group of layers.
#[derive(Default)]
struct GroupTables {
    /// The block tables of all sequences, one after the other.
    table: Vec<u32>,
    /// Block and position in it of each token.
    places: Vec<(usize, usize)>,
}

/// Some of the keys that the token of a run attends to.
#[derive(Clone)]
struct KeyRange {
    run: usize,
    keys: Range<usize>,
}

/// Neighboring tokens of a sequence, and its part of [`GroupTables::table`].
struct TokenRun {
    tokens: Range<usize>,
    table: Range<usize>,
}

impl AttentionWork {
    pub(super) fn new(config: &SessionConfig) -> AttentionWork {
        let tables = |_| GroupTables {
            table: Vec::with_capacity(config.n_blocks),
            ..GroupTables::default()
        };
        AttentionWork {
            groups: (0..=config.windows.len()).map(tables).collect(),
            ..AttentionWork::default()
        }
    }

    /// Computes the runs and places of a batch.
    pub(super) fn prepare(
        &mut self,
        batch: &Batch<'_>,
        block_size: usize,
        validator: &BatchValidator,
        batch_invariant: bool,
    ) {
        self.batch_invariant = batch_invariant;
        let longest = if batch_invariant { 1 } else { RUN_TOKENS };
        for (group, tables) in self.groups.iter_mut().enumerate() {
            tables.prepare(group, batch, block_size);
        }
        self.runs.clear();
        self.rows.clear();
        self.extents.clear();
        let (mut token, mut first_block) = (0, 0);
        for sequence in batch.sequences {
            let table = first_block..first_block + sequence.blocks.len();
            first_block = table.end;
            let end = token + sequence.n_tokens;
            let positions = &batch.positions[token..end];
            let extent = positions.last().map_or(0, |&last| last as usize + 1);
            let extent = (extent, validator.encoded(sequence.slot));
            self.extents.resize(end, extent);
            while token < end {
                let tokens = token..end.min(token + longest);
                token = tokens.end;
                self.rows.push(tokens.clone());
                self.runs.push(TokenRun {
                    tokens,
                    table: table.clone(),
                });
            }
        }
    }

    /// Splits the keys of each token into ranges, in the order of the runs; returns false if no token's are
    /// split. Only batches in which every run is one token are split: otherwise heads and runs are enough
    /// work for all threads.
    fn split_keys(&mut self, spec: &AttentionOp, n_threads: usize) -> bool {
        self.key_ranges.clear();
        if self.runs.iter().any(|run| run.tokens.len() != 1) {
            return false;
        }
        // In a batch-invariant batch, the split must not depend on the other tokens.
        let n_runs = if self.batch_invariant {
            1
        } else {
            self.runs.len()
        };
        let wanted = (4 * n_threads).div_ceil(n_runs * spec.n_kv_heads);
        let mut splits = false;
        for (run, visible) in self.visible.iter().enumerate() {
            let visible = visible.start as usize..visible.end as usize;
            let n_parts = wanted.min(visible.len() / MIN_KEYS).max(1);
            let size = visible.len().div_ceil(n_parts).max(1);
            splits |= n_parts > 1;
            self.key_ranges.extend((0..n_parts).map(|nth| {
                let start = (visible.start + nth * size).min(visible.end);
                let keys = start..(start + size).min(visible.end);
                KeyRange { run, keys }
            }));
        }
        splits
    }

    /// Computes the positions that each token attends to in a layer.
    fn set_visible(&mut self, positions: &[u32], spec: &AttentionOp) {
        self.visible.clear();
        let tokens = positions.iter().zip(&self.extents);
        self.visible
            .extend(tokens.map(|(&position, &(end, encoded))| {
                let visible = spec.visible(position as usize, end, encoded);
                visible.start as u32..visible.end as u32
            }));
    }
}

impl GroupTables {
    fn prepare(&mut self, group: usize, batch: &Batch<'_>, block_size: usize) {
        self.table.clear();
        self.places.clear();
        let mut token = 0;
        for sequence in batch.sequences {
            let table = sequence.table(group);
            // Behind the window any block will do, as it is not read.
            let blocks = table.iter().map(|&block| match block {
                BlockId::NONE => 0,
                block => block.0,
            });
            self.table.extend(blocks);
            let positions = &batch.positions[token..token + sequence.n_tokens];
            token += sequence.n_tokens;
            self.places.extend(positions.iter().map(|&position| {
                let position = position as usize;
                let block = table[position / block_size].index();
                (block, position % block_size)
            }));
        }
    }
}

/// Minimum number of tokens that are worth storing on several threads.
const MIN_STORED: usize = 8;

impl CpuSession {
    pub(super) fn store_kv(&mut self, layer: usize, k: ValueId, v: Option<ValueId>) {
        let (kernels, cache) = (self.kernels, &mut self.caches[layer]);
        let places = &self.attention.groups[cache.group].places;
        for (plane, value) in cache.planes_mut().zip(std::iter::once(k).chain(v)) {
            let (x, n_heads) = (self.buffers.get(value), plane.n_heads);
            let mut data = std::mem::take(&mut plane.data);
            let (ty, dim) = (plane.ty, plane.dim);
            let body = |head: usize, data: &mut [u8]| {
                for (row, &place) in x.chunks_exact(n_heads * dim).zip(places) {
                    let x = &row[head * dim..][..dim];
                    kernels.store_kv(ty, x, &mut data[plane.row(place)]);
                }
            };
            if places.len() < MIN_STORED {
                let head_bytes = data.len() / n_heads;
                let heads = data.chunks_exact_mut(head_bytes);
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
        self.attention.set_visible(batch.positions, spec);
        let splits = self.attention.split_keys(spec, self.pool.n_threads());
        let mut parts = std::mem::take(&mut self.attention.parts);
        let mut taken = self.buffers.take(out);
        let q = self.buffers.get(q);
        let (kernels, block_size) = (self.kernels, self.config.block_size);
        let (work, cache) = (&self.attention, &self.caches[spec.layer]);
        let tables = &work.groups[cache.group];
        let sinks = spec.sinks.map(|id| self.weights.get(id).as_f32());
        let relative = spec.relative.map(|id| self.weights.get(id).as_f32());
        let group = spec.n_heads / spec.n_kv_heads;
        let (q_stride, width) = (spec.n_heads * spec.key_dim, group * spec.value_dim);
        let sinks_of = |head: usize| sinks.map(|sinks| &sinks[head * group..(head + 1) * group]);
        let args = |run: usize, head: usize| {
            let TokenRun { tokens, table } = &work.runs[run];
            let slopes = spec.slopes.as_deref();
            AttentionArgs {
                q: &q[tokens.start * q_stride + head * group * spec.key_dim..],
                q_stride,
                heads: group,
                kv: cache.head(head, &tables.table[table.clone()], block_size),
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
            let n_ranges = work.key_ranges.len();
            let needed = spec.n_kv_heads * n_ranges * part_len;
            parts.resize(needed.max(parts.len()), 0.0);
            let used = &mut parts[..needed];
            self.pool.parts(
                spec.n_kv_heads * n_ranges,
                used,
                &mut [(); 0],
                &mut self.workers,
                |index, part, _, worker| {
                    let KeyRange { run, keys } = work.key_ranges[index % n_ranges].clone();
                    let args = args(run, index / n_ranges);
                    kernels.attention_part(&args, keys, part, &mut worker.scratch);
                },
            );
            let mut out = TileMut::new(taken.rows(), cols);
            for (head, mut parts) in used.chunks_exact(n_ranges * part_len).enumerate() {
                for ranges in work.key_ranges.chunk_by(|a, b| a.run == b.run) {
                    let (of_run, rest) = parts.split_at(ranges.len() * part_len);
                    parts = rest;
                    let rows = work.rows[ranges[0].run].clone();
                    let tile = out.part(rows, head * width..(head + 1) * width);
                    merge_attention(of_run, sinks_of(head), spec.value_dim, tile);
                }
            }
        }
        self.attention.parts = parts;
        self.buffers.put(taken);
    }
}
