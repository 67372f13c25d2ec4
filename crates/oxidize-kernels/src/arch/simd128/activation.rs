//! Activation functions, alone and as the gate of a gated linear unit.

use super::math::{exp, normal_distribution, sigmoid, tanh};
use super::slices::{map, map2};
use super::vector::F32x4;
use crate::ops::activation::{Activation, GELU_CUBIC, SQRT_2_OVER_PI};

pub(crate) fn activate(f: Activation, x: &mut [f32]) {
    match f {
        Activation::Silu => map(x, silu),
        Activation::GeluTanh => map(x, gelu_tanh),
        Activation::GeluErf => map(x, |x| x * normal_distribution(x)),
        Activation::GeluQuick => map(x, |x| x * sigmoid(x * F32x4::splat(1.702))),
        Activation::Relu => map(x, relu),
        Activation::ReluSquared => map(x, |x| relu(x) * relu(x)),
        Activation::Sigmoid => map(x, sigmoid),
        Activation::Tanh => map(x, tanh),
        Activation::Exp => map(x, exp),
        Activation::Reciprocal => map(x, |x| F32x4::splat(1.0) / x),
        // Applied to only a few numbers per token, so not vectorized.
        Activation::Softplus => x.iter_mut().for_each(|x| *x = f.apply(*x)),
    }
}

pub(crate) fn glu(f: Activation, gate: &mut [f32], up: &[f32]) {
    match f {
        Activation::Silu => map2(gate, up, |g, u| silu(g) * u),
        Activation::GeluTanh => map2(gate, up, |g, u| gelu_tanh(g) * u),
        f => {
            activate(f, gate);
            map2(gate, up, |g, u| g * u);
        }
    }
}

#[inline(always)]
fn silu(x: F32x4) -> F32x4 {
    x * sigmoid(x)
}

#[inline(always)]
fn gelu_tanh(x: F32x4) -> F32x4 {
    // ½ (1 + tanh y) is sigmoid(2 y).
    let y = F32x4::splat(2.0 * SQRT_2_OVER_PI) * x;
    let cubic = F32x4::splat(GELU_CUBIC) * (x * x);
    x * sigmoid(y.add_product(y, cubic))
}

#[inline(always)]
fn relu(x: F32x4) -> F32x4 {
    F32x4::splat(0.0).or_larger(x)
}
