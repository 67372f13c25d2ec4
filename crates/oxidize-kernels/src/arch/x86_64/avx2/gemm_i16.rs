//! GEMM of weights of 16-bit floats with many tokens, in 16-bit integers.
//!
//! `vpmaddwd` multiplies twice as many 16-bit integers as an FMA does floats. 64 weights of a row share a
//! scale, as 64 elements of a token do
//! ([`ActivationFormat::I16Block64`](crate::ActivationFormat::I16Block64)), and their products are added in
//! 32 bits. A panel is laid out like those of bytes, with pairs of 16-bit integers for four bytes.

use std::arch::x86_64::*;

use super::float::{Bf16, F16, F32, FloatFormat};
use super::format::transpose;
use super::gemm::{TileKernel, multiply_panel};
use super::int8_dot::Int8Dot;
use super::panel::{Prefetcher, ROWS};
use crate::ops::matmul::{
    Epilogue, I16_GROUP, I16_LIMIT, QuantizedRows, RawRows, Scratch, WeightRows, grown,
};
use crate::out::TileMut;

/// 16 weight rows quantized to 16 bits, in a thread's scratch memory, both arrays aligned to 64 bytes.
#[derive(Clone, Copy)]
pub(crate) struct I16Panel {
    /// `[k / 2][ROWS][2]` integers; `k` is rounded up to a multiple of [`I16_GROUP`].
    pub(crate) quants: *const i16,
    /// `[k / I16_GROUP][ROWS]` scales.
    pub(crate) scales: *const f32,
}

/// The product with all tokens, panel by panel.
///
/// # Safety
/// Needs AVX2, FMA and F16C and the instructions of `P`. The weight is of format `F`, `acts` has rows of
/// `weight.k()` 16-bit integers, and `out` a row for each of them and a column for each row of the weight.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn matmul<F: QuantizeI16, P: Int8Dot>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: AVX2, FMA and F16C are enabled here and the caller has the instructions of `P`; each panel has
    // rows of `weight.k()` elements, as `acts` has.
    unsafe {
        for_each_panel::<F>(&weight, scratch, |panel, first_row| {
            multiply_panel::<P, _>(panel, &weight, acts, first_row, &epilogue, &mut out);
        });
    }
}

/// Calls `multiply` with each panel of the weight and the panel's first row.
///
/// # Safety
/// Needs AVX2, FMA and F16C; the weight is of format `F`.
#[inline(always)]
pub(crate) unsafe fn for_each_panel<F: QuantizeI16>(
    weight: &WeightRows<'_>,
    scratch: &mut Scratch,
    mut multiply: impl FnMut(&I16Panel, usize),
) {
    for first_row in (0..weight.rows()).step_by(ROWS) {
        // SAFETY: the caller has AVX2, FMA and F16C and a weight of format `F`, which has row `first_row`.
        let panel = unsafe { unpack::<F>(weight, first_row, scratch) };
        multiply(&panel, first_row);
    }
}

/// A float format that can be quantized to 16-bit integers.
///
/// # Safety
/// The methods need AVX2 and F16C; `group` points to [`I16_GROUP`] readable elements.
pub(crate) unsafe trait QuantizeI16: FloatFormat {
    /// The bits of the largest magnitudes of a group, in eight lanes. Compared as integers, bits are in the
    /// order of the magnitudes, and NaN is above all.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn max_bits(group: *const u8) -> __m256i;

    /// Converts such bits to floats.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn from_bits(bits: __m256i) -> __m256;
}

// SAFETY: the methods need AVX2 and F16C, and read one group.
unsafe impl QuantizeI16 for F32 {
    #[inline(always)]
    unsafe fn max_bits(group: *const u8) -> __m256i {
        // SAFETY: the caller has AVX2, and 64 readable floats, of which each of eight loads reads eight.
        unsafe {
            let mut max = _mm256_setzero_si256();
            for i in 0..I16_GROUP / 8 {
                let bits = _mm256_loadu_si256(group.add(32 * i).cast());
                let bits = _mm256_and_si256(bits, _mm256_set1_epi32(i32::MAX));
                max = _mm256_max_epi32(max, bits);
            }
            max
        }
    }

    #[inline(always)]
    unsafe fn from_bits(bits: __m256i) -> __m256 {
        // SAFETY: the caller has AVX2; registers only.
        unsafe { _mm256_castsi256_ps(bits) }
    }
}

// SAFETY: the methods need AVX2 and F16C, and read one group.
unsafe impl QuantizeI16 for F16 {
    #[inline(always)]
    unsafe fn max_bits(group: *const u8) -> __m256i {
        // SAFETY: the caller has AVX2, and a group of elements of 16 bits.
        unsafe { max_bits16(group) }
    }

