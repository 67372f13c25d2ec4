//! Activation functions, alone and as the gate of a gated linear unit.

/// An elementwise function of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x), also called swish.
    Silu,
    /// GELU by its tanh approximation, `gelu_pytorch_tanh`.
    GeluTanh,
    /// GELU by the error function, the exact one.
    GeluErf,
    /// x · sigmoid(1.702 x).
    GeluQuick,
    /// max(x, 0).
    Relu,
    /// max(x, 0)².
    ReluSquared,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// ln(1 + eˣ), a smooth max(x, 0).
    Softplus,
    /// eˣ.
    Exp,
    /// 1 / x.
    Reciprocal,
}

impl Activation {
    /// Every function.
    pub const ALL: [Activation; 11] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::GeluQuick,
        Activation::Relu,
        Activation::ReluSquared,
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Softplus,
        Activation::Exp,
        Activation::Reciprocal,
    ];

    /// Applies the function to one number.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = SQRT_2_OVER_PI * x * (1.0 + GELU_CUBIC * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Activation::GeluErf => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
            Activation::GeluQuick => x / (1.0 + (-1.702 * x).exp()),
            Activation::Relu => x.max(0.0),
            Activation::ReluSquared => x.max(0.0) * x.max(0.0),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Activation::Tanh => x.tanh(),
            Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Activation::Exp => x.exp(),
            Activation::Reciprocal => 1.0 / x,
        }
    }
}

/// √(2/π), a constant of the tanh approximation of GELU.
pub(crate) const SQRT_2_OVER_PI: f32 = 0.797_884_6;
/// Coefficient of x³ in the tanh approximation of GELU.
pub(crate) const GELU_CUBIC: f32 = 0.044_715;

/// The error function, to about 1e-7: a Taylor series where it converges fast, and the continued fraction of
/// erfc beyond. Formula 7.1.26 of Abramowitz and Stegun and its relatives are not accurate enough.
pub(crate) fn erf(x: f32) -> f32 {
    let (z, sign) = (f64::from(x.abs()), f64::from(x.signum()));
    let value = if z < 2.5 {
        // erf z = 2/√π · e^(−z²) · Σ 2ⁿ z^(2n+1) / (2n+1)!!, all terms positive.
        let mut term = z;
        let mut sum = z;
        for n in 1..40 {
            term *= 2.0 * z * z / f64::from(2 * n + 1);
            sum += term;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-z * z).exp() * sum
    } else if z < 6.0 {
        // erfc z = e^(−z²)/√π · 1/(z + (1/2)/(z + 1/(z + (3/2)/(z + …)))).
        let mut fraction = z;
        for n in (1..30).rev() {
            fraction = z + f64::from(n) * 0.5 / fraction;
        }
        1.0 - 0.5 * std::f64::consts::FRAC_2_SQRT_PI * (-z * z).exp() / fraction
    } else {
        // Covers NaN too: it is neither below 2.5 nor below 6.
        if z.is_nan() { z } else { 1.0 }
    };
    (sign * value) as f32
}

pub(crate) fn activate(f: Activation, x: &mut [f32]) {
    for x in x {
        *x = f.apply(*x);
    }
}

/// `gate[i] = f(gate[i]) · up[i]`.
pub(crate) fn glu(f: Activation, gate: &mut [f32], up: &[f32]) {
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = f.apply(*gate) * up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_known_values() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_9),
            (1.0, 0.842_700_8),
            (2.0, 0.995_322_3),
        ] {
            assert!((erf(x) - want).abs() < 1e-7, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert!((erf(2.499_999) - erf(2.500_001)).abs() < 1e-6);
        assert_eq!(erf(f32::INFINITY), 1.0);
        assert!(erf(f32::NAN).is_nan());
    }

    #[test]
    fn gelu_tanh_approximates_gelu_erf() {
        for i in -60..60 {
            let x = i as f32 / 10.0;
            let (exact, tanh) = (Activation::GeluErf.apply(x), Activation::GeluTanh.apply(x));
            assert!((exact - tanh).abs() < 1e-3, "{x}: {exact} {tanh}");
        }
    }
}
