//! A few queries: keys and values are multiplied as they are read.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::dot::horizontal_sum;
use super::super::float::{F32, FloatFormat};
use super::super::format::ask;
use super::rows::convert;
use super::softmax::weigh;
use super::{CHUNK, for_each_chunk};
use crate::ops::attention::{AttentionArgs, row_bytes};
use crate::ops::matmul::{Scratch, grown};

/// # Safety
/// Needs AVX2, FMA and F16C; the arguments have been checked, and the cache stores `F`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<F: FloatFormat>(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    let weights = scores_buffer(args, scratch);
    for_each_chunk_of_rows(args, keys, |chunk, rows, next| {
        // SAFETY: the rows are the cache's, of the dimensions it has.
        unsafe { step::<F>(args, chunk, rows, next, part, weights) };
    });
}

/// The stored key and value of a position.
type KvRow = (*const u8, *const u8);

/// Calls `step` with chunks of the keys that some token sees, their rows, and the rows of the chunk after
/// that, to be asked for from memory meanwhile.
#[inline(always)]
fn for_each_chunk_of_rows(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    mut step: impl FnMut(Range<usize>, &mut [KvRow], &[KvRow]),
) {
    let nowhere = (std::ptr::null(), std::ptr::null());
    let (mut rows, mut next) = ([nowhere; CHUNK], [nowhere; CHUNK]);
    // How many rows the chunk before has looked up.
    let mut known = 0;
    for_each_chunk(args, keys.clone(), |chunk| {
        if known == 0 {
            args.kv.rows(chunk.start, &mut rows[..chunk.len()]);
        }
        known = CHUNK.min(keys.end - chunk.end);
        args.kv.rows(chunk.end, &mut next[..known]);
        step(chunk.clone(), &mut rows[..chunk.len()], &next[..known]);
        rows = next;
    });
}

/// The same for a quantised cache, or one of mixed types: each chunk becomes floats first.
///
/// # Safety
/// Needs AVX2, FMA and F16C; the arguments have been checked.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_converted(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    let (k_dim, v_dim) = (args.kv.k_dim, args.kv.v_dim);
    let (k_ty, v_ty) = (args.kv.k_ty, args.kv.v_ty);
    let mut converted = std::mem::take(&mut scratch.scales);
    let weights = scores_buffer(args, scratch);
    let (k_rows, v_rows) =
        grown(&mut converted, CHUNK * (k_dim + v_dim)).split_at_mut(CHUNK * k_dim);
    let (k_bytes, v_bytes) = (row_bytes(k_ty, k_dim), row_bytes(v_ty, v_dim));
    for_each_chunk_of_rows(args, keys, |chunk, rows, next| {
        let buffers = k_rows
            .chunks_exact_mut(k_dim)
            .zip(v_rows.chunks_exact_mut(v_dim));
        for (i, ((k, v), (k_row, v_row))) in rows.iter_mut().zip(buffers).enumerate() {
            if let Some(&(k, v)) = next.get(i) {
                ask(k, k_bytes);
                ask(v, v_bytes);
            }
            let (k_out, v_out) = (k_row.as_mut_ptr(), v_row.as_mut_ptr());
            // SAFETY: the rows are the cache's, and `put` stays inside the buffers' rows.
            unsafe {
                convert(k_ty, *k, k_dim, |i, x| _mm256_storeu_ps(k_out.add(i), x));
                convert(v_ty, *v, v_dim, |i, x| _mm256_storeu_ps(v_out.add(i), x));
            }
            (*k, *v) = (k_out.cast_const().cast(), v_out.cast_const().cast());
        }
        // SAFETY: the rows are those just converted.
        unsafe { step::<F32>(args, chunk, rows, &[], part, weights) };
    });
    scratch.scales = converted;
}

fn scores_buffer<'a>(args: &AttentionArgs<'_>, scratch: &'a mut Scratch) -> &'a mut [[f32; CHUNK]] {
    let floats = scratch.floats(args.tokens() * args.heads * CHUNK);
    floats.as_chunks_mut().0
}

/// One chunk: scores, weights, weighted values. Of the `next` chunk keys are asked for while scores are
/// computed, and values while values are.
///
/// # Safety
/// Needs AVX2, FMA and F16C; `rows` has a key and a value of `F` for each position of the chunk.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn step<F: FloatFormat>(
    args: &AttentionArgs<'_>,
    chunk: Range<usize>,
    rows: &[KvRow],
    next: &[KvRow],
    part: &mut [f32],
    weights: &mut [[f32; CHUNK]],
) {
    let (queries, v_dim) = (weights.len(), args.kv.v_dim);
    let query = |i: usize| (i / args.heads, i % args.heads);
    let record = v_dim + 2;
    // SAFETY: the queries are those of the arguments, the records theirs in `part`.
    unsafe {
        for first in (0..queries).step_by(4) {
            let q: [*const f32; 4] = std::array::from_fn(|i| {
                let (token, head) = query((first + i).min(queries - 1));
                args.query(token, head).as_ptr()
            });
            let weights = &mut weights[first..];
            let next = if first == 0 { next } else { &[] };
            match queries - first {
                1 => scores::<F, 1>(q, args.kv.k_dim, rows, next, weights),
                2 => scores::<F, 2>(q, args.kv.k_dim, rows, next, weights),
                3 => scores::<F, 3>(q, args.kv.k_dim, rows, next, weights),
                _ => scores::<F, 4>(q, args.kv.k_dim, rows, next, weights),
            }
        }
        let mut shrink = [1.0; super::BLOCKED_QUERIES];
        for (i, (weights, record)) in weights
            .iter_mut()
            .zip(part.chunks_exact_mut(record))
            .enumerate()
        {
            let Some((stats, _)) = record.split_first_chunk_mut::<2>() else {
                continue;
            };
            shrink[i] = weigh(args, query(i), chunk.clone(), weights, stats);
        }
        for first in (0..queries).step_by(4) {
            let acc: [*mut f32; 4] = std::array::from_fn(|i| {
                let i = (first + i).min(queries - 1);
                part[i * record + 2..].as_mut_ptr()
            });
            let (weights, shrink) = (&weights[first..], &shrink[first..]);
            let next = if first == 0 { next } else { &[] };
            match queries - first {
                1 => values::<F, 1>(acc, v_dim, rows, next, weights, shrink),
                2 => values::<F, 2>(acc, v_dim, rows, next, weights, shrink),
                3 => values::<F, 3>(acc, v_dim, rows, next, weights, shrink),
                _ => values::<F, 4>(acc, v_dim, rows, next, weights, shrink),
            }
        }
    }
}

