//! How the formats with few bits choose a scale: try some, keep the one with the least square error.

/// The scale `d` for which `d · nearest(x / d)` comes closest to `x`.
///
/// `nearest` rounds to a level of the format; `end` is the level of largest magnitude. It may have
/// no opposite (−8 to 7), so `d` takes the sign that gives it to the largest element.
pub(super) fn best_scale(x: &[f32], end: f32, nearest: impl Fn(f32) -> f32) -> f32 {
    let extreme = x
        .iter()
        .fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    if extreme == 0.0 {
        return 0.0;
    }
    let (mut best, mut best_gain) = (extreme / end, 0.0);
    for step in -10..=10 {
        // Clipping the largest element a little often pays; so does leaving the last level empty.
        let inverse = end * (1.0 + 0.02 * step as f32) / extreme;
        let (mut xq, mut qq) = (0.0, 0.0);
        for v in x {
            let q = nearest(v * inverse);
            xq += v * q;
            qq += q * q;
        }
        // With the best d for these levels, xq / qq, the error is Σx² − xq²/qq.
        let gain = xq * xq / qq;
        if gain > best_gain {
            (best, best_gain) = (xq / qq, gain);
        }
    }
    best
}

/// The scale and the minimum, neither negative, for which `scale · q − min` with `q` in `0..=last`
/// comes closest to `x`.
pub(super) fn best_scale_and_min(x: &[f32], last: f32) -> (f32, f32) {
    let low = x.iter().fold(0.0f32, |m, v| m.min(*v));
    let high = x.iter().fold(low, |m, v| m.max(*v));
    let range = high - low;
    if range == 0.0 {
        return (0.0, -low);
    }
    let (mut best, mut best_error) = ((range / last, -low), f32::INFINITY);
    for step in -10..=10 {
        let inverse = last * (1.0 + 0.02 * step as f32) / range;
        let level = |v: f32| ((v - low) * inverse).round_ties_even().clamp(0.0, last);
        let (mut q1, mut qq, mut x1, mut xq) = (0.0, 0.0, 0.0, 0.0);
        for v in x {
            let q = level(*v);
            q1 += q;
            qq += q * q;
            x1 += v;
            xq += v * q;
        }
        // The regression line of x over q, through the origin if its minimum would be negative.
        let n = x.len() as f32;
        let determinant = n * qq - q1 * q1;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (n * xq - q1 * x1) / determinant;
        let mut min = (q1 * xq - qq * x1) / determinant;
        if min < 0.0 {
            (scale, min) = (xq / qq, 0.0);
        }
        let error: f32 = x
            .iter()
            .map(|v| (scale * level(*v) - min - v).powi(2))
            .sum();
        if error < best_error && scale >= 0.0 {
            (best, best_error) = ((scale, min), error);
        }
    }
    best
}

/// `1 / x`, or 0 where that is not a number to multiply with.
pub(super) fn inverse_or_zero(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// `x / scale` rounded to an integer of `low..=high`.
pub(super) fn level(x: f32, inverse_scale: f32, low: i32, high: i32) -> i32 {
    // The cast saturates and takes NaN to 0.
    ((x * inverse_scale).round_ties_even() as i32).clamp(low, high)
}
