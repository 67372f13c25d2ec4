//! Attention of many queries: a chunk of keys and values is packed into panels of floats, which all queries
//! share.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::float::Multiply;
use super::chunks;
use super::rows::convert;
use super::softmax::exp_sum;
use crate::ops::attention::AttentionArgs;
use crate::ops::matmul::{Scratch, grown};

/// Keys of a chunk.
const CHUNK: usize = 64;

/// # Safety
/// As [`attention`](super::attention); [`CHUNK`] is a multiple of `R`, and `R` of 8.
#[inline(always)]
pub(super) unsafe fn run<const R: usize, const T: usize>(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
    multiply: Multiply<T>,
) {
    let (k_dim, v_dim) = (args.kv.k_dim, args.kv.v_dim);
    let v_panels = v_dim.div_ceil(R);
    let (k_len, v_len) = (CHUNK * k_dim, v_panels * CHUNK * R);
    let buffer = grown(&mut scratch.floats, k_len + v_len + 16);
    let start = buffer.as_ptr().align_offset(64);
    let (k_panels, v_panels) = buffer[start..][..k_len + v_len].split_at_mut(k_len);
    let queries = args.tokens() * args.heads;
    for chunk in chunks(args, keys, CHUNK) {
        let visible = |token: usize| {
            let visible = &args.visible[token];
            (visible.start as usize) < chunk.end && (visible.end as usize) > chunk.start
        };
        if !(0..args.tokens()).any(visible) {
            continue;
        }
        // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `multiply`. `k_panels` has `CHUNK ·
        // k_dim` floats and `v_panels` `CHUNK · R` for each `R` elements of a value; the tiles' queries are
        // below `queries`, for each of which `part` has a record.
        unsafe {
            let mut rows = [(std::ptr::null(), std::ptr::null()); CHUNK];
            let rows = &mut rows[..chunk.len()];
            args.kv.rows(chunk.start, rows);
            pack_keys::<R>(args, rows, k_panels);
            pack_values::<R>(args, rows, v_panels);
            for first in (0..queries).step_by(T) {
                let n = T.min(queries - first);
                let tokens = first / args.heads..=(first + n - 1) / args.heads;
                if !tokens.into_iter().any(visible) {
                    continue;
                }
                let tile = Tile::<T> { args, first, n };
                tile.run::<R>(chunk.clone(), k_panels, v_panels, part, multiply);
            }
        }
    }
}

/// Tile of `n` queries, at most `T`, from `first` on.
struct Tile<'a, const T: usize> {
    args: &'a AttentionArgs<'a>,
    first: usize,
    n: usize,
}

impl<const T: usize> Tile<'_, T> {
    /// # Safety
    /// As the function [`run`]; the panels hold the chunk, and `part` has a record for each of the queries.
    #[inline(always)]
    unsafe fn run<const R: usize>(
        &self,
        chunk: Range<usize>,
        k_panels: &[f32],
        v_panels: &[f32],
        part: &mut [f32],
        multiply: Multiply<T>,
    ) {
        let (k_dim, v_dim) = (self.args.kv.k_dim, self.args.kv.v_dim);
        let query = |i: usize| {
            let i = self.first + i.min(self.n - 1);
            (i / self.args.heads, i % self.args.heads)
        };
        let mut weights = [[0.0f32; CHUNK]; T];
        // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `multiply`. A key panel has `k_dim`
        // elements of `R` keys, and each query `k_dim`; a value panel has `CHUNK` rows of `R` elements, and
        // each query `CHUNK` weights. Products go to `R` weights from `p · R` on, or to `R` floats of the
        // record or of `wide`.
        unsafe {
            let queries: [*const f32; T] = std::array::from_fn(|i| {
                let (token, head) = query(i);
                self.args.query(token, head).as_ptr()
            });
            for (p, panel) in k_panels.chunks_exact(k_dim * R).enumerate() {
                if p * R < chunk.len() {
                    let out = weights.each_mut().map(|w| w[p * R..].as_mut_ptr());
                    multiply(self.n, panel.as_ptr(), k_dim, &queries, &out);
                }
            }
            let records = &mut part[self.first * (v_dim + 2)..];
            for (i, record) in records.chunks_exact_mut(v_dim + 2).take(self.n).enumerate() {
                let Some((stats, acc)) = record.split_first_chunk_mut::<2>() else {
                    continue;
                };
                let rescale = exp_sum(self.args, query(i), chunk.clone(), &mut weights[i], stats);
                if rescale != 1.0 {
                    super::super::row::scale(acc, rescale);
                }
            }
            let rows = weights.each_ref().map(|w| w.as_ptr());
            for (p, panel) in v_panels.chunks_exact(CHUNK * R).enumerate() {
                let width = R.min(v_dim - p * R);
                let base = records.as_mut_ptr();
                let acc: [*mut f32; T] =
                    std::array::from_fn(|i| base.wrapping_add(i * (v_dim + 2) + 2 + p * R));
                if width == R {
                    multiply(self.n, panel.as_ptr(), chunk.len(), &rows, &acc);
                    continue;
                }
                // The last panel is wider than the rest of the accumulators.
                let mut wide = [[0.0f32; R]; T];
                let out = wide.each_mut().map(|w| w.as_mut_ptr());
                multiply(self.n, panel.as_ptr(), chunk.len(), &rows, &out);
                for i in 0..self.n {
                    for (c, x) in wide[i][..width].iter().enumerate() {
                        *acc[i].add(c) += x;
                    }
                }
            }
        }
    }
}

