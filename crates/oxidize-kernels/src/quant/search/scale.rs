//! Search for the scale of one block.
//!
//! It tries several scales, keeps the one with the least weighted square error, and refits it to the
//! resulting levels. [`super::block`] does the same for all groups of a super-block at once.
//!
//! Sums run over sixteen lanes in a fixed order. The compiler vectorizes them for the instruction set that it
//! inlines them into, and the result is bit-identical for each.

/// Elements per vector; the lengths of blocks are multiples of it.
pub(crate) const LANES: usize = 16;

/// Scales tried on either side of the one that maps the extreme element to a level exactly.
pub(super) const STEPS: i32 = 9;

/// Weighted sums Σwxq and Σwq² for one choice of levels `q`. At scale `s` the error is
/// Σwx² − s (2 Σwxq − s Σwq²).
#[derive(Clone, Copy, Default)]
pub(crate) struct Moments {
    pub(crate) xq: f32,
    pub(crate) qq: f32,
}

impl Moments {
    /// Returns the scale with the least error.
    #[inline(always)]
    fn scale(self) -> f32 {
        self.xq / self.qq
    }
}

/// Returns the moments of `x` with weights `w` at the levels nearest to `x · inverse`.
#[inline(always)]
fn moments(x: &[f32], w: &[f32], inverse: f32, nearest: impl Fn(f32) -> f32) -> Moments {
    let (mut xq, mut qq) = ([0.0; LANES], [0.0; LANES]);
    for (x, w) in x
        .as_chunks::<LANES>()
        .0
        .iter()
        .zip(w.as_chunks::<LANES>().0)
    {
        for i in 0..LANES {
            let q = nearest(x[i] * inverse);
            let wq = w[i] * q;
            xq[i] += wq * x[i];
            qq[i] += wq * q;
        }
    }
    Moments {
        xq: horizontal_sum(xq),
        qq: horizontal_sum(qq),
    }
}

/// Returns the scale `d` for which `d · nearest(x / d)` is closest to `x`, and its moments.
///
/// `nearest` rounds to a level of the format; `ends` are the levels that the extreme element may get. The
/// levels may be asymmetric (−8 to 7), so the sign of `d` matters: with both ends, both signs are tried.
#[inline(always)]
pub(super) fn best_scale(
    x: &[f32],
    w: &[f32],
    ends: &[f32],
    nearest: impl Fn(f32) -> f32 + Copy,
) -> (f32, Moments) {
    let extreme = max_abs_signed(x);
    if extreme == 0.0 {
        return (0.0, Moments::default());
    }
    let (mut best, mut best_gain) = (Moments::default(), 0.0);
    // Clipping the extreme element a little often reduces the error; so does leaving the last level unused.
    // The first pass tries every third scale, the second those around the best.
    let (mut best_end, mut best_k) = (0.0, 0);
    let coarse = ends
        .iter()
        .flat_map(|&end| (-STEPS..=STEPS).step_by(3).map(move |k| (end, k)));
    for (end, k) in coarse {
        let m = moments(x, w, (end + step(end) * k as f32) / extreme, nearest);
        // Error reduction at the best scale for these levels.
        let gain = m.xq * m.xq / m.qq;
        if gain > best_gain {
            (best, best_gain) = (m, gain);
            (best_end, best_k) = (end, k);
        }
    }
    for k in [best_k - 2, best_k - 1, best_k + 1, best_k + 2] {
        let inverse = (best_end + step(best_end) * k as f32) / extreme;
        let m = moments(x, w, inverse, nearest);
        let gain = m.xq * m.xq / m.qq;
        if gain > best_gain {
            (best, best_gain) = (m, gain);
        }
    }
    if best_gain == 0.0 {
        let plain = ends.first().map_or(0.0, |end| extreme / end);
        return (plain, Moments::default());
    }
    for _ in 0..2 {
        let m = moments(x, w, best.qq / best.xq, nearest);
        let gain = m.xq * m.xq / m.qq;
        if gain <= best_gain || gain.is_nan() {
            break;
        }
        (best, best_gain) = (m, gain);
    }
    (best.scale(), best)
}

/// Returns the step between tried scales, in levels: 1/100 of `end`, at least 0.1.
#[inline(always)]
pub(super) fn step(end: f32) -> f32 {
    (end.abs() / 100.0).max(0.1)
}

