//! A few queries: keys and values are multiplied as they are read.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::float::{F32, FloatFormat};
use super::super::format::ask;
use super::super::vector::Vector;
use super::chunks;
use super::rows::convert;
use super::softmax::weigh;
use crate::ops::attention::{AttentionArgs, KvType, row_bytes};
use crate::ops::matmul::{Scratch, grown};

/// A register that few queries are multiplied in.
///
/// # Safety
/// As for [`Vector`].
pub(crate) unsafe trait StreamVector: Vector {
    /// Keys that are multiplied with four queries at once: their sums must fit into registers.
    const KEYS: usize;
    /// Registers of a value that are weighted for four queries at once.
    const WIDTH: usize;

    /// The sums over the lanes of each vector, `[key][query]`, as `[query][key]`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn lane_sums(x: [[Self; QUERIES]; MOST]) -> [[f32; MOST]; QUERIES];
}

/// Keys of a chunk: these, their values, and the next ones that were asked for meanwhile leave room in the first cache.
const CHUNK: usize = 32;
/// Queries that share the reading of keys and values.
const QUERIES: usize = 4;
/// No vector has more [`StreamVector::KEYS`] or more [`StreamVector::WIDTH`].
const MOST: usize = 4;

/// # Safety
/// Needs the instructions of the vector, AVX2, FMA and F16C; the arguments have been checked, the cache stores `F`,
/// and its rows are whole vectors.
#[inline(always)]
pub(super) unsafe fn run<F: FloatFormat, V: StreamVector>(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    let weights = scores_buffer(args, scratch);
    let mut rows = Rows::new();
    for chunk in chunks(args, keys.clone(), CHUNK) {
        rows.go_to(args, &chunk, keys.end);
        // SAFETY: the rows are the cache's, of the dimensions it has.
        unsafe { step::<F, V>(args, chunk, rows.here(), rows.next(), part, weights) };
    }
}

/// The stored key and value of a position.
type KvRow = (*const u8, *const u8);

/// The rows of a chunk, and of the chunk after that, to be asked for from memory meanwhile.
struct Rows {
    rows: [[KvRow; CHUNK]; 2],
    /// How many of each there are.
    len: [usize; 2],
}

impl Rows {
    fn new() -> Rows {
        let nowhere = (std::ptr::null(), std::ptr::null());
        Rows {
            rows: [[nowhere; CHUNK]; 2],
            len: [0; 2],
        }
    }

    /// Looks up the rows of a chunk, unless they were next before, and those after it, up to `end`.
    #[inline(always)]
    fn go_to(&mut self, args: &AttentionArgs<'_>, chunk: &Range<usize>, end: usize) {
        self.rows.swap(0, 1);
        if self.len[1] == 0 {
            args.kv.rows(chunk.start, &mut self.rows[0][..chunk.len()]);
        }
        self.len = [chunk.len(), CHUNK.min(end - chunk.end)];
        args.kv.rows(chunk.end, &mut self.rows[1][..self.len[1]]);
    }

    fn here(&self) -> &[KvRow] {
        &self.rows[0][..self.len[0]]
    }

    fn next(&self) -> &[KvRow] {
        &self.rows[1][..self.len[1]]
    }
}

/// The same for a quantised cache, or one of mixed types: each chunk becomes floats first.
///
/// # Safety
/// Needs the instructions of the vector, AVX2, FMA and F16C; the arguments have been checked, and the rows are
/// whole vectors.
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
    let mut rows = Rows::new();
    let mut floats = [(std::ptr::null(), std::ptr::null()); CHUNK];
    for chunk in chunks(args, keys.clone(), CHUNK) {
        rows.go_to(args, &chunk, keys.end);
        let buffers = k_rows
            .chunks_exact_mut(k_dim)
            .zip(v_rows.chunks_exact_mut(v_dim));
        for (i, (&(k, v), (k_row, v_row))) in rows.here().iter().zip(buffers).enumerate() {
            if let Some(&(k, v)) = rows.next().get(i) {
                ask(k, k_bytes);
                ask(v, v_bytes);
            }
            // SAFETY: the rows are the cache's, and have as many elements as the buffers.
            unsafe {
                to_floats(k_ty, k, k_row);
                to_floats(v_ty, v, v_row);
            }
            floats[i] = (k_row.as_ptr().cast(), v_row.as_ptr().cast());
        }
        let floats = &floats[..chunk.len()];
        // SAFETY: the rows are those just converted.
        unsafe { step::<F32, V>(args, chunk, floats, &[], part, weights) };
    }
    scratch.scales = converted;
}

/// # Safety
/// Needs AVX2 and F16C; `row` has as many elements as `out`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn to_floats(ty: KvType, row: *const u8, out: &mut [f32]) {
    let (dim, out) = (out.len(), out.as_mut_ptr());
    // SAFETY: as the caller says; `put` stays inside `out`.
    unsafe { convert(ty, row, dim, |i, x| _mm256_storeu_ps(out.add(i), x)) }
}

fn scores_buffer<'a>(args: &AttentionArgs<'_>, scratch: &'a mut Scratch) -> &'a mut [[f32; CHUNK]] {
    let floats = scratch.floats(args.tokens() * args.heads * CHUNK);
    floats.as_chunks_mut().0
}

