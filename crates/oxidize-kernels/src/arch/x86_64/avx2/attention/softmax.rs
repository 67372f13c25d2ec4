//! The online softmax: converts scores of a chunk to weights and keeps the running maximum and sum.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::dot::horizontal_sum;
use super::super::math::{exp, tanh};
use super::super::slices::horizontal_max;
use crate::ops::attention::AttentionArgs;

/// Replaces the dot products of a query with `keys` by their weights, and updates the record's maximum and
/// sum. Keys that the query does not see get weight 0, as do elements past the last key.
///
/// Returns the factor by which the record's accumulator must be multiplied.
///
/// # Safety
/// Needs AVX2 and FMA.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn exp_sum<const CHUNK: usize>(
    args: &AttentionArgs<'_>,
    (token, head): (usize, usize),
    keys: Range<usize>,
    scores: &mut [f32; CHUNK],
    stats: &mut [f32; 2],
) -> f32 {
    let Range {
        start: from,
        end: to,
    } = args.visible_in(token, &keys);
    if from >= to {
        scores.fill(0.0);
        return 1.0;
    }
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let scale = _mm256_set1_ps(args.scale);
    let minus_infinity = _mm256_set1_ps(f32::NEG_INFINITY);
    let mut max = minus_infinity;
    let vectors = keys.len().div_ceil(8);
    let (scores, rest) = scores.as_chunks_mut::<8>().0.split_at_mut(vectors);
    rest.as_flattened_mut().fill(0.0);
    for (i, s) in scores.iter_mut().enumerate() {
        // SAFETY: `s` and `bias` are arrays of eight floats; AVX2 and FMA are enabled here.
        unsafe {
            let mut x = _mm256_mul_ps(_mm256_loadu_ps(s.as_ptr()), scale);
            if let Some(cap) = args.softcap {
                let inner = _mm256_div_ps(x, _mm256_set1_ps(cap));
                x = _mm256_mul_ps(_mm256_set1_ps(cap), tanh(inner));
            }
            let lane = _mm256_add_epi32(lanes, _mm256_set1_epi32(8 * i as i32));
            if let Some(alibi) = &args.alibi {
                // Integers, exact in a float up to 2²⁴, beyond any context length.
                let position = alibi.positions[token] as i32 - keys.start as i32;
                let distance =
                    _mm256_abs_epi32(_mm256_sub_epi32(lane, _mm256_set1_epi32(position)));
                let slope = _mm256_set1_ps(alibi.slopes[head]);
                x = _mm256_fnmadd_ps(slope, _mm256_cvtepi32_ps(distance), x);
            }
            if let Some(relative) = &args.relative {
                let bias: [f32; 8] = std::array::from_fn(|lane| {
                    relative.at(args.heads, (token, head), keys.start + 8 * i + lane)
                });
                x = _mm256_add_ps(x, _mm256_loadu_ps(bias.as_ptr()));
            }
            if from > 0 || to < 8 * vectors {
                let after = _mm256_cmpgt_epi32(_mm256_set1_epi32(to as i32), lane);
                let before = _mm256_cmpgt_epi32(_mm256_set1_epi32(from as i32), lane);
                let seen = _mm256_castsi256_ps(_mm256_andnot_si256(before, after));
                x = _mm256_blendv_ps(minus_infinity, x, seen);
            }
            max = _mm256_max_ps(max, x);
            _mm256_storeu_ps(s.as_mut_ptr(), x);
        }
    }
    let largest = stats[0].max(horizontal_max(max));
    if largest == f32::NEG_INFINITY {
        scores.as_flattened_mut().fill(0.0);
        return 1.0;
    }
    let shift = _mm256_set1_ps(largest);
    let mut sum = _mm256_setzero_ps();
    for s in scores {
        // SAFETY: `s` and `bias` are arrays of eight floats; AVX2 and FMA are enabled here.
        unsafe {
            let weight = exp(_mm256_sub_ps(_mm256_loadu_ps(s.as_ptr()), shift));
            sum = _mm256_add_ps(sum, weight);
            _mm256_storeu_ps(s.as_mut_ptr(), weight);
        }
    }
    let rescale = if stats[0] == largest {
        1.0
    } else {
        (stats[0] - largest).exp()
    };
    // SAFETY: AVX2 is enabled here.
    stats[1] = stats[1] * rescale + unsafe { horizontal_sum(sum) };
    stats[0] = largest;
    rescale
}