/// Returns `1 / x`, or 0 if `x` is 0.
#[inline(always)]
pub(crate) fn inverse_or_zero(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// Rounds `x` to the nearest integer, ties to even, and clamps it to `low..=high`.
#[inline(always)]
pub(crate) fn round_clamp(x: f32, low: f32, high: f32) -> f32 {
    clamp(x.round_ties_even(), low, high)
}

/// Clamps `x` to `low..=high`; NaN becomes `low`.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    // Not `f32::clamp`, which keeps NaN at the cost of another comparison.
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// Converts an integral float to an integer clamped to `low..=high`, which must fit 23 signed bits; NaN
/// becomes 0.
///
/// The result is that of a cast, which LLVM does not vectorize.
#[inline(always)]
pub(crate) fn clamp_to_i32(x: f32, low: i32, high: i32) -> i32 {
    /// 1.5 · 2²³: the low bits of its sum with a small integer are that integer.
    const MAGIC: f32 = 12_582_912.0;
    let x = if x.is_nan() { 0.0 } else { x };
    let x = clamp(x, low as f32, high as f32);
    (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

/// Rounds `x · inverse_scale` to an integer clamped to `low..=high`.
#[inline(always)]
pub(crate) fn level(x: f32, inverse_scale: f32, low: i32, high: i32) -> i32 {
    clamp_to_i32((x * inverse_scale).round_ties_even(), low, high)
}

/// Rounds `x / scale` to an integer clamped to `low..=high`; `low` if `scale` is 0, where any level is as
/// good. The division is more exact than [`level`].
#[inline(always)]
pub(crate) fn level_div(x: f32, scale: f32, low: i32, high: i32) -> i32 {
    let level = clamp_to_i32((x / scale).round_ties_even(), low, high);
    if scale == 0.0 { low } else { level }
}

/// Returns the largest magnitude, ignoring NaN.
#[inline(always)]
pub(crate) fn max_abs(x: &[f32]) -> f32 {
    // The order of the bit patterns as integers is that of the floats, and integer maximums vectorize.
    let mut most = 0;
    for x in x {
        let bits = x.abs().to_bits();
        let bits = if x.is_nan() { 0 } else { bits };
        most = if bits > most { bits } else { most };
    }
    f32::from_bits(most)
}

/// Returns the first element of largest magnitude, with its sign.
#[inline(always)]
pub(crate) fn max_abs_signed(x: &[f32]) -> f32 {
    let most = max_abs(x);
    let first = x.iter().find(|x| most > 0.0 && x.abs() == most);
    first.copied().unwrap_or(0.0)
}

/// Returns the sum of all lanes by pairwise halving, each step of which is a vector operation.
#[inline(always)]
fn horizontal_sum(x: [f32; LANES]) -> f32 {
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for i in 0..8 {
        eight[i] = x[i] + x[i + 8];
    }
    for i in 0..4 {
        four[i] = eight[i] + eight[i + 4];
    }
    (four[0] + four[2]) + (four[1] + four[3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{ROUNDS, Random};

    #[test]
    fn clamp_to_i32_matches_cast() {
        let mut random = Random::new(1);
        for round in 0..ROUNDS {
            for x in random.extreme_floats(round) {
                let x = (100.0 * x).round();
                for (low, high) in [(-128, 127), (0, 63), (-1, 1)] {
                    assert_eq!(
                        clamp_to_i32(x, low, high),
                        (x as i32).clamp(low, high),
                        "{x}"
                    );
                }
            }
        }
        assert_eq!(clamp_to_i32(f32::NAN, -8, 7), 0);
        assert_eq!(
            clamp_to_i32(-4_194_304.0, -4_194_304, 4_194_303),
            -4_194_304
        );
    }

    #[test]
    fn max_abs_signed_returns_first_maximum() {
        let mut random = Random::new(2);
        for round in 0..ROUNDS {
            let floats = random.extreme_floats(round);
            let x = &floats[..floats.len() - round % 20];
            let one_by_one = x
                .iter()
                .fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
            assert_eq!(max_abs_signed(x).to_bits(), one_by_one.to_bits());
            assert_eq!(max_abs(x), one_by_one.abs());
        }
        assert_eq!(max_abs_signed(&[1.0, -3.0, 3.0]), -3.0);
        assert_eq!(max_abs_signed(&[f32::NAN, -0.0]).to_bits(), 0);
    }
}