/// One chunk: scores, weights, weighted values. Of the `next` chunk keys are asked for while scores are
/// computed, and values while values are.
///
/// # Safety
/// As [`run`]; `rows` has a key and a value of `F` for each position of the chunk.
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
    // SAFETY: the queries are those of the arguments, the records theirs in `part`.
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
        for first in (0..queries).step_by(QUERIES) {
            let acc: [*mut f32; QUERIES] = std::array::from_fn(|i| {
                let i = (first + i).min(queries - 1);
                part[i * record + 2..].as_mut_ptr()
            });
            let (weights, shrink) = (&weights[first..], &shrink[first..]);
            let next = if first == 0 { next } else { &[] };
            match queries - first {
                1 => values::<F, V, 1>(acc, v_dim, rows, next, weights, shrink),
                2 => values::<F, V, 2>(acc, v_dim, rows, next, weights, shrink),
                3 => values::<F, V, 3>(acc, v_dim, rows, next, weights, shrink),
                _ => values::<F, V, 4>(acc, v_dim, rows, next, weights, shrink),
            }
        }
    }
}

/// Products of `N` queries with each key.
///
/// # Safety
/// As [`run`]; queries and keys have `dim` elements.
#[inline(always)]
unsafe fn scores<F: FloatFormat, V: StreamVector, const N: usize>(
    q: [*const f32; QUERIES],
    dim: usize,
    rows: &[KvRow],
    next: &[KvRow],
    out: &mut [[f32; CHUNK]],
) {
    // SAFETY: as the caller says; chunks have whole runs of keys, past the last of which is nothing that counts.
    unsafe {
        for first in (0..rows.len()).step_by(V::KEYS) {
            for &(key, _) in next.iter().skip(first).take(V::KEYS) {
                ask(key, dim * F::BYTES);
            }
            // Past the end the last key again, so that a key's sum is the same wherever it stands.
            let keys: [*const u8; MOST] =
                std::array::from_fn(|i| rows.get_unchecked((first + i).min(rows.len() - 1)).0);
            let mut sums = [[V::zero(); QUERIES]; MOST];
            for d in (0..dim).step_by(V::LANES) {
                let mut k = [V::zero(); MOST];
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

const _: () = assert!(CHUNK.is_multiple_of(MOST));

/// Adds the weighted values to `N` accumulators, each multiplied by its `shrink` first.
///
/// # Safety
/// As [`run`]; accumulators and values have `dim` elements.
#[inline(always)]
unsafe fn values<F: FloatFormat, V: StreamVector, const N: usize>(
    acc: [*mut f32; QUERIES],
    dim: usize,
    rows: &[KvRow],
    next: &[KvRow],
    weights: &[[f32; CHUNK]],
    shrink: &[f32],
) {
    let step = V::WIDTH * V::LANES;
    let whole = dim / step * step;
    // SAFETY: as the caller says.
    unsafe {
        for d in (0..whole).step_by(step) {
            let acc = acc.map(|acc| acc.add(d));
            columns::<F, V, N>(acc, d, V::WIDTH, rows, next, weights, shrink);
        }
        for d in (whole..dim).step_by(V::LANES) {
            let acc = acc.map(|acc| acc.add(d));
            columns::<F, V, N>(acc, d, 1, rows, next, weights, shrink);
        }
    }
}

/// [`values`] for `width` vectors, from element `d` on.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn columns<F: FloatFormat, V: StreamVector, const N: usize>(
    acc: [*mut f32; QUERIES],
    d: usize,
    width: usize,
    rows: &[KvRow],
    next: &[KvRow],
    weights: &[[f32; CHUNK]],
    shrink: &[f32],
) {
    // SAFETY: as the caller says.
    unsafe {
        let mut sums = [[V::zero(); MOST]; N];
        for n in 0..N {
            for w in 0..width {
                let old = V::load(acc[n].add(V::LANES * w));
                sums[n][w] = V::zero().add_product(old, V::load_one(&shrink[n]));
            }
        }
        // Each line once.
        let next = match d * F::BYTES % 64 {
            0 => next,
            _ => &[],
        };
        for (i, &(_, value)) in rows.iter().enumerate() {
            let value = value.add(d * F::BYTES);
            if let Some(&(_, value)) = next.get(i) {
                ask(
                    value.wrapping_add(d * F::BYTES),
                    width * V::LANES * F::BYTES,
                );
            }
            let mut v = [V::zero(); MOST];
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

// SAFETY: needs AVX2.
unsafe impl StreamVector for __m256 {
    const KEYS: usize = 2;
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn lane_sums(x: [[Self; QUERIES]; MOST]) -> [[f32; MOST]; QUERIES] {
        let mut out = [[0.0; MOST]; QUERIES];
        for (i, [a, b, c, d]) in x.into_iter().take(Self::KEYS).enumerate() {
            // SAFETY: the caller has the instructions; the array has four elements.
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

// SAFETY: needs AVX-512 F.
unsafe impl StreamVector for __m512 {
    const KEYS: usize = 4;
    const WIDTH: usize = 4;

    #[inline(always)]
    unsafe fn lane_sums(x: [[Self; QUERIES]; MOST]) -> [[f32; MOST]; QUERIES] {
        let [a, b, c, d] = x;
        // SAFETY: the caller has the instructions; the array has 16 elements.
        unsafe {
            let all = add_fours(quarters(a), quarters(b), quarters(c), quarters(d));
            let mut out = [[0.0; MOST]; QUERIES];
            _mm512_storeu_ps(out.as_mut_ptr().cast(), all);
            out
        }
    }
}

/// Four sums of each of four vectors, a quarter of the result for each.
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

/// In each quarter the sum of that quarter of `a`, of `b`, of `c` and of `d`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_fours(a: __m512, b: __m512, c: __m512, d: __m512) -> __m512 {
    let two = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let (ab, cd) = (two(a, b), two(c, d));
    let low = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
    _mm512_add_ps(low, _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd))
}
