//! The product of weights of 16-bit floats with many tokens, in integers of 16 bits.
//!
//! `vpmaddwd` multiplies twice as many words as an FMA does floats. 64 weights of a row share a
//! scale, as 64 elements of a token do ([`Precision::Words`](crate::Precision::Words)), and their
//! products add up in 32 bits. A panel is as those of bytes are, with pairs of words for fours of bytes.

use std::arch::x86_64::*;

use super::float::{Bf16, F16, F32, FloatFormat};
use super::format::transpose;
use super::matmul::{TileKernel, multiply_panel};
use super::panel::{Next, ROWS};
use super::products::Products;
use crate::ops::matmul::{
    Epilogue, QuantizedRows, RawRows, Scratch, WORD_GROUP, WORD_MAX, WeightRows, grown,
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
/// Needs AVX2, FMA and F16C, and what the products need; the shapes fit together, and the weight is of the format.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn matmul<F: Rounded, P: Products>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller says.
    unsafe {
        each_panel::<F>(&weight, scratch, |panel, first_row| {
            multiply_panel::<P, _>(panel, &weight, acts, first_row, &epilogue, &mut out);
        });
    }
}

/// Calls `multiply` with each panel of the weight and the panel's first row.
///
/// # Safety
/// As [`matmul`].
#[inline(always)]
pub(crate) unsafe fn each_panel<F: Rounded>(
    weight: &WeightRows<'_>,
    scratch: &mut Scratch,
    mut multiply: impl FnMut(&WordPanel, usize),
) {
    for first_row in (0..weight.rows()).step_by(ROWS) {
        // SAFETY: as the caller says; the weight has the row.
        let panel = unsafe { unpack::<F>(weight, first_row, scratch) };
        multiply(&panel, first_row);
    }
}

/// A format that can be rounded to words.
///
/// # Safety
/// The methods need AVX2 and F16C, and a group of readable elements.
pub(crate) unsafe trait Rounded: FloatFormat {
    /// The bits of the largest magnitudes of a group, in eight lanes. Compared as integers they are in
    /// the order of the magnitudes, and NaN is above all.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn max_bits(group: *const u8) -> __m256i;

    /// Such bits as floats.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn from_bits(bits: __m256i) -> __m256;
}

// SAFETY: reads a group.
unsafe impl Rounded for F32 {
    #[inline(always)]
    unsafe fn max_bits(group: *const u8) -> __m256i {
        // SAFETY: as the caller says.
        unsafe {
            let mut max = _mm256_setzero_si256();
            for i in 0..WORD_GROUP / 8 {
                let bits = _mm256_loadu_si256(group.add(32 * i).cast());
                let bits = _mm256_and_si256(bits, _mm256_set1_epi32(i32::MAX));
                max = _mm256_max_epi32(max, bits);
            }
            max
        }
    }

    #[inline(always)]
    unsafe fn from_bits(bits: __m256i) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { _mm256_castsi256_ps(bits) }
    }
}

// SAFETY: reads a group.
unsafe impl Rounded for F16 {
    #[inline(always)]
    unsafe fn max_bits(group: *const u8) -> __m256i {
        // SAFETY: as the caller says.
        unsafe { max_bits16(group) }
    }

    #[inline(always)]
    unsafe fn from_bits(bits: __m256i) -> __m256 {
        // SAFETY: as the caller says.
        unsafe {
            let halves = _mm256_packus_epi32(bits, bits);
            let halves = _mm256_permute4x64_epi64::<0b00_00_10_00>(halves);
            _mm256_cvtph_ps(_mm256_castsi256_si128(halves))
        }
    }
}

// SAFETY: reads a group.
unsafe impl Rounded for Bf16 {
    #[inline(always)]
    unsafe fn max_bits(group: *const u8) -> __m256i {
        // SAFETY: as the caller says.
        unsafe { max_bits16(group) }
    }

    #[inline(always)]
    unsafe fn from_bits(bits: __m256i) -> __m256 {
        // SAFETY: as the caller says.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)) }
    }
}

/// [`Rounded::max_bits`] of elements of 16 bits.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn max_bits16(group: *const u8) -> __m256i {
    // SAFETY: as the caller says.
    unsafe {
        let mut max = _mm256_setzero_si256();
        for i in 0..WORD_GROUP / 16 {
            let bits = _mm256_loadu_si256(group.add(32 * i).cast());
            max = _mm256_max_epu16(max, _mm256_and_si256(bits, _mm256_set1_epi16(i16::MAX)));
        }
        let low = _mm256_and_si256(max, _mm256_set1_epi32(0xffff));
        _mm256_max_epi32(low, _mm256_srli_epi32::<16>(max))
    }
}

