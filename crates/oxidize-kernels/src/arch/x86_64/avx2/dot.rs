//! GEMV: dot products of a weight row with a few tokens, straight from the stored blocks. Decoding runs this.
//!
//! It reads each weight once, in order, at the speed of memory. Instruction sets with other integer dot
//! products share it ([`Int8Dot`]).

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use super::format::{Format, Scales, negate_where, prefetch_ahead, spread_bits};
use super::int8_dot::Int8Dot;
use crate::ops::matmul::{Epilogue, QuantizedRows, RawRows, WeightRows};
use crate::out::TileMut;

/// Number of tokens up to which rows are multiplied straight from the blocks; for more, unpacking panels is
/// faster.
pub(crate) const GEMV_TOKENS: usize = 3;

/// Dot products of a weight row with a few tokens.
///
/// # Safety
/// `dot` needs the instructions that the implementation names, a row of `acts.k` elements of its format, and
/// tokens `first` to `first + M − 1` in `acts`, which holds 8-bit integers.
pub(crate) unsafe trait RowDot {
    /// True if registers have room for the sums of [`WIDE_TOKENS`] tokens, which then share the unpacking of a row.
    const WIDE: bool;

    /// Dot products of one weight row with tokens `first` to `first + M − 1`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn dot<const M: usize>(row: *const u8, acts: &RawRows, first: usize) -> [f32; M];
}

/// Rows that are multiplied with all tokens, a few at a time, before the following rows are read.
const ROWS: usize = 16;

/// Products with all tokens, a few at a time: batch-invariant.
///
/// # Safety
/// Needs the instructions of `P`; the weight is of its format, `acts` has rows of `weight.k()` elements, and
/// `out` a row for each of them and a column for each row of the weight.
#[inline(always)]
pub(crate) unsafe fn gemv<P: RowDot>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
) {
    let (m, acts) = (acts.rows(), acts.raw());
    let at_once = if m > GEMV_TOKENS { ROWS } else { weight.rows() };
    for first in (0..weight.rows()).step_by(at_once.max(1)) {
        let rows = first..weight.rows().min(first + at_once);
        let mut token = 0;
        while token < m {
            let left = m - token;
            // SAFETY: the rows are the weight's, of as many elements as those of `acts`; each arm takes no
            // more tokens than are left.
            token += unsafe {
                let (rows, out) = (rows.clone(), &mut out);
                match left {
                    WIDE_TOKENS.. if P::WIDE => {
                        for_each_row::<P, WIDE_TOKENS>(weight, rows, &acts, token, &epilogue, out)
                    }
                    1 => for_each_row::<P, 1>(weight, rows, &acts, token, &epilogue, out),
                    2 => for_each_row::<P, 2>(weight, rows, &acts, token, &epilogue, out),
                    _ => for_each_row::<P, GEMV_TOKENS>(weight, rows, &acts, token, &epilogue, out),
                }
            };
        }
    }
}

/// Number of tokens at once if there are 32 registers ([`RowDot::WIDE`]).
const WIDE_TOKENS: usize = 6;

/// Products of some rows with tokens `first` to `first + M − 1`. Returns `M`.
///
/// # Safety
/// As [`gemv`]; the weight has the rows, and `acts` the tokens.
#[inline(always)]
unsafe fn for_each_row<P: RowDot, const M: usize>(
    weight: WeightRows<'_>,
    rows: Range<usize>,
    acts: &RawRows,
    first: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) -> usize {
    for r in rows {
        let row = weight.row(r).as_ptr();
        // SAFETY: the caller has the instructions of `P`; `row` is a whole row of `acts.k` elements in the
        // format of `P`, and `first + M` is at most the number of tokens in `acts`.
        let dots = unsafe { P::dot::<M>(row, acts, first) };
        for (t, dot) in dots.into_iter().enumerate() {
            epilogue.write(&mut out.row(first + t)[r], r, dot);
        }
    }
    M
}

/// Dot products in registers of 256 bits.
pub(crate) struct Dot256<F, P>(PhantomData<(F, P)>);

// SAFETY: `dot` needs AVX2, FMA and F16C, and the instructions of `P`.
unsafe impl<F: Format, P: Int8Dot> RowDot for Dot256<F, P> {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn dot<const M: usize>(row: *const u8, acts: &RawRows, first: usize) -> [f32; M] {
        // SAFETY: the trait's row begins with group 0, and its instructions are those that the function
        // needs.
        unsafe { dot_groups::<F, P, M>(row, acts, first, 0) }
    }
}

