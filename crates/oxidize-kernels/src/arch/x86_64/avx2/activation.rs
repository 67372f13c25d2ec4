//! Activation functions, alone and as the gate of a gated linear unit.

use std::arch::x86_64::*;

use super::math::{exp, normal_distribution, sigmoid, tanh};
use super::slices::{map, map2};
use crate::ops::activation::{Activation, GELU_CUBIC, SQRT_2_OVER_PI};

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn activate(f: Activation, x: &mut [f32]) {
    match f {
        Activation::Silu => map(x, |x| silu(x)),
        Activation::GeluTanh => map(x, |x| gelu_tanh(x)),
        Activation::GeluErf => map(x, |x| _mm256_mul_ps(x, normal_distribution(x))),
        Activation::GeluQuick => map(x, |x| gelu_quick(x)),
        Activation::Relu => map(x, |x| relu(x)),
        Activation::ReluSquared => map(x, |x| _mm256_mul_ps(relu(x), relu(x))),
        Activation::Sigmoid => map(x, |x| sigmoid(x)),
        Activation::Tanh => map(x, |x| tanh(x)),
        Activation::Exp => map(x, |x| exp(x)),
        Activation::Reciprocal => map(x, |x| _mm256_div_ps(_mm256_set1_ps(1.0), x)),
        // Applied to only a few numbers per token, so not vectorized.
        Activation::Softplus => x.iter_mut().for_each(|x| *x = f.apply(*x)),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn glu(f: Activation, gate: &mut [f32], up: &[f32]) {
    match f {
        Activation::Silu => map2(gate, up, |g, u| _mm256_mul_ps(silu(g), u)),
        Activation::GeluTanh => map2(gate, up, |g, u| _mm256_mul_ps(gelu_tanh(g), u)),
        f => {
            activate(f, gate);
            map2(gate, up, |g, u| _mm256_mul_ps(g, u));
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn silu(x: __m256) -> __m256 {
    _mm256_mul_ps(x, sigmoid(x))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn gelu_tanh(x: __m256) -> __m256 {
    // ½ (1 + tanh y) is sigmoid(2 y).
    let cubic = _mm256_mul_ps(_mm256_set1_ps(GELU_CUBIC), _mm256_mul_ps(x, x));
    let y = _mm256_mul_ps(_mm256_set1_ps(2.0 * SQRT_2_OVER_PI), x);
    _mm256_mul_ps(x, sigmoid(_mm256_fmadd_ps(y, cubic, y)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn gelu_quick(x: __m256) -> __m256 {
    _mm256_mul_ps(x, sigmoid(_mm256_mul_ps(x, _mm256_set1_ps(1.702))))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn relu(x: __m256) -> __m256 {
    _mm256_max_ps(x, _mm256_setzero_ps())
}
