//! Attention of a few queries: keys and values are multiplied as they are read.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::float::{F32, FloatFormat};
use super::super::format::prefetch;
use super::super::vector::Vector;
use super::chunks;
use super::rows::convert;
use super::softmax::exp_sum;
use crate::ops::attention::{AttentionArgs, KvType, row_bytes};
use crate::ops::matmul::{Scratch, grown};

/// A register in which a few queries are multiplied.
///
/// # Safety
/// As for [`Vector`].
pub(crate) unsafe trait StreamVector: Vector {
    /// Keys that are multiplied with four queries at a time, at most [`MAX`]: their sums must fit into
    /// registers.
    const KEYS: usize;
    /// Registers of a value that are weighted for four queries at a time, at most [`MAX`].
    const WIDTH: usize;

    /// Sums over the lanes of each vector, `[key][query]`, as `[query][key]`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn lane_sums(x: [[Self; QUERIES]; MAX]) -> [[f32; MAX]; QUERIES];
}

/// Keys of a chunk. They, their values and the prefetched ones of the following chunk leave room in the
/// first-level cache.
const CHUNK: usize = 32;
/// Queries that share the reading of keys and values.
const QUERIES: usize = 4;
/// The largest [`StreamVector::KEYS`] and [`StreamVector::WIDTH`].
const MAX: usize = 4;

/// # Safety
/// As [`attention`](super::attention) for fewer than `BLOCKED_QUERIES` queries. The machine has the
/// instructions of `V`; the cache stores `F`, in rows of whole vectors.
#[inline(always)]
pub(super) unsafe fn run<F: FloatFormat, V: StreamVector>(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    let weights = scores_buffer(args, scratch);
    let mut rows = ChunkRows::new();
    for chunk in chunks(args, keys.clone(), CHUNK) {
        rows.advance(args, &chunk, keys.end);
        // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `V`; `ChunkRows` looked the rows up
        // in the cache, one for each position of the chunk.
        unsafe { step::<F, V>(args, chunk, rows.current(), rows.next(), part, weights) };
    }
}

/// Stored key and value of a position.
type KvRow = (*const u8, *const u8);

/// Rows of a chunk, and of the following chunk, which are prefetched meanwhile.
struct ChunkRows {
    rows: [[KvRow; CHUNK]; 2],
    /// Number of rows of each.
    len: [usize; 2],
}

impl ChunkRows {
    fn new() -> ChunkRows {
        let null = (std::ptr::null(), std::ptr::null());
        ChunkRows {
            rows: [[null; CHUNK]; 2],
            len: [0; 2],
        }
    }

    /// Looks up the rows of a chunk, unless they already were as the following chunk, and the rows after it,
    /// up to `end`.
    #[inline(always)]
    fn advance(&mut self, args: &AttentionArgs<'_>, chunk: &Range<usize>, end: usize) {
        self.rows.swap(0, 1);
        if self.len[1] == 0 {
            args.kv.rows(chunk.start, &mut self.rows[0][..chunk.len()]);
        }
        self.len = [chunk.len(), CHUNK.min(end - chunk.end)];
        args.kv.rows(chunk.end, &mut self.rows[1][..self.len[1]]);
    }

    fn current(&self) -> &[KvRow] {
        &self.rows[0][..self.len[0]]
    }

    fn next(&self) -> &[KvRow] {
        &self.rows[1][..self.len[1]]
    }
}

/// [`run`] for a quantized cache, or one of mixed types: each chunk is converted to floats first.
///
/// # Safety
/// As [`run`], for a cache of any types.
#[inline(always)]
pub(super) unsafe fn run_converted<V: StreamVector>(
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
    let mut rows = ChunkRows::new();
    let mut floats = [(std::ptr::null(), std::ptr::null()); CHUNK];
    for chunk in chunks(args, keys.clone(), CHUNK) {
        rows.advance(args, &chunk, keys.end);
        let buffers = k_rows
            .chunks_exact_mut(k_dim)
            .zip(v_rows.chunks_exact_mut(v_dim));
        for (i, (&(k, v), (k_row, v_row))) in rows.current().iter().zip(buffers).enumerate() {
            if let Some(&(k, v)) = rows.next().get(i) {
                prefetch(k, k_bytes);
                prefetch(v, v_bytes);
            }
            // SAFETY: the caller has AVX2 and F16C; the rows are the cache's, of the types and dimensions of
            // the buffers.
            unsafe {
                to_floats(k_ty, k, k_row);
                to_floats(v_ty, v, v_row);
            }
            floats[i] = (k_row.as_ptr().cast(), v_row.as_ptr().cast());
        }
        let floats = &floats[..chunk.len()];
        // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `V`; each row is one of the buffers
        // just filled, with `k_dim` and `v_dim` floats.
        unsafe { step::<F32, V>(args, chunk, floats, &[], part, weights) };
    }
    scratch.scales = converted;
}

