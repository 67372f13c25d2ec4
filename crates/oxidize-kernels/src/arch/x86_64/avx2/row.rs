//! Norms, softmax and other operations on one row.

use std::arch::x86_64::*;

use super::dot::horizontal_sum;
use super::math::{exp, tanh};
use super::slices::{fold, horizontal_max, load, map, map2, store};
use crate::ops::exp_sum;
use crate::ops::rope::{self, RopeLayout};

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn rms_norm(x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    scale_by(x, 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt(), weight);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn layer_norm(x: &mut [f32], weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) {
    let zero = _mm256_setzero_ps();
    let add = |a, b| _mm256_add_ps(a, b);
    // SAFETY: AVX2 is enabled here.
    let sum = unsafe { horizontal_sum(fold(x, 0.0, zero, add, add)) };
    let mean = _mm256_set1_ps(sum / x.len() as f32);
    map(x, |x| _mm256_sub_ps(x, mean));
    rms_norm(x, weight, eps);
    if let Some(bias) = bias {
        map2(x, bias, |x, b| _mm256_add_ps(x, b));
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scale_by(x: &mut [f32], factor: f32, weight: Option<&[f32]>) {
    let factor = _mm256_set1_ps(factor);
    match weight {
        Some(weight) => map2(x, weight, |x, w| _mm256_mul_ps(_mm256_mul_ps(x, factor), w)),
        None => map(x, |x| _mm256_mul_ps(x, factor)),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn softmax(x: &mut [f32]) {
    let max = max(x);
    if max == f32::NEG_INFINITY {
        return x.fill(0.0);
    }
    let shift = _mm256_set1_ps(max);
    map(x, |x| exp(_mm256_sub_ps(x, shift)));
    let zero = _mm256_setzero_ps();
    let add = |a, b| _mm256_add_ps(a, b);
    // SAFETY: AVX2 is enabled here.
    let sum = unsafe { horizontal_sum(fold(x, 0.0, zero, add, add)) };
    scale(x, 1.0 / sum);
}

/// The largest number, or −∞ if there is none.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn max(x: &[f32]) -> f32 {
    let least = f32::NEG_INFINITY;
    // With the operands in this order the instruction drops NaN.
    let larger = |a, b| _mm256_max_ps(b, a);
    horizontal_max(fold(x, least, _mm256_set1_ps(least), larger, larger))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn argmax(x: &[f32]) -> usize {
    let max = max(x);
    if max == f32::NEG_INFINITY {
        return 0;
    }
    let wanted = _mm256_set1_ps(max);
    let (vectors, _) = x.as_chunks::<8>();
    for (i, vector) in vectors.iter().enumerate() {
        let equal = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(load(vector), wanted));
        if equal != 0 {
            return 8 * i + equal.trailing_zeros() as usize;
        }
    }
    let start = 8 * vectors.len();
    start + x[start..].iter().position(|&x| x == max).unwrap_or(0)
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn exp_sum(logits: &[f32], max: f32, weights: &mut [f32]) -> f64 {
    exp_sum::exp_sum(logits, max, weights)
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn sum(x: &[f32]) -> f64 {
    exp_sum::sum(x)
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    map2(x, y, |x, y| _mm256_add_ps(x, y));
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn mul(x: &mut [f32], y: &[f32]) {
    map2(x, y, |x, y| _mm256_mul_ps(x, y));
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn scale(x: &mut [f32], factor: f32) {
    let factor = _mm256_set1_ps(factor);
    map(x, |x| _mm256_mul_ps(x, factor));
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) {
    let factor = _mm256_set1_ps(factor);
    map2(x, y, |x, y| _mm256_fmadd_ps(y, factor, x));
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn softcap(x: &mut [f32], cap: f32) {
    let (cap, inverse) = (_mm256_set1_ps(cap), _mm256_set1_ps(1.0 / cap));
    map(x, |x| _mm256_mul_ps(cap, tanh(_mm256_mul_ps(x, inverse))));
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut chains = [_mm256_setzero_ps(); 4];
    let (x_blocks, x_rest) = x.as_chunks::<32>();
    let (y_blocks, y_rest) = y.as_chunks::<32>();
    for (x, y) in x_blocks.iter().zip(y_blocks) {
        let ((x, _), (y, _)) = (x.as_chunks::<8>(), y.as_chunks::<8>());
        for i in 0..4 {
            chains[i] = _mm256_fmadd_ps(load(&x[i]), load(&y[i]), chains[i]);
        }
    }
    let rest: f32 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    let sum = _mm256_add_ps(
        _mm256_add_ps(chains[0], chains[1]),
        _mm256_add_ps(chains[2], chains[3]),
    );
    // SAFETY: AVX2 is enabled here.
    unsafe { horizontal_sum(sum) + rest }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn rope(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32], layout: RopeLayout) {
    let half = cos.len();
    if !half.is_multiple_of(8) {
        return rope::rope(x, head_dim, cos, sin, layout);
    }
    let (cos, _) = cos.as_chunks::<8>();
    let (sin, _) = sin.as_chunks::<8>();
    for head in x.chunks_exact_mut(head_dim) {
        let (vectors, _) = head[..2 * half].as_chunks_mut::<8>();
        match layout {
            RopeLayout::Halves => {
                let (first, second) = vectors.split_at_mut(half / 8);
                for (i, (a, b)) in first.iter_mut().zip(second).enumerate() {
                    let (c, s, x, y) = (load(&cos[i]), load(&sin[i]), load(a), load(b));
                    store(a, _mm256_fmsub_ps(x, c, _mm256_mul_ps(y, s)));
                    store(b, _mm256_fmadd_ps(x, s, _mm256_mul_ps(y, c)));
                }
            }
            RopeLayout::Interleaved => {
                let (pairs, _) = vectors.as_chunks_mut::<2>();
                for (i, pair) in pairs.iter_mut().enumerate() {
                    let (c, s) = (load(&cos[i]), load(&sin[i]));
                    for (h, x) in pair.iter_mut().enumerate() {
                        // Each angle twice: 0 0 1 1 2 2 3 3, or 4 4 5 5 6 6 7 7.
                        let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
                        let twice = _mm256_add_epi32(twice, _mm256_set1_epi32(4 * h as i32));
                        let c = _mm256_permutevar8x32_ps(c, twice);
                        let s = _mm256_permutevar8x32_ps(s, twice);
                        let v = load(x);
                        let swapped = _mm256_permute_ps::<0b10_11_00_01>(v);
                        store(x, _mm256_fmaddsub_ps(v, c, _mm256_mul_ps(swapped, s)));
                    }
                }
            }
        }
    }
}
