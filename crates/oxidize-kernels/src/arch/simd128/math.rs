//! Elementary functions of four floats, each within a few units in the last place.

use super::vector::{F32x4, I32x4};
use crate::arch::coefficients::{ERFC, EXP, LN_2_HIGH, LN_2_LOW, TANH};

/// eˣ.
///
/// e^x = 2ⁿ · e^r with n = round(x / ln 2), and e^r by a polynomial for |r| ≤ ln 2 / 2.
#[inline(always)]
pub(crate) fn exp(x: F32x4) -> F32x4 {
    // Outside these bounds the result is 0 or infinite; NaN stays.
    let x = x
        .or_larger(F32x4::splat(-104.0))
        .or_smaller(F32x4::splat(89.0));
    let n = (x * F32x4::splat(std::f32::consts::LOG2_E)).rounded();
    let r = x
        .add_product(n.to_floats(), F32x4::splat(-LN_2_HIGH))
        .add_product(n.to_floats(), F32x4::splat(-LN_2_LOW));
    let p = polynomial(r, EXP);
    let p = (r + F32x4::splat(1.0)).add_product(r * r, p);
    // Times 2ⁿ in two steps, since n may lie outside the exponents of a float.
    let half = n.shift_right_signed::<1>();
    let power = |n: I32x4| (n + I32x4::splat(127)).shift_left::<23>().as_floats();
    p * power(half) * power(n - half)
}

/// Hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: F32x4) -> F32x4 {
    let (z, one) = (x.abs(), F32x4::splat(1.0));
    // 1 − 2 / (e^2z + 1), which loses digits near 0, where a polynomial takes over.
    let far = one - F32x4::splat(2.0) / (exp(z + z) + one);
    let far = (far.bits() | sign(x)).as_floats();
    let z2 = z * z;
    let p = polynomial(z2, TANH);
    let near = x.add_product(p * z2, x);
    F32x4::splat(0.625).greater(z).select(near, far)
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn sigmoid(x: F32x4) -> F32x4 {
    let one = F32x4::splat(1.0);
    one / (one + exp(F32x4::splat(0.0) - x))
}

/// The normal distribution function, ½ (1 + erf(x / √2)), by the Chebyshev fit to erfc of Press et al.,
/// Numerical Recipes, section 6.2, with a relative error below 1.2e-7.
#[inline(always)]
pub(crate) fn normal_distribution(x: F32x4) -> F32x4 {
    let one = F32x4::splat(1.0);
    let z = x.abs() * F32x4::splat(std::f32::consts::FRAC_1_SQRT_2);
    let t = one / one.add_product(z, F32x4::splat(0.5));
    let p = polynomial(t, ERFC);
    let tail = F32x4::splat(0.5) * t * exp(p - z * z);
    // Below 0 the tail, above 0 its complement.
    F32x4::splat(0.0).greater(x).select(tail, one - tail)
}

/// The sign bits.
#[inline(always)]
fn sign(x: F32x4) -> I32x4 {
    x.bits() & I32x4::splat(i32::MIN)
}

/// Horner's rule, highest power first.
#[inline(always)]
fn polynomial<const N: usize>(x: F32x4, coefficients: [f32; N]) -> F32x4 {
    let start = F32x4::splat(coefficients[0]);
    let rest = coefficients[1..].iter();
    rest.fold(start, |p, &c| F32x4::splat(c).add_product(p, x))
}
