//! Softmax weights of logits: the reference code, compiled for AVX-512.

use crate::ops::exp_sum;

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn exp_sum(logits: &[f32], max: f32, weights: &mut [f32]) -> f64 {
    exp_sum::exp_sum(logits, max, weights)
}
