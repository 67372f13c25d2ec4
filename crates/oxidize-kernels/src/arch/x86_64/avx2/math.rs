//! Elementary functions of eight floats, each within a few units in the last place.

use std::arch::x86_64::*;

use crate::arch::coefficients::{ERFC, EXP, LN_2_HIGH, LN_2_LOW, TANH};

/// eˣ.
///
/// e^x = 2ⁿ · e^r with n = round(x / ln 2), and e^r by a polynomial for |r| ≤ ln 2 / 2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn exp(x: __m256) -> __m256 {
    // Outside these bounds the result is 0 or infinite; NaN passes both comparisons.
    let x = _mm256_max_ps(_mm256_set1_ps(-104.0), x);
    let x = _mm256_min_ps(_mm256_set1_ps(89.0), x);
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
        x,
        _mm256_set1_ps(std::f32::consts::LOG2_E),
    ));
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2_HIGH), x);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2_LOW), r);
    let p = polynomial(r, EXP);
    let p = _mm256_fmadd_ps(
        _mm256_mul_ps(r, r),
        p,
        _mm256_add_ps(r, _mm256_set1_ps(1.0)),
    );
    // Times 2ⁿ in two steps, since n may lie outside the exponents of a float.
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32::<1>(n);
    let power = |n: __m256i| {
        let exponent = _mm256_add_epi32(n, _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
    };
    _mm256_mul_ps(
        _mm256_mul_ps(p, power(half)),
        power(_mm256_sub_epi32(n, half)),
    )
}

/// Hyperbolic tangent.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn tanh(x: __m256) -> __m256 {
    let sign = _mm256_set1_ps(-0.0);
    let z = _mm256_andnot_ps(sign, x);
    let one = _mm256_set1_ps(1.0);
    // 1 − 2 / (e^2z + 1), which loses digits near 0, where a polynomial takes over.
    let e = exp(_mm256_add_ps(z, z));
    let far = _mm256_sub_ps(
        one,
        _mm256_div_ps(_mm256_set1_ps(2.0), _mm256_add_ps(e, one)),
    );
    let far = _mm256_or_ps(far, _mm256_and_ps(sign, x));
    let z2 = _mm256_mul_ps(z, z);
    let p = polynomial(z2, TANH);
    let near = _mm256_fmadd_ps(_mm256_mul_ps(p, z2), x, x);
    _mm256_blendv_ps(
        far,
        near,
        _mm256_cmp_ps::<_CMP_LT_OQ>(z, _mm256_set1_ps(0.625)),
    )
}

/// 1 / (1 + e⁻ˣ).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn sigmoid(x: __m256) -> __m256 {
    let one = _mm256_set1_ps(1.0);
    let e = exp(_mm256_xor_ps(x, _mm256_set1_ps(-0.0)));
    _mm256_div_ps(one, _mm256_add_ps(one, e))
}

/// The normal distribution function, ½ (1 + erf(x / √2)), by the Chebyshev fit to erfc of Press et al.,
/// Numerical Recipes, section 6.2, with a relative error below 1.2e-7.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn normal_distribution(x: __m256) -> __m256 {
    let one = _mm256_set1_ps(1.0);
    let z = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
    let z = _mm256_mul_ps(z, _mm256_set1_ps(std::f32::consts::FRAC_1_SQRT_2));
    let t = _mm256_div_ps(one, _mm256_fmadd_ps(z, _mm256_set1_ps(0.5), one));
    let p = polynomial(t, ERFC);
    let tail = _mm256_mul_ps(t, exp(_mm256_fnmadd_ps(z, z, p)));
    let tail = _mm256_mul_ps(tail, _mm256_set1_ps(0.5));
    // Below 0 the tail, above 0 its complement: the sign bit of x selects.
    _mm256_blendv_ps(_mm256_sub_ps(one, tail), tail, x)
}

/// Horner's rule, highest power first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn polynomial<const N: usize>(x: __m256, coefficients: [f32; N]) -> __m256 {
    let mut p = _mm256_set1_ps(coefficients[0]);
    for &c in &coefficients[1..] {
        p = _mm256_fmadd_ps(p, x, _mm256_set1_ps(c));
    }
    p
}
