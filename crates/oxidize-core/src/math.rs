//! Mathematical functions that the standard library lacks.

/// Error function: the Taylor series near zero, a continued fraction elsewhere.
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() > 3.0 {
        let mut fraction = 0.0;
        for k in (1..60).rev() {
            fraction = f64::from(k) / 2.0 / (x.abs() + fraction);
        }
        let tail = (-x * x).exp() / (std::f64::consts::PI.sqrt() * (x.abs() + fraction));
        return x.signum() * (1.0 - tail);
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// Cumulative distribution function of the standard normal distribution.
pub(crate) fn normal_cdf(x: f64) -> f64 {
    0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

/// Quantile function of the standard normal distribution, by bisection.
pub(crate) fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if normal_cdf(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_matches_tables_in_both_branches() {
        // Abramowitz and Stegun, table 7.1.
        for (x, expected) in [
            (0.5, 0.520_499_877_8),
            (2.0, 0.995_322_265_0),
            (3.5, 0.999_999_256_9),
        ] {
            assert!((erf(x) - expected).abs() < 1e-10, "erf({x}) = {}", erf(x));
            assert!((erf(-x) + expected).abs() < 1e-10);
        }
    }

    #[test]
    fn normal_quantile_matches_tables() {
        assert!((normal_quantile(0.95) - 1.644_853_626_951).abs() < 1e-9);
        assert!(normal_quantile(0.5).abs() < 1e-9);
    }
}