/// Dot products of a row's groups of 32 from `first_group` on, which begins a chunk, with tokens `first` to
/// `first + M − 1`.
///
/// # Safety
/// Needs the instructions of [`Dot256`]; `rest` points to group `first_group` of a row of `acts.k` elements
/// of format `F`, and `acts` has the tokens.
#[inline(always)]
pub(crate) unsafe fn dot_groups<F: Format, P: Int8Dot, const M: usize>(
    rest: *const u8,
    acts: &RawRows,
    first: usize,
    first_group: usize,
) -> [f32; M] {
    // SAFETY: the caller's row has `acts.k / 32` groups of 32 in whole blocks, and each token of `acts` as
    // many quants, scales and sums; the last chunk is read only as far as its groups go.
    unsafe {
        let groups = acts.k / 32;
        let mut sums = Sums::<M> {
            products: [[_mm256_setzero_ps(); CHAINS]; M],
            mins: [_mm256_setzero_ps(); M],
        };
        let mut scales = Scales::ZERO;
        let mut chunk = rest;
        let mut group = first_group;
        while group + 8 <= groups {
            prefetch_ahead(chunk, F::CHUNK_BYTES);
            F::scales(chunk, 8, &mut scales);
            dot_chunk::<F, P, M>(chunk, 8, &scales, acts, first, group, &mut sums);
            chunk = chunk.add(F::CHUNK_BYTES);
            group += 8;
        }
        if group < groups {
            let left = groups - group;
            F::scales(chunk, left, &mut scales);
            dot_chunk::<F, P, M>(chunk, left, &scales, acts, first, group, &mut sums);
        }
        let mut dots = [0.0; M];
        for ((dot, [a, b]), mins) in dots.iter_mut().zip(sums.products).zip(sums.mins) {
            *dot = horizontal_sum(_mm256_add_ps(_mm256_add_ps(a, b), mins));
        }
        dots
    }
}

/// Independent sums of a token, which hide the latency of additions.
const CHAINS: usize = 2;

struct Sums<const M: usize> {
    products: [[__m256; CHAINS]; M],
    mins: [__m256; M],
}

/// Adds the products of up to eight groups of 32.
///
/// # Safety
/// As [`dot_groups`]; `chunk` has `groups` groups, and `first_group` is a multiple of 8. Eight scales and
/// sums of each token are read, whatever `groups` is: their rows are padded with zeros to multiples of 8.
#[inline(always)]
unsafe fn dot_chunk<F: Format, P: Int8Dot, const M: usize>(
    chunk: *const u8,
    groups: usize,
    scales: &Scales,
    acts: &RawRows,
    first: usize,
    first_group: usize,
    sums: &mut Sums<M>,
) {
    // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `P`. Each token's scales and sums come
    // in multiples of eight, which cover those of `first_group`; `Scales` has 16 aligned numbers of each
    // kind; quants of group `g` are read only for `g < groups`.
    unsafe {
        let shifted = P::HAS_VNNI && F::SIGNED && !F::SIGNS;
        let mut products = [[0.0f32; 16]; M];
        for t in 0..M {
            let at = (first + t) * acts.group_stride + first_group;
            let products = &mut products[t];
            if F::GROUP == 32 {
                let act_scale = _mm256_loadu_ps(acts.scales.add(at));
                let scale = _mm256_load_ps(scales.scale.as_ptr());
                _mm256_storeu_ps(products.as_mut_ptr(), _mm256_mul_ps(scale, act_scale));
                if F::MIN || shifted {
                    let min = min_of::<F>(scales, 0, shifted);
                    let sum = _mm256_loadu_ps(acts.sums.add(at));
                    sums.mins[t] = _mm256_fmadd_ps(min, sum, sums.mins[t]);
                }
            } else {
                for half in 0..2 {
                    let act_scale = _mm256_broadcast_ps(&*acts.scales.add(at + 4 * half).cast());
                    let scale = _mm256_load_ps(scales.scale.as_ptr().add(8 * half));
                    // The first halves of four groups, then their second halves.
                    let by_side = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
                    let scale = _mm256_permutevar8x32_ps(scale, by_side);
                    let product = _mm256_mul_ps(scale, act_scale);
                    _mm256_storeu_ps(products.as_mut_ptr().add(8 * half), product);
                    if F::MIN || shifted {
                        let min = min_of::<F>(scales, half, shifted);
                        let sum = _mm256_loadu_ps(acts.half_sums.add(2 * at + 8 * half));
                        sums.mins[t] = _mm256_fmadd_ps(min, sum, sums.mins[t]);
                    }
                }
            }
        }
        let quants = acts
            .quants
            .add(first * acts.quant_stride + first_group * 32);
        // One chain for even groups and one for odd.
        for pair in 0..groups / 2 {
            let g = 2 * pair;
            dot_group::<F, P, M, 0>(chunk, g, scales, &products, quants, acts, sums);
            dot_group::<F, P, M, 1>(chunk, g + 1, scales, &products, quants, acts, sums);
        }
        if groups % 2 == 1 {
            let g = groups - 1;
            dot_group::<F, P, M, 0>(chunk, g, scales, &products, quants, acts, sums);
        }
    }
}