/// Products of `N` queries with each key.
///
/// # Safety
/// Needs AVX2, FMA and F16C; queries and keys have `dim` elements, a multiple of 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scores<F: FloatFormat, const N: usize>(
    q: [*const f32; 4],
    dim: usize,
    rows: &[KvRow],
    next: &[KvRow],
    out: &mut [[f32; CHUNK]],
) {
    let out = &mut out[..N];
    // SAFETY: as the caller says.
    unsafe {
        // Two keys share the loads of the queries.
        let (pairs, rest) = rows.as_chunks::<2>();
        for (i, &[(a, _), (b, _)]) in pairs.iter().enumerate() {
            for &(key, _) in next.iter().skip(2 * i).take(2) {
                ask(key, dim * F::BYTES);
            }
            let sums = products::<F, N, 2>(q, dim, [a, b]);
            for (j, sums) in sums.into_iter().enumerate() {
                for (out, sum) in out.iter_mut().zip(lane_sums(sums)) {
                    out[2 * i + j] = sum;
                }
            }
        }
        if let &[(last, _)] = rest {
            let [sums] = products::<F, N, 1>(q, dim, [last]);
            for (out, sum) in out.iter_mut().zip(lane_sums(sums)) {
                out[rows.len() - 1] = sum;
            }
        }
    }
}

/// Products of `N` queries with `K` keys, still in eight lanes.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn products<F: FloatFormat, const N: usize, const K: usize>(
    q: [*const f32; 4],
    dim: usize,
    keys: [*const u8; K],
) -> [[__m256; N]; K] {
    // SAFETY: as the caller says.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); N]; K];
        for d in (0..dim).step_by(8) {
            let k = keys.map(|key| F::load(key.add(d * F::BYTES)));
            for n in 0..N {
                let q = _mm256_loadu_ps(q[n].add(d));
                for i in 0..K {
                    sums[i][n] = _mm256_fmadd_ps(k[i], q, sums[i][n]);
                }
            }
        }
        sums
    }
}

/// The sums over the lanes of up to four vectors.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn lane_sums<const N: usize>(x: [__m256; N]) -> [f32; 4] {
    // SAFETY: the caller has the instructions; the array has four elements.
    unsafe {
        let mut out = [0.0; 4];
        if N == 1 {
            out[0] = horizontal_sum(x[0]);
            return out;
        }
        let pair = |a: usize| _mm256_hadd_ps(x[a % N], x[(a + 1) % N]);
        let all = _mm256_hadd_ps(pair(0), pair(2));
        let all = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
        _mm_storeu_ps(out.as_mut_ptr(), all);
        out
    }
}

/// Adds the weighted values to `N` accumulators, each multiplied by its `shrink` first.
///
/// # Safety
/// Needs AVX2, FMA and F16C; accumulators and values have `dim` elements, a multiple of 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn values<F: FloatFormat, const N: usize>(
    acc: [*mut f32; 4],
    dim: usize,
    rows: &[KvRow],
    next: &[KvRow],
    weights: &[[f32; CHUNK]],
    shrink: &[f32],
) {
    /// Vectors of eight that are summed at once.
    const WIDTH: usize = 2;
    // SAFETY: as the caller says.
    unsafe {
        let whole = dim / (8 * WIDTH) * (8 * WIDTH);
        let columns = |d: usize, width: usize| {
            let mut sums = [[_mm256_setzero_ps(); WIDTH]; N];
            for n in 0..N {
                for w in 0..width {
                    let old = _mm256_loadu_ps(acc[n].add(d + 8 * w));
                    sums[n][w] = _mm256_mul_ps(old, _mm256_set1_ps(shrink[n]));
                }
            }
            // Each line once.
            let next = match d * F::BYTES % 64 {
                0 => next,
                _ => &[],
            };
            for (i, &(_, value)) in rows.iter().enumerate() {
                if let Some(&(_, value)) = next.get(i) {
                    ask(value.wrapping_add(d * F::BYTES), 1);
                }
                let mut v = [_mm256_setzero_ps(); WIDTH];
                for w in 0..width {
                    v[w] = F::load(value.add((d + 8 * w) * F::BYTES));
                }
                for n in 0..N {
                    let weight = _mm256_broadcast_ss(weights.get_unchecked(n).get_unchecked(i));
                    for w in 0..width {
                        sums[n][w] = _mm256_fmadd_ps(v[w], weight, sums[n][w]);
                    }
                }
            }
            for n in 0..N {
                for w in 0..width {
                    _mm256_storeu_ps(acc[n].add(d + 8 * w), sums[n][w]);
                }
            }
        };
        for d in (0..whole).step_by(8 * WIDTH) {
            columns(d, WIDTH);
        }
        for d in (whole..dim).step_by(8) {
            columns(d, 1);
        }
    }
}