    #[inline(always)]
    unsafe fn from_bits(bits: __m256i) -> __m256 {
        // SAFETY: the caller has AVX2 and F16C; registers only.
        unsafe {
            let halves = _mm256_packus_epi32(bits, bits);
            let halves = _mm256_permute4x64_epi64::<0b00_00_10_00>(halves);
            _mm256_cvtph_ps(_mm256_castsi256_si128(halves))
        }
    }
}

// SAFETY: the methods need AVX2 and F16C, and read one group.
unsafe impl QuantizeI16 for Bf16 {
    #[inline(always)]
    unsafe fn max_bits(group: *const u8) -> __m256i {
        // SAFETY: the caller has AVX2, and a group of elements of 16 bits.
        unsafe { max_bits16(group) }
    }

    #[inline(always)]
    unsafe fn from_bits(bits: __m256i) -> __m256 {
        // SAFETY: the caller has AVX2; registers only.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)) }
    }
}

/// [`QuantizeI16::max_bits`] of elements of 16 bits.
///
/// # Safety
/// Needs AVX2; `group` points to [`I16_GROUP`] readable elements.
#[inline(always)]
unsafe fn max_bits16(group: *const u8) -> __m256i {
    // SAFETY: the caller has AVX2, and 64 readable elements of two bytes, of which each of four loads reads
    // 16.
    unsafe {
        let mut max = _mm256_setzero_si256();
        for i in 0..I16_GROUP / 16 {
            let bits = _mm256_loadu_si256(group.add(32 * i).cast());
            max = _mm256_max_epu16(max, _mm256_and_si256(bits, _mm256_set1_epi16(i16::MAX)));
        }
        let low = _mm256_and_si256(max, _mm256_set1_epi32(0xffff));
        _mm256_max_epi32(low, _mm256_srli_epi32::<16>(max))
    }
}

