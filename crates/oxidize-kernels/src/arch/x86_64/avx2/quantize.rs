//! Quantization of activations to integers.

use std::arch::x86_64::*;

use super::float::F32;
use super::gemm_i16::quantize_group;
use crate::ops::matmul::{GROUP, I8Row, I16_GROUP, I16Row, QuantizedRow, ZERO_POINT};

/// See [`crate::Kernels::quantize_activations`].
///
/// # Safety
/// Needs AVX2, FMA and F16C; `x` is whole groups, and the slices of `out` have room for as many elements and
/// groups.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn quantize_activation_row(x: &[f32], out: QuantizedRow<'_>) {
    match out {
        // SAFETY: the caller's `x` is whole groups, for which `out` has room.
        QuantizedRow::I8(out) => unsafe { quantize_i8(x, out) },
        QuantizedRow::I16(out) => quantize_i16(x, out),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_i16(x: &[f32], out: I16Row<'_>) {
    let (groups, rest) = x.as_chunks::<I16_GROUP>();
    let (quants, _) = out.quants.as_chunks_mut::<I16_GROUP>();
    let mut last = [0.0; I16_GROUP];
    last[..rest.len()].copy_from_slice(rest);
    let all = groups.iter().chain((!rest.is_empty()).then_some(&last));
    for ((x, quants), scale) in all.zip(quants).zip(out.scales) {
        // SAFETY: AVX2 and F16C are enabled here; both arrays have the 64 elements of a group.
        *scale = unsafe { quantize_group::<F32>(x.as_ptr().cast(), quants) };
    }
}

/// # Safety
/// As [`quantize_activation_row`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize_i8(x: &[f32], mut out: I8Row<'_>) {
    let groups = x.len() / GROUP;
    let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
    // Packing interleaves 128-bit halves; this restores the order of each four bytes.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let mut common = None;
    let mut total = 0;
    for g in 0..groups {
        if let Some(shared) = out.shared_from(g, x) {
            common = Some(largest(shared));
        }
        // SAFETY: AVX2 is enabled here. `g` is below the number of whole groups of `x`; the caller guarantees
        // that `out` has 32 quants, a scale, a sum and two half sums for each.
        unsafe {
            let x: [__m256; 4] =
                std::array::from_fn(|i| _mm256_loadu_ps(x.as_ptr().add(g * GROUP + 8 * i)));
            let max = common.unwrap_or_else(|| {
                let abs = x.map(|x| _mm256_and_ps(x, magnitude));
                let [a, b, c, d] = abs;
                largest_lane(_mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d)))
            });
            let scale = max / 127.0;
            let inverse = if scale > f32::MIN_POSITIVE {
                1.0 / scale
            } else {
                0.0
            };
            let inverse = _mm256_set1_ps(inverse);
            let q = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)));
            let words = [
                _mm256_packs_epi32(q[0], q[1]),
                _mm256_packs_epi32(q[2], q[3]),
            ];
            let bytes = _mm256_packs_epi16(words[0], words[1]);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(out.quants.as_mut_ptr().add(g * GROUP).cast(), bytes);
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
            let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            let quads = _mm256_hadd_epi32(quads, quads);
            let sums = _mm256_hadd_epi32(quads, quads);
            let first = _mm256_extract_epi32::<0>(sums);
            let second = _mm256_extract_epi32::<4>(sums);
            *out.scales.get_unchecked_mut(g) = scale;
            *out.half_sums.get_unchecked_mut(2 * g) = scale * first as f32;
            *out.half_sums.get_unchecked_mut(2 * g + 1) = scale * second as f32;
            *out.zero_point_sums.get_unchecked_mut(2 * g) = ZERO_POINT * first;
            *out.zero_point_sums.get_unchecked_mut(2 * g + 1) = ZERO_POINT * second;
            *out.sums.get_unchecked_mut(g) = scale * (first + second) as f32;
            total += first + second;
        }
    }
    *out.total = total;
    out.clear_padding(groups);
}

/// The largest magnitude of a slice of whole vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest(x: &[f32]) -> f32 {
    let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
    let (vectors, _) = x.as_chunks::<8>();
    let larger = |max: __m256, x: &[f32; 8]| {
        // SAFETY: the array has eight floats; AVX2 is enabled here.
        let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
        _mm256_max_ps(max, _mm256_and_ps(x, magnitude))
    };
    largest_lane(vectors.iter().fold(_mm256_setzero_ps(), larger))
}

/// The largest of eight lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest_lane(x: __m256) -> f32 {
    let max = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let max = _mm_max_ps(max, _mm_movehl_ps(max, max));
    _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)))
}
