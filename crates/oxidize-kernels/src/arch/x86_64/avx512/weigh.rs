//! Weights of logits: the plain code, compiled for AVX-512.

use crate::ops::weigh;

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn weigh(logits: &[f32], max: f32, weights: &mut [f32]) -> f64 {
    weigh::weigh(logits, max, weights)
}