/// # Safety
/// Needs AVX2 and F16C; `row` has as many elements of type `ty` as `out`, a multiple of 8, in whole blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn to_floats(ty: KvType, row: *const u8, out: &mut [f32]) {
    let (dim, out) = (out.len(), out.as_mut_ptr());
    // SAFETY: AVX2 and F16C are enabled here and the row is as the caller guarantees; `i` is a multiple of 8
    // below `dim`, so that eight floats are left in `out`.
    unsafe { convert(ty, row, dim, |i, x| _mm256_storeu_ps(out.add(i), x)) }
}

fn scores_buffer<'a>(args: &AttentionArgs<'_>, scratch: &'a mut Scratch) -> &'a mut [[f32; CHUNK]] {
    let floats = scratch.floats(args.tokens() * args.heads * CHUNK);
    floats.as_chunks_mut().0
}

/// One chunk: scores, weights, weighted values. Keys of the `next` chunk are prefetched while scores are
/// computed, and its values while values are.
///
/// # Safety
/// As [`run`]; `rows` has a key and a value of `F` for each position of the chunk, and `part` and `weights` a
/// record and a row for each query.
#[inline(always)]
unsafe fn step<F: FloatFormat, V: StreamVector>(
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
    // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `V`. Queries are numbered up to `queries
    // - 1`, for each of which the arguments have `k_dim` floats and `part` two floats and an accumulator of
    // `v_dim`; each arm takes no more queries than are left.
    unsafe {
        for first in (0..queries).step_by(QUERIES) {
            let q: [*const f32; QUERIES] = std::array::from_fn(|i| {
                let (token, head) = query((first + i).min(queries - 1));
                args.query(token, head).as_ptr()
            });
            let weights = &mut weights[first..];
            let next = if first == 0 { next } else { &[] };
            match queries - first {
                1 => scores::<F, V, 1>(q, args.kv.k_dim, rows, next, weights),
                2 => scores::<F, V, 2>(q, args.kv.k_dim, rows, next, weights),
                3 => scores::<F, V, 3>(q, args.kv.k_dim, rows, next, weights),
                _ => scores::<F, V, 4>(q, args.kv.k_dim, rows, next, weights),
            }
        }
        let mut rescale = [1.0; super::BLOCKED_QUERIES];
        for (i, (weights, record)) in weights
            .iter_mut()
            .zip(part.chunks_exact_mut(record))
            .enumerate()
        {
            let Some((stats, _)) = record.split_first_chunk_mut::<2>() else {
                continue;
            };
            rescale[i] = exp_sum(args, query(i), chunk.clone(), weights, stats);
        }
        for first in (0..queries).step_by(QUERIES) {
            let acc: [*mut f32; QUERIES] = std::array::from_fn(|i| {
                let i = (first + i).min(queries - 1);
                part[i * record + 2..].as_mut_ptr()
            });
            let (weights, rescale) = (&weights[first..], &rescale[first..]);
            let next = if first == 0 { next } else { &[] };
            match queries - first {
                1 => values::<F, V, 1>(acc, v_dim, rows, next, weights, rescale),
                2 => values::<F, V, 2>(acc, v_dim, rows, next, weights, rescale),
                3 => values::<F, V, 3>(acc, v_dim, rows, next, weights, rescale),
                _ => values::<F, V, 4>(acc, v_dim, rows, next, weights, rescale),
            }
        }
    }
}

/// Products of `N` queries with each key.
///
/// # Safety
/// As [`run`]; `N` queries and all keys have `dim` elements, and `out` has a row for each of the queries.
#[inline(always)]
unsafe fn scores<F: FloatFormat, V: StreamVector, const N: usize>(
    q: [*const f32; QUERIES],
    dim: usize,
    rows: &[KvRow],
    next: &[KvRow],
    out: &mut [[f32; CHUNK]],
) {
    // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `V`. Indices of keys are clamped to the
    // last one; `dim` is whole vectors; scores are written from `first` on, a multiple of `KEYS` below
    // `CHUNK`, which `KEYS` divides.
    unsafe {
        for first in (0..rows.len()).step_by(V::KEYS) {
            for &(key, _) in next.iter().skip(first).take(V::KEYS) {
                prefetch(key, dim * F::BYTES);
            }
            // Past the end the last key is repeated, so that a key's sum does not depend on its place.
            let keys: [*const u8; MAX] =
                std::array::from_fn(|i| rows.get_unchecked((first + i).min(rows.len() - 1)).0);
            let mut sums = [[V::zero(); QUERIES]; MAX];
            for d in (0..dim).step_by(V::LANES) {
                let mut k = [V::zero(); MAX];
                for i in 0..V::KEYS {
                    k[i] = F::load::<V>(keys[i].add(d * F::BYTES));
                }
                for n in 0..N {
                    let q = V::load(q[n].add(d));
                    for i in 0..V::KEYS {
                        sums[i][n] = sums[i][n].add_product(k[i], q);
                    }
                }
            }
            let sums = V::lane_sums(sums);
            for n in 0..N {
                let out = out.get_unchecked_mut(n).as_mut_ptr().add(first);
                out.copy_from_nonoverlapping(sums[n].as_ptr(), V::KEYS);
            }
        }
    }
}

const _: () = assert!(CHUNK.is_multiple_of(MAX));

