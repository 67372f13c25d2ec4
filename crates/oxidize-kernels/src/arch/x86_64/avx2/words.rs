//! The product of weights of 16-bit floats with many tokens, in integers of 16 bits.
//!
//! `vpmaddwd` multiplies twice as many words as an FMA does floats. 64 weights of a row share a
//! scale, as 64 elements of a token do ([`Precision::Words`](crate::Precision::Words)), and their
//! products add up in 32 bits. A panel is as those of bytes are, with pairs of words for fours of bytes.

use std::arch::x86_64::*;

use super::float::FloatFormat;
use super::matmul::{TileKernel, multiply_panel};
use super::panel::{ROWS, transpose};
use crate::ops::matmul::{
    Epilogue, QuantizedRows, RawRows, Scratch, WORD_GROUP, WeightRows, grown, word_scale,
};
use crate::out::TileMut;

/// 16 weight rows as words, in a thread's scratch memory.
#[derive(Clone, Copy)]
pub(crate) struct WordPanel {
    /// `[k / 2][ROWS][2]` words.
    pub(crate) words: *const i16,
    /// `[k / WORD_GROUP][ROWS]` scales.
    pub(crate) scales: *const f32,
}

/// The product with all tokens, panel by panel.
///
/// # Safety
/// Needs AVX2, FMA and F16C; the shapes fit together, and the weight is of the format.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn matmul<F: FloatFormat>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    for first_row in (0..weight.rows()).step_by(ROWS) {
        // SAFETY: as the caller says; the weight has the row.
        unsafe {
            let panel = unpack::<F>(&weight, first_row, scratch);
            multiply_panel(&panel, acts, first_row, &epilogue, &mut out);
        }
    }
}

// SAFETY: reads only inside the panel and inside the rows of the tokens.
unsafe impl TileKernel for WordPanel {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(&self, acts: &RawRows, first: usize) -> [[__m256; 2]; T] {
        let mut sums = [[_mm256_setzero_ps(); 2]; T];
        // SAFETY: as the caller says.
        unsafe {
            let tokens: [*const i16; T] =
                std::array::from_fn(|t| acts.words.add((first + t) * acts.quant_stride));
            for g in 0..acts.k.div_ceil(WORD_GROUP) {
                let mut dots = [[_mm256_setzero_si256(); 2]; T];
                for pair in g * WORD_GROUP / 2..(g + 1) * WORD_GROUP / 2 {
                    let weights: [__m256i; 2] = std::array::from_fn(|h| {
                        _mm256_load_si256(self.words.add(2 * ROWS * pair + ROWS * h).cast())
                    });
                    for t in 0..T {
                        let act = tokens[t].add(2 * pair).cast::<i32>().read_unaligned();
                        let act = _mm256_set1_epi32(act);
                        for h in 0..2 {
                            let products = _mm256_madd_epi16(weights[h], act);
                            dots[t][h] = _mm256_add_epi32(dots[t][h], products);
                        }
                    }
                }
                for t in 0..T {
                    let scale = *acts.scales.add((first + t) * acts.group_stride + g);
                    for h in 0..2 {
                        let weight_scale = _mm256_load_ps(self.scales.add(ROWS * g + 8 * h));
                        let scale = _mm256_mul_ps(weight_scale, _mm256_set1_ps(scale));
                        sums[t][h] =
                            _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[t][h]), scale, sums[t][h]);
                    }
                }
            }
        }
        sums
    }
}

/// Rounds rows `first` to `first + 15` to words; past the last row, the last row again.
///
/// # Safety
/// Needs AVX2 and F16C; the weight is of the format, with a row `first`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn unpack<F: FloatFormat>(
    weight: &WeightRows<'_>,
    first: usize,
    scratch: &mut Scratch,
) -> WordPanel {
    let (k, last) = (weight.k(), weight.rows() - 1);
    let groups = k.div_ceil(WORD_GROUP);
    // A cache line more of each, so that they can begin on one.
    let words = grown(&mut scratch.bytes, 2 * ROWS * groups * WORD_GROUP + 64).as_mut_ptr();
    let words = words.wrapping_add(words.align_offset(64)).cast::<i16>();
    let scales = grown(&mut scratch.scales, ROWS * groups + 16).as_mut_ptr();
    let scales = scales.wrapping_add(scales.align_offset(64));
    let mut rounded = [[0i16; WORD_GROUP]; 8];
    // SAFETY: rows are inside the weight and groups inside the rows, but for the last, which is
    // copied; there is room for every word and scale that is written.
    unsafe {
        for g in 0..groups {
            let n = WORD_GROUP.min(k - g * WORD_GROUP);
            for half in 0..2 {
                for (r, rounded) in rounded.iter_mut().enumerate() {
                    let row = weight.row((first + 8 * half + r).min(last));
                    let mut group = row.as_ptr().add(g * WORD_GROUP * F::BYTES);
                    let mut filled = [0u8; 4 * WORD_GROUP];
                    if n < WORD_GROUP {
                        let rest = &row[g * WORD_GROUP * F::BYTES..];
                        filled[..rest.len()].copy_from_slice(rest);
                        group = filled.as_ptr();
                    }
                    *scales.add(ROWS * g + 8 * half + r) = round_group::<F>(group, rounded);
                }
                for i in 0..WORD_GROUP / 16 {
                    let block: [__m256i; 8] = std::array::from_fn(|r| {
                        _mm256_loadu_si256(rounded[r].as_ptr().add(16 * i).cast())
                    });
                    for (step, x) in transpose(block).into_iter().enumerate() {
                        let pair = g * WORD_GROUP / 2 + 8 * i + step;
                        let at = words.add(2 * ROWS * pair + ROWS * half);
                        _mm256_store_si256(at.cast(), x);
                    }
                }
            }
        }
    }
    WordPanel { words, scales }
}

/// Rounds a group to words and returns its scale, which is not finite if some element is not.
///
/// # Safety
/// Needs AVX2 and F16C, and a group of readable elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn round_group<F: FloatFormat>(
    group: *const u8,
    out: &mut [i16; WORD_GROUP],
) -> f32 {
    // SAFETY: as the caller says.
    unsafe {
        let x: [__m256; 8] = std::array::from_fn(|i| F::load(group.add(8 * i * F::BYTES)));
        // Compared as integers, magnitudes are in the same order, and NaN is above all.
        let magnitude = _mm256_set1_epi32(i32::MAX);
        let bits = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), magnitude));
        let max = |a, b| _mm256_max_epi32(a, b);
        let max = max(
            max(max(bits[0], bits[1]), max(bits[2], bits[3])),
            max(max(bits[4], bits[5]), max(bits[6], bits[7])),
        );
        let max = _mm_max_epi32(
            _mm256_castsi256_si128(max),
            _mm256_extracti128_si256::<1>(max),
        );
        let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
        let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
        let (scale, inverse) = word_scale(f32::from_bits(_mm_cvtsi128_si32(max) as u32));
        let inverse = _mm256_set1_ps(inverse);
        let q = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)));
        for i in 0..4 {
            // Packing interleaves 128-bit halves.
            let words = _mm256_packs_epi32(q[2 * i], q[2 * i + 1]);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            _mm256_storeu_si256(out.as_mut_ptr().add(16 * i).cast(), words);
        }
        scale
    }
}