/// Packs the chunk's keys into panels `[k_dim][R]`. Past the last key the contents are unspecified.
///
/// # Safety
/// Needs AVX2 and F16C. `rows` are keys of the cache, at most [`CHUNK`]; `panels` has `CHUNK · k_dim`
/// elements, `k_dim` is a multiple of 8, and `CHUNK` of `R`.
#[inline(always)]
unsafe fn pack_keys<const R: usize>(
    args: &AttentionArgs<'_>,
    rows: &[(*const u8, *const u8)],
    panels: &mut [f32],
) {
    let (ty, dim) = (args.kv.k_ty, args.kv.k_dim);
    for first in (0..rows.len()).step_by(8) {
        let last = rows.len() - 1;
        let keys: [*const u8; 8] = std::array::from_fn(|i| rows[(first + i).min(last)].0);
        // Eight keys, eight elements at a time, transposed.
        let panel = panels[first / R * dim * R..].as_mut_ptr();
        for d in (0..dim).step_by(32) {
            let width = 32.min(dim - d);
            let mut block = [[0.0f32; 32]; 8];
            // SAFETY: the caller has AVX2 and F16C. Element `d`, a multiple of 32, begins a block of the
            // cache's rows, and `width` elements follow, a multiple of 8; the panel has `dim` rows of `R`
            // columns, of which the eight keys take those from `first % R` on.
            unsafe {
                for (row, block) in keys.iter().zip(&mut block) {
                    let piece = row.add(crate::ops::attention::row_bytes(ty, d));
                    convert(ty, piece, width, |i, x| {
                        _mm256_storeu_ps(block.as_mut_ptr().add(i), x);
                    });
                }
                for i in (0..width).step_by(8) {
                    let eight = std::array::from_fn(|r| {
                        _mm256_loadu_si256(block[r].as_ptr().add(i).cast())
                    });
                    let columns = super::super::format::transpose(eight);
                    for (j, x) in columns.into_iter().enumerate() {
                        let at = panel.add((d + i + j) * R + first % R);
                        _mm256_storeu_si256(at.cast(), x);
                    }
                }
            }
        }
    }
}

/// Packs the chunk's values into panels `[CHUNK][R]`, one for each `R` elements of a value.
///
/// # Safety
/// Needs AVX2 and F16C. `rows` are values of the cache, at most [`CHUNK`]; `panels` has `CHUNK · R` elements
/// for each `R` elements of a value, which has a multiple of 8.
#[inline(always)]
unsafe fn pack_values<const R: usize>(
    args: &AttentionArgs<'_>,
    rows: &[(*const u8, *const u8)],
    panels: &mut [f32],
) {
    let (ty, dim) = (args.kv.v_ty, args.kv.v_dim);
    for (i, &(_, row)) in rows.iter().enumerate() {
        let base = panels.as_mut_ptr();
        // SAFETY: the caller has AVX2 and F16C. The row has `dim` elements; panel `d / R` has row `i` below
        // `CHUNK`, in which eight elements from `d % R` on end at `R`, a multiple of 8.
        unsafe {
            convert(ty, row, dim, |d, x| {
                _mm256_storeu_ps(base.add((d / R * CHUNK + i) * R + d % R), x);
            });
        }
    }
}
