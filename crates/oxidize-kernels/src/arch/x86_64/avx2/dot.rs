//! Products of a weight row with a few tokens, straight from the stored blocks: what decoding runs.
//!
//! It reads each weight once, in order, and keeps up with memory. Instruction sets that multiply bytes in
//! other ways share it ([`Products`]).

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use super::format::{Format, Scales, ask_ahead, negate_where, spread_bits};
use super::products::Products;
use crate::ops::matmul::{Epilogue, QuantizedRows, RawRows, WeightRows};
use crate::out::TileMut;

/// Up to so many tokens are multiplied straight from the blocks: beyond, unpacking panels is faster.
pub(crate) const TOKENS: usize = 3;

/// How a row meets a few tokens.
///
/// # Safety
/// `dot` needs the instructions that the implementation says, a row of `acts.k` elements of its format,
/// and `acts` with the tokens.
pub(crate) unsafe trait RowProduct {
    /// The products of one weight row with tokens `first` to `first + M − 1`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn dot<const M: usize>(row: *const u8, acts: &RawRows, first: usize) -> [f32; M];
}

/// Rows that meet all tokens, a few at a time, before the next rows are read.
const ROWS: usize = 16;

/// A few tokens at a time, each as if it were alone.
///
/// # Safety
/// As [`RowProduct`]; the shapes fit together.
#[inline(always)]
pub(crate) unsafe fn direct<P: RowProduct>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
) {
    let (m, acts) = (acts.rows(), acts.raw());
    let at_once = if m > TOKENS { ROWS } else { weight.rows() };
    for first in (0..weight.rows()).step_by(at_once.max(1)) {
        let rows = first..weight.rows().min(first + at_once);
        for token in (0..m).step_by(TOKENS) {
            // SAFETY: the rows are the weight's, of as many elements as `acts` has; so many tokens are left.
            unsafe {
                let (rows, out) = (rows.clone(), &mut out);
                match m - token {
                    1 => each_row::<P, 1>(weight, rows, &acts, token, &epilogue, out),
                    2 => each_row::<P, 2>(weight, rows, &acts, token, &epilogue, out),
                    _ => each_row::<P, TOKENS>(weight, rows, &acts, token, &epilogue, out),
                }
            }
        }
    }
}

/// Some rows with tokens `first` to `first + M − 1`.
///
/// # Safety
/// As [`direct`].
#[inline(always)]
unsafe fn each_row<P: RowProduct, const M: usize>(
    weight: WeightRows<'_>,
    rows: Range<usize>,
    acts: &RawRows,
    first: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    for r in rows {
        let row = weight.row(r).as_ptr();
        // SAFETY: as the caller says.
        let dots = unsafe { P::dot::<M>(row, acts, first) };
        for (t, dot) in dots.into_iter().enumerate() {
            epilogue.write(&mut out.row(first + t)[r], r, dot);
        }
    }
}

/// Products in registers of 256 bits.
pub(crate) struct Narrow<F, P>(PhantomData<(F, P)>);

// SAFETY: needs AVX2, FMA and F16C, and what the products need.
unsafe impl<F: Format, P: Products> RowProduct for Narrow<F, P> {
    #[inline(always)]
    unsafe fn dot<const M: usize>(row: *const u8, acts: &RawRows, first: usize) -> [f32; M] {
        // SAFETY: as the caller says.
        unsafe { dot_groups::<F, P, M>(row, acts, first, 0) }
    }
}

/// The products of a row's groups of 32 from `first_group` on, which begins a chunk, with tokens `first`
/// to `first + M − 1`.
///
/// # Safety
/// As [`Narrow`], with `rest` pointing to the first group.
#[inline(always)]
pub(crate) unsafe fn dot_groups<F: Format, P: Products, const M: usize>(
    rest: *const u8,
    acts: &RawRows,
    first: usize,
    first_group: usize,
) -> [f32; M] {
    // SAFETY: the caller's row has so many groups of 32 in whole blocks, and each token of `acts` as
    // many quants, scales and sums.
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
            ask_ahead(chunk, F::CHUNK_BYTES);
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

/// Independent sums of a token: one alone would wait for each addition to end.
const CHAINS: usize = 2;

struct Sums<const M: usize> {
    products: [[__m256; CHAINS]; M],
    mins: [__m256; M],
}

/// Adds the products of up to eight groups of 32.
///
/// # Safety
/// As [`dot_groups`]. Eight scales and sums of each token are read, whatever `groups` is: they end in
/// zeros.
#[inline(always)]
unsafe fn dot_chunk<F: Format, P: Products, const M: usize>(
    chunk: *const u8,
    groups: usize,
    scales: &Scales,
    acts: &RawRows,
    first: usize,
    first_group: usize,
    sums: &mut Sums<M>,
) {
    // SAFETY: as the caller says.
    unsafe {
        let shifted = P::FOURS && F::SIGNED && !F::SIGNS;
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
                    // The first sixteens of four groups, and then their second ones.
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
        // A chain for even groups and one for odd.
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
/// As [`dot_groups`]; `quants` are the chunk's, of the first token.
#[inline(always)]
unsafe fn dot_group<F: Format, P: Products, const M: usize, const CHAIN: usize>(
    chunk: *const u8,
    g: usize,
    scales: &Scales,
    products: &[[f32; 16]; M],
    quants: *const i8,
    acts: &RawRows,
    sums: &mut Sums<M>,
) {
    // SAFETY: as the caller says.
    unsafe {
        let mut weight = F::quants(chunk, g);
        if P::FOURS && F::SIGNED && !F::SIGNS {
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

/// Eight minima, less 128 scales where the weights are shifted.
///
/// # Safety
/// Needs AVX2 and FMA.
#[inline(always)]
unsafe fn min_of<F: Format>(scales: &Scales, half: usize, shifted: bool) -> __m256 {
    // SAFETY: both arrays have 16 elements and are aligned.
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
/// Needs AVX2, and what the products need.
#[inline(always)]
unsafe fn inner_product<F: Format, P: Products>(weight: __m256i, act: __m256i) -> __m256i {
    // SAFETY: the caller has the instructions.
    unsafe {
        let (weight, act) = match F::SIGNED && !F::SIGNS && !P::FOURS {
            true => (_mm256_abs_epi8(weight), _mm256_sign_epi8(act, weight)),
            false => (weight, act),
        };
        P::add_fours(_mm256_setzero_si256(), weight, act)
    }
}

/// The sum of eight lanes.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(crate) unsafe fn horizontal_sum(x: __m256) -> f32 {
    // SAFETY: the caller has the instructions.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}