/// Adds the weighted values to `N` accumulators, each multiplied by its `rescale` first.
///
/// # Safety
/// As [`run`]; `N` accumulators and all values have `dim` elements, and `weights` and `rescale` an entry for
/// each accumulator.
#[inline(always)]
unsafe fn values<F: FloatFormat, V: StreamVector, const N: usize>(
    acc: [*mut f32; QUERIES],
    dim: usize,
    rows: &[KvRow],
    next: &[KvRow],
    weights: &[[f32; CHUNK]],
    rescale: &[f32],
) {
    let step = V::WIDTH * V::LANES;
    let whole = dim / step * step;
    // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `V`; `dim` is whole vectors, so that
    // `WIDTH` of them are left in the first loop and one in the second.
    unsafe {
        for d in (0..whole).step_by(step) {
            let acc = acc.map(|acc| acc.add(d));
            columns::<F, V, N>(acc, d, V::WIDTH, rows, next, weights, rescale);
        }
        for d in (whole..dim).step_by(V::LANES) {
            let acc = acc.map(|acc| acc.add(d));
            columns::<F, V, N>(acc, d, 1, rows, next, weights, rescale);
        }
    }
}

/// [`values`] for `width` vectors from element `d` on, to which `acc` points.
///
/// # Safety
/// As [`values`]; accumulators and values have `width` vectors from there on, at most [`MAX`].
#[inline(always)]
unsafe fn columns<F: FloatFormat, V: StreamVector, const N: usize>(
    acc: [*mut f32; QUERIES],
    d: usize,
    width: usize,
    rows: &[KvRow],
    next: &[KvRow],
    weights: &[[f32; CHUNK]],
    rescale: &[f32],
) {
    // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `V`, `width` vectors at each accumulator
    // and in each value from `d` on, and a weight of each of the `N` queries for each row, of which there are
    // at most `CHUNK`.
    unsafe {
        let mut sums = [[V::zero(); MAX]; N];
        for n in 0..N {
            for w in 0..width {
                let old = V::load(acc[n].add(V::LANES * w));
                sums[n][w] = V::zero().add_product(old, V::load_one(&rescale[n]));
            }
        }
        // Each cache line once.
        let next = match d * F::BYTES % 64 {
            0 => next,
            _ => &[],
        };
        for (i, &(_, value)) in rows.iter().enumerate() {
            let value = value.add(d * F::BYTES);
            if let Some(&(_, value)) = next.get(i) {
                prefetch(
                    value.wrapping_add(d * F::BYTES),
                    width * V::LANES * F::BYTES,
                );
            }
            let mut v = [V::zero(); MAX];
            for w in 0..width {
                v[w] = F::load::<V>(value.add(V::LANES * w * F::BYTES));
            }
            for n in 0..N {
                let weight = V::load_one(weights.get_unchecked(n).get_unchecked(i));
                for w in 0..width {
                    sums[n][w] = sums[n][w].add_product(v[w], weight);
                }
            }
        }
        for n in 0..N {
            for w in 0..width {
                sums[n][w].store(acc[n].add(V::LANES * w));
            }
        }
    }
}

// SAFETY: `lane_sums` needs AVX2.
unsafe impl StreamVector for __m256 {
    const KEYS: usize = 2;
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn lane_sums(x: [[Self; QUERIES]; MAX]) -> [[f32; MAX]; QUERIES] {
        let mut out = [[0.0; MAX]; QUERIES];
        for (i, [a, b, c, d]) in x.into_iter().take(Self::KEYS).enumerate() {
            // SAFETY: the caller has AVX2; the array has room for four floats.
            let sums = unsafe {
                let all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
                let all = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
                let mut sums = [0.0; QUERIES];
                _mm_storeu_ps(sums.as_mut_ptr(), all);
                sums
            };
            for (out, sum) in out.iter_mut().zip(sums) {
                out[i] = sum;
            }
        }
        out
    }
}

// SAFETY: `lane_sums` needs AVX-512 F.
unsafe impl StreamVector for __m512 {
    const KEYS: usize = 4;
    const WIDTH: usize = 4;

    #[inline(always)]
    unsafe fn lane_sums(x: [[Self; QUERIES]; MAX]) -> [[f32; MAX]; QUERIES] {
        let [a, b, c, d] = x;
        // SAFETY: the caller has AVX-512 F; the array has room for 16 floats.
        unsafe {
            let all = sum_quarters(quarters(a), quarters(b), quarters(c), quarters(d));
            let mut out = [[0.0; MAX]; QUERIES];
            _mm512_storeu_ps(out.as_mut_ptr().cast(), all);
            out
        }
    }
}

/// Adds the quarters of each of four vectors: a quarter of the result holds the four sums of one vector.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters([a, b, c, d]: [__m512; 4]) -> __m512 {
    let two = |a, b| {
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
    };
    let (ab, cd) = (two(a, b), two(c, d));
    let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
    _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd))
}

/// In each quarter, the sums of that quarter of `a`, `b`, `c` and `d`.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum_quarters(a: __m512, b: __m512, c: __m512, d: __m512) -> __m512 {
    let two = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let (ab, cd) = (two(a, b), two(c, d));
    let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
    _mm512_add_ps(low, _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd))
}