// SAFETY: `tile` reads only inside the panel and inside the rows of the tokens.
unsafe impl<P: Int8Dot> TileKernel<P> for I16Panel {
    const STEP: usize = I16_GROUP;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        prefetcher: &mut Prefetcher,
    ) -> [[__m256; 2]; T] {
        let mut sums = [[_mm256_setzero_ps(); 2]; T];
        // SAFETY: AVX2 and FMA are enabled here and the caller has the instructions of `P`. Groups run to
        // `acts.k`, rounded up; the panel and each token's row have as many, padded with zeros, and the panel
        // is aligned.
        unsafe {
            let tokens: [*const i16; T] =
                std::array::from_fn(|t| acts.quants_i16.add((first + t) * acts.quant_stride));
            for g in 0..acts.k.div_ceil(I16_GROUP) {
                prefetcher.prefetch();
                let mut dots = [[_mm256_setzero_si256(); 2]; T];
                for pair in g * I16_GROUP / 2..(g + 1) * I16_GROUP / 2 {
                    let weights: [__m256i; 2] = std::array::from_fn(|h| {
                        _mm256_load_si256(self.quants.add(2 * ROWS * pair + ROWS * h).cast())
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

/// Quantizes rows `first` to `first + 15` to 16 bits, repeating the last row past the end.
///
/// # Safety
/// Needs AVX2 and F16C; the weight is of format `F` and has row `first`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn unpack<F: QuantizeI16>(
    weight: &WeightRows<'_>,
    first: usize,
    scratch: &mut Scratch,
) -> I16Panel {
    let (k, last) = (weight.k(), weight.rows() - 1);
    let groups = k.div_ceil(I16_GROUP);
    // One cache line more of each, for alignment.
    let quants = grown(&mut scratch.bytes, 2 * ROWS * groups * I16_GROUP + 64).as_mut_ptr();
    let quants = quants.wrapping_add(quants.align_offset(64)).cast::<i16>();
    let scales = grown(&mut scratch.scales, ROWS * groups + 16).as_mut_ptr();
    let scales = scales.wrapping_add(scales.align_offset(64));
    // SAFETY: AVX2 and F16C are enabled here. Rows are inside the weight, and groups inside the rows, except
    // a last group that is cut short, which is read from a copy; `quants` and `scales` have room for 16 rows
    // of whole groups.
    unsafe {
        let mut filled = [[0u8; 4 * I16_GROUP]; 8];
        for g in 0..groups {
            let from = g * I16_GROUP * F::BYTES;
            for half in 0..2 {
                let rows = std::array::from_fn(|r| {
                    let row = weight.row((first + 8 * half + r).min(last));
                    if k - g * I16_GROUP >= I16_GROUP {
                        return row.as_ptr().add(from);
                    }
                    filled[r][..row.len() - from].copy_from_slice(&row[from..]);
                    filled[r].as_ptr()
                });
                let quants = quants.add(ROWS * (g * I16_GROUP + half));
                quantize_rows::<F>(rows, quants, scales.add(ROWS * g + 8 * half));
            }
        }
    }
    I16Panel { quants, scales }
}

/// Quantizes a group of each of eight rows, and writes the integers of half a panel and their scales.
///
/// # Safety
/// Needs AVX2 and F16C, and a group of readable elements of each row. `quants` and `scales` point to half a
/// group of a panel, aligned to 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize_rows<F: QuantizeI16>(rows: [*const u8; 8], quants: *mut i16, scales: *mut f32) {
    // SAFETY: AVX2 and F16C are enabled here. Each row has 64 elements, of which block `i` reads 16; pairs
    // run to 31, for each of which a panel has 64 bytes.
    unsafe {
        let lanes = transpose(std::array::from_fn(|r| F::max_bits(rows[r])));
        let mut max = lanes[0];
        for lane in lanes {
            max = _mm256_max_epi32(max, lane);
        }
        let (scale, inverse) = i16_scales(F::from_bits(max));
        _mm256_store_ps(scales, scale);
        let mut inverses = [0.0f32; 8];
        _mm256_storeu_ps(inverses.as_mut_ptr(), inverse);
        for i in 0..I16_GROUP / 16 {
            let block: [__m256i; 8] = std::array::from_fn(|r| {
                let at = rows[r].add(16 * i * F::BYTES);
                quantize16::<F>(at, _mm256_set1_ps(inverses[r]))
            });
            for (step, x) in transpose(block).into_iter().enumerate() {
                // The order in which packing leaves the pairs.
                let pair = 8 * i + [0, 1, 4, 5, 2, 3, 6, 7][step];
                _mm256_store_si256(quants.add(2 * ROWS * pair).cast(), x);
            }
        }
    }
}

/// Quantizes a group and returns its scale, which is not finite if some element is not.
///
/// # Safety
/// Needs AVX2 and F16C; `group` points to [`I16_GROUP`] readable elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn quantize_group<F: QuantizeI16>(
    group: *const u8,
    out: &mut [i16; I16_GROUP],
) -> f32 {
    // SAFETY: AVX2 and F16C are enabled here. The caller has 64 elements, and `out` room for as many
    // integers; each of four steps reads and writes 16.
    unsafe {
        let max = F::max_bits(group);
        let max = _mm256_max_epi32(max, _mm256_permute2x128_si256::<1>(max, max));
        let max = _mm256_max_epi32(max, _mm256_shuffle_epi32::<0b01_00_11_10>(max));
        let max = _mm256_max_epi32(max, _mm256_shuffle_epi32::<0b10_11_00_01>(max));
        let (scale, inverse) = i16_scales(F::from_bits(max));
        for i in 0..I16_GROUP / 16 {
            let quants = quantize16::<F>(group.add(16 * i * F::BYTES), inverse);
            let quants = _mm256_permute4x64_epi64::<0b11_01_10_00>(quants);
            _mm256_storeu_si256(out.as_mut_ptr().add(16 * i).cast(), quants);
        }
        _mm256_cvtss_f32(scale)
    }
}

/// Scales and their inverses for eight groups, as `I16Row::scale_of` computes them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn i16_scales(max: __m256) -> (__m256, __m256) {
    let scale = _mm256_mul_ps(max, _mm256_set1_ps(1.0 / I16_LIMIT));
    let inverse = _mm256_div_ps(_mm256_set1_ps(I16_LIMIT), max);
    let normal = _mm256_cmp_ps::<_CMP_GT_OQ>(scale, _mm256_set1_ps(f32::MIN_POSITIVE));
    (scale, _mm256_and_ps(inverse, normal))
}

/// Sixteen elements times `inverse`, rounded to 16 bits: elements 0 to 3, 8 to 11, 4 to 7, 12 to 15.
///
/// # Safety
/// Needs AVX2 and F16C; `p` points to 16 readable elements.
#[inline(always)]
unsafe fn quantize16<F: QuantizeI16>(p: *const u8, inverse: __m256) -> __m256i {
    // SAFETY: the caller has AVX2 and F16C, and 16 elements at `p`, of which each load reads eight.
    unsafe {
        let [low, high] = std::array::from_fn(|i| {
            let x: __m256 = F::load(p.add(8 * i * F::BYTES));
            _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse))
        });
        _mm256_packs_epi32(low, high)
    }
}
