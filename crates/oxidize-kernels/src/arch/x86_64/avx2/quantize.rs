//! Activations to integers.

use std::arch::x86_64::*;

use super::float::F32;
use super::words::round_group;
use crate::ops::matmul::{ByteRow, GROUP, MOVED, QuantizedRow, WORD_GROUP, WordRow};

/// See [`crate::Kernels::quantize_rows`].
///
/// # Safety
/// Needs AVX2; the slices of `out` fit `x`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn quantize_row(x: &[f32], out: QuantizedRow<'_>) {
    match out {
        // SAFETY: as the caller says.
        QuantizedRow::Bytes(out) => unsafe { quantize_bytes(x, out) },
        QuantizedRow::Words(out) => quantize_words(x, out),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_words(x: &[f32], out: WordRow<'_>) {
    let (groups, rest) = x.as_chunks::<WORD_GROUP>();
    let (words, _) = out.words.as_chunks_mut::<WORD_GROUP>();
    let mut last = [0.0; WORD_GROUP];
    last[..rest.len()].copy_from_slice(rest);
    let all = groups.iter().chain((!rest.is_empty()).then_some(&last));
    for ((x, words), scale) in all.zip(words).zip(out.scales) {
        // SAFETY: both hold a group.
        *scale = unsafe { round_group::<F32>(x.as_ptr().cast(), words) };
    }
}

/// # Safety
/// As [`quantize_row`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize_bytes(x: &[f32], mut out: ByteRow<'_>) {
    let groups = x.len() / GROUP;
    let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
    // Packing interleaves 128-bit halves; this puts the words of four back in order.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let mut common = None;
    let mut total = 0;
    for g in 0..groups {
        if let Some(shared) = out.shared_from(g, x) {
            common = Some(largest(shared));
        }
        // SAFETY: the group's 32 elements are in `x`, and its places in `out`.
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
            *out.moved.get_unchecked_mut(2 * g) = MOVED * first;
            *out.moved.get_unchecked_mut(2 * g + 1) = MOVED * second;
            *out.sums.get_unchecked_mut(g) = scale * (first + second) as f32;
            total += first + second;
        }
    }
    *out.total = total;
    out.clear_padding(groups);
}

/// The largest magnitude of whole vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest(x: &[f32]) -> f32 {
    let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX));
    let (vectors, _) = x.as_chunks::<8>();
    let larger = |max: __m256, x: &[f32; 8]| {
        // SAFETY: eight floats.
        let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
        _mm256_max_ps(max, _mm256_and_ps(x, magnitude))
    };
    largest_lane(vectors.iter().fold(_mm256_setzero_ps(), larger))
}

/// The largest of eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest_lane(x: __m256) -> f32 {
    let max = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let max = _mm_max_ps(max, _mm_movehl_ps(max, max));
    _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)))
}