/// Adds the products of a group of 32 to one of the chains.
///
/// # Safety
/// As [`dot_groups`]; `chunk` has group `g`, and `quants` points to the chunk's elements of the first token.
#[inline(always)]
unsafe fn dot_group<F: Format, P: Int8Dot, const M: usize, const CHAIN: usize>(
    chunk: *const u8,
    g: usize,
    scales: &Scales,
    products: &[[f32; 16]; M],
    quants: *const i8,
    acts: &RawRows,
    sums: &mut Sums<M>,
) {
    // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `P`. Each token has 32 quants of group
    // `g`, `quant_stride` apart, and `g / 4 * 8` is at most 8, so that four products are left from there on.
    unsafe {
        let mut weight = F::quants(chunk, g);
        if P::HAS_VNNI && F::SIGNED && !F::SIGNS {
            weight = _mm256_xor_si256(weight, _mm256_set1_epi8(-128));
        }
        for t in 0..M {
            let mut act = _mm256_loadu_si256(quants.add(t * acts.quant_stride + 32 * g).cast());
            if F::SIGNS {
                act = negate_where(act, spread_bits(scales.signs[g]));
            }
            let product = inner_product::<F, P>(weight, act);
            let scale = if F::GROUP == 32 {
                _mm256_set1_ps(products[t][g])
            } else {
                let four = _mm256_loadu_ps(products[t].as_ptr().add(g / 4 * 8));
                match g % 4 {
                    0 => _mm256_permute_ps::<0x00>(four),
                    1 => _mm256_permute_ps::<0x55>(four),
                    2 => _mm256_permute_ps::<0xaa>(four),
                    _ => _mm256_permute_ps::<0xff>(four),
                }
            };
            let sum = &mut sums.products[t][CHAIN];
            *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(product), scale, *sum);
        }
    }
}

/// Eight minima, less 128 times the scales if the weights are offset by 128.
///
/// # Safety
/// Needs AVX2 and FMA.
#[inline(always)]
unsafe fn min_of<F: Format>(scales: &Scales, half: usize, shifted: bool) -> __m256 {
    // SAFETY: the caller has AVX2 and FMA; `half` is 0 or 1, and both arrays have 16 numbers at multiples of
    // 64 bytes.
    unsafe {
        let min = _mm256_load_ps(scales.min.as_ptr().add(8 * half));
        if !shifted {
            return min;
        }
        let scale = _mm256_load_ps(scales.scale.as_ptr().add(8 * half));
        _mm256_fnmadd_ps(scale, _mm256_set1_ps(128.0), min)
    }
}

/// Eight sums of four products each.
///
/// # Safety
/// Needs AVX2 and the instructions of `P`.
#[inline(always)]
unsafe fn inner_product<F: Format, P: Int8Dot>(weight: __m256i, act: __m256i) -> __m256i {
    // SAFETY: the caller has AVX2 and the instructions of `P`; all of them work on registers only.
    unsafe {
        let (weight, act) = match F::SIGNED && !F::SIGNS && !P::HAS_VNNI {
            true => (_mm256_abs_epi8(weight), _mm256_sign_epi8(act, weight)),
            false => (weight, act),
        };
        P::dot4(_mm256_setzero_si256(), weight, act)
    }
}

/// The sum of eight lanes.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(crate) unsafe fn horizontal_sum(x: __m256) -> f32 {
    // SAFETY: the caller has AVX2; the instructions work on registers only.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}