// SAFETY: reads only inside the panel and inside the rows of the tokens.
unsafe impl<P: Products> TileKernel<P> for WordPanel {
    const STEP: usize = WORD_GROUP;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        next: &mut Next,
    ) -> [[__m256; 2]; T] {
        let mut sums = [[_mm256_setzero_ps(); 2]; T];
        // SAFETY: as the caller says.
        unsafe {
            let tokens: [*const i16; T] =
                std::array::from_fn(|t| acts.words.add((first + t) * acts.quant_stride));
            for g in 0..acts.k.div_ceil(WORD_GROUP) {
                next.ask();
                let mut dots = [[_mm256_setzero_si256(); 2]; T];
                for pair in g * WORD_GROUP / 2..(g + 1) * WORD_GROUP / 2 {
                    let weights: [__m256i; 2] = std::array::from_fn(|h| {
                        _mm256_load_si256(self.words.add(2 * ROWS * pair + ROWS * h).cast())
                    });
                    for t in 0..T {
                        let act = tokens[t].add(2 * pair).cast::<i32>().read_unaligned();
                        let act = _mm256_set1_epi32(act);
                        for h in 0..2 {
                            dots[t][h] = P::add_pairs(dots[t][h], weights[h], act);
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
pub(crate) unsafe fn unpack<F: Rounded>(
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
    // SAFETY: rows are inside the weight and groups inside the rows, but for the last, which is
    // copied; there is room for every word and scale that is written.
    unsafe {
        let mut filled = [[0u8; 4 * WORD_GROUP]; 8];
        for g in 0..groups {
            let from = g * WORD_GROUP * F::BYTES;
            for half in 0..2 {
                let rows = std::array::from_fn(|r| {
                    let row = weight.row((first + 8 * half + r).min(last));
                    if k - g * WORD_GROUP >= WORD_GROUP {
                        return row.as_ptr().add(from);
                    }
                    filled[r][..row.len() - from].copy_from_slice(&row[from..]);
                    filled[r].as_ptr()
                });
                let words = words.add(ROWS * (g * WORD_GROUP + half));
                round_rows::<F>(rows, words, scales.add(ROWS * g + 8 * half));
            }
        }
    }
    WordPanel { words, scales }
}

/// Rounds a group of each of eight rows, and writes the words of half a panel and its scales.
///
/// # Safety
/// Needs AVX2 and F16C, a group of readable elements of each row, and room in the panel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round_rows<F: Rounded>(rows: [*const u8; 8], words: *mut i16, scales: *mut f32) {
    // SAFETY: as the caller says.
    unsafe {
        let lanes = transpose(std::array::from_fn(|r| F::max_bits(rows[r])));
        let mut max = lanes[0];
        for lane in lanes {
            max = _mm256_max_epi32(max, lane);
        }
        let (scale, inverse) = word_scales(F::from_bits(max));
        _mm256_store_ps(scales, scale);
        let mut inverses = [0.0f32; 8];
        _mm256_storeu_ps(inverses.as_mut_ptr(), inverse);
        for i in 0..WORD_GROUP / 16 {
            let block: [__m256i; 8] = std::array::from_fn(|r| {
                let at = rows[r].add(16 * i * F::BYTES);
                round16::<F>(at, _mm256_set1_ps(inverses[r]))
            });
            for (step, x) in transpose(block).into_iter().enumerate() {
                // In what order packing leaves the pairs.
                let pair = 8 * i + [0, 1, 4, 5, 2, 3, 6, 7][step];
                _mm256_store_si256(words.add(2 * ROWS * pair).cast(), x);
            }
        }
    }
}

/// Rounds a group to words and returns its scale, which is not finite if some element is not.
///
/// # Safety
/// Needs AVX2 and F16C, and a group of readable elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn round_group<F: Rounded>(group: *const u8, out: &mut [i16; WORD_GROUP]) -> f32 {
    // SAFETY: as the caller says.
    unsafe {
        let max = F::max_bits(group);
        let max = _mm256_max_epi32(max, _mm256_permute2x128_si256::<1>(max, max));
        let max = _mm256_max_epi32(max, _mm256_shuffle_epi32::<0b01_00_11_10>(max));
        let max = _mm256_max_epi32(max, _mm256_shuffle_epi32::<0b10_11_00_01>(max));
        let (scale, inverse) = word_scales(F::from_bits(max));
        for i in 0..WORD_GROUP / 16 {
            let words = round16::<F>(group.add(16 * i * F::BYTES), inverse);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            _mm256_storeu_si256(out.as_mut_ptr().add(16 * i).cast(), words);
        }
        _mm256_cvtss_f32(scale)
    }
}

/// Eight times `WordRow::scale_of`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn word_scales(max: __m256) -> (__m256, __m256) {
    let scale = _mm256_mul_ps(max, _mm256_set1_ps(1.0 / WORD_MAX));
    let inverse = _mm256_div_ps(_mm256_set1_ps(WORD_MAX), max);
    let normal = _mm256_cmp_ps::<_CMP_GT_OQ>(scale, _mm256_set1_ps(f32::MIN_POSITIVE));
    (scale, _mm256_and_ps(inverse, normal))
}

/// Sixteen elements times `inverse`, as words: elements 0 to 3, 8 to 11, 4 to 7, 12 to 15.
///
/// # Safety
/// Needs AVX2 and F16C, and so many readable elements.
#[inline(always)]
unsafe fn round16<F: Rounded>(p: *const u8, inverse: __m256) -> __m256i {
    // SAFETY: as the caller says.
    unsafe {
        let [low, high] = std::array::from_fn(|i| {
            let x: __m256 = F::load(p.add(8 * i * F::BYTES));
            _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse))
        });
        _mm256_packs_epi32(low, high)
    }
}
