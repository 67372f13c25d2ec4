//! How the formats with few bits choose a scale: try some, keep the one with the least weighted
//! square error, and fit it again to the levels it led to. [`super::block_search`] does the same for
//! all groups of a block at once.
//!
//! Sums run over sixteen lanes in a fixed order: the compiler vectorises them for whatever
//! instruction set it inlines them into, and every one of them gives the same bits.

/// Elements that are worked on side by side; groups are multiples of it.
pub(super) const LANES: usize = 16;

/// Scales that are tried to either side of the plain one.
pub(super) const STEPS: i32 = 9;

/// Weighted sums of a group at one choice of levels: Σwxq and Σwq². With scale `s` the error is
/// Σwx² − s (2 Σwxq − s Σwq²).
#[derive(Clone, Copy, Default)]
pub(super) struct Moments {
    pub(super) xq: f32,
    pub(super) qq: f32,
}

impl Moments {
    /// The scale with the largest gain.
    #[inline(always)]
    fn best(self) -> f32 {
        self.xq / self.qq
    }
}

/// The moments of `x` with weights `w` at the levels nearest to `x · inverse`.
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
        xq: total(xq),
        qq: total(qq),
    }
}

/// The scale `d` for which `d · nearest(x / d)` comes closest to `x`, and its moments.
///
/// `nearest` rounds to a level of the format; `ends` are the levels that the largest element may
/// get. The one of largest magnitude may have no opposite (−8 to 7), so the sign of `d` matters:
/// with both ends, both signs are tried.
#[inline(always)]
pub(super) fn best_scale(
    x: &[f32],
    w: &[f32],
    ends: &[f32],
    nearest: impl Fn(f32) -> f32 + Copy,
) -> (f32, Moments) {
    let extreme = largest(x);
    if extreme == 0.0 {
        return (0.0, Moments::default());
    }
    let (mut best, mut best_gain) = (Moments::default(), 0.0);
    // Clipping the largest element a little often pays; so does leaving the last level empty. Every
    // third scale is tried, and then those around the best.
    let (mut best_end, mut best_k) = (0.0, 0);
    let rough = ends
        .iter()
        .flat_map(|&end| (-STEPS..=STEPS).step_by(3).map(move |k| (end, k)));
    for (end, k) in rough {
        let m = moments(x, w, (end + step(end) * k as f32) / extreme, nearest);
        // The gain at the best scale for these levels.
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
    (best.best(), best)
}

/// How far apart the scales are that are tried, in levels: a tenth, or a hundredth of the range
/// where levels are many.
#[inline(always)]
pub(super) fn step(end: f32) -> f32 {
    (end.abs() / 100.0).max(0.1)
}

/// `1 / x`, or 0 where that is not a number to multiply with.
#[inline(always)]
pub(super) fn inverse_or_zero(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The whole number of `low..=high` nearest to `x`.
#[inline(always)]
pub(super) fn whole(x: f32, low: f32, high: f32) -> f32 {
    within(x.round_ties_even(), low, high)
}

/// `x`, or the end of `low..=high` that is nearer; `low` for what is not a number.
#[inline(always)]
fn within(x: f32, low: f32, high: f32) -> f32 {
    // Not `clamp`, which keeps NaN at the price of another comparison.
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// A whole number as an integer of `low..=high`, which are of at most 22 bits; 0 for what is not a number.
///
/// As a cast does it, but that is compiled for one number at a time.
#[inline(always)]
pub(super) fn integer(x: f32, low: i32, high: i32) -> i32 {
    /// 1.5 · 2²³: the last bits of its sum with a whole number are that number.
    const ADDED: f32 = 12_582_912.0;
    let x = if x.is_nan() { 0.0 } else { x };
    let x = within(x, low as f32, high as f32);
    (x + ADDED).to_bits() as i32 - ADDED.to_bits() as i32
}

/// `x / scale` rounded to an integer of `low..=high`.
#[inline(always)]
pub(super) fn level(x: f32, inverse_scale: f32, low: i32, high: i32) -> i32 {
    integer((x * inverse_scale).round_ties_even(), low, high)
}

/// The same with a division, which rounds once less; the lowest where the scale is 0, as any will do.
#[inline(always)]
pub(super) fn level_at(x: f32, scale: f32, low: i32, high: i32) -> i32 {
    let level = integer((x / scale).round_ties_even(), low, high);
    if scale == 0.0 { low } else { level }
}

/// The largest magnitude, of those that are numbers.
#[inline(always)]
pub(super) fn magnitude(x: &[f32]) -> f32 {
    // As integers, which are compared in any order and many at a time.
    let mut most = 0;
    for x in x {
        let bits = x.abs().to_bits();
        let bits = if x.is_nan() { 0 } else { bits };
        most = if bits > most { bits } else { most };
    }
    f32::from_bits(most)
}

/// The element of largest magnitude, with its sign.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    let most = magnitude(x);
    let first = x.iter().find(|x| most > 0.0 && x.abs() == most);
    first.copied().unwrap_or(0.0)
}

/// The sum of all lanes, in halves: each half is a vector again.
#[inline(always)]
fn total(x: [f32; LANES]) -> f32 {
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
    fn integers_are_those_of_casts() {
        let mut random = Random::new(1);
        for round in 0..ROUNDS {
            for x in random.odd_floats(round) {
                let x = (100.0 * x).round();
                for (low, high) in [(-128, 127), (0, 63), (-1, 1)] {
                    assert_eq!(integer(x, low, high), (x as i32).clamp(low, high), "{x}");
                }
            }
        }
        assert_eq!(integer(f32::NAN, -8, 7), 0);
        assert_eq!(integer(-4_194_304.0, -4_194_304, 4_194_303), -4_194_304);
    }

    #[test]
    fn the_largest_is_the_first_of_its_magnitude() {
        let mut random = Random::new(2);
        for round in 0..ROUNDS {
            let floats = random.odd_floats(round);
            let x = &floats[..floats.len() - round % 20];
            let one_by_one = x
                .iter()
                .fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
            assert_eq!(largest(x).to_bits(), one_by_one.to_bits());
            assert_eq!(magnitude(x), one_by_one.abs());
        }
        assert_eq!(largest(&[1.0, -3.0, 3.0]), -3.0);
        assert_eq!(largest(&[f32::NAN, -0.0]).to_bits(), 0);
    }
}
