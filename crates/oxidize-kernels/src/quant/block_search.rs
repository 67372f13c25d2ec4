//! Scales for all groups of a block of 256 at once: a lane is a group, so that no sum ever runs over
//! lanes. What is tried and kept is what [`super::scale_search`] tries and keeps for one group.
//!
//! The scales of the groups are then put in units of one `d`. Neighbouring multiples are tried as
//! well, since the nearest is not always the best, and `d` is fitted once all are chosen.

use super::fields::F16Le;
use super::scale_search::{LANES, STEPS, best_scale, inverse_or_zero, level_at, step, whole};

/// One number a group.
pub(super) type Lane<const G: usize> = [f32; G];

/// A block with its groups side by side: `x[i][g]` is element `i` of group `g`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Columns<const G: usize, const N: usize> {
    pub(super) x: [Lane<G>; N],
    pub(super) w: [Lane<G>; N],
}

impl<const G: usize, const N: usize> Columns<G, N> {
    #[inline(always)]
    pub(super) fn new(x: &[f32], w: &[f32]) -> Self {
        let mut columns = Columns {
            x: [[0.0; G]; N],
            w: [[0.0; G]; N],
        };
        for g in 0..G {
            let (x, w) = (&x[g * N..(g + 1) * N], &w[g * N..(g + 1) * N]);
            for i in 0..N {
                columns.x[i][g] = x[i];
                columns.w[i][g] = w[i];
            }
        }
        columns
    }

    /// The element of largest magnitude of each group, with its sign.
    #[inline(always)]
    pub(super) fn largest(&self) -> Lane<G> {
        let mut largest = [0.0f32; G];
        for x in &self.x {
            for g in 0..G {
                let more = x[g].abs() > largest[g].abs();
                largest[g] = if more { x[g] } else { largest[g] };
            }
        }
        largest
    }

    /// Σwxq and Σwq² of each group, at the levels nearest to `x · inverse`.
    #[inline(always)]
    fn moments(&self, inverse: Lane<G>, nearest: impl Fn(f32) -> f32) -> [Lane<G>; 2] {
        let (mut xq, mut qq) = ([0.0; G], [0.0; G]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for g in 0..G {
                let q = nearest(x[g] * inverse[g]);
                let wq = w[g] * q;
                xq[g] += wq * x[g];
                qq[g] += wq * q;
            }
        }
        [xq, qq]
    }

    /// Σwq, Σwq² and Σwxq of each group, at the levels nearest to `(x + min) · inverse`.
    #[inline(always)]
    pub(super) fn line_moments(&self, min: Lane<G>, inverse: Lane<G>, last: f32) -> [Lane<G>; 3] {
        let (mut q1, mut qq, mut xq) = ([0.0; G], [0.0; G], [0.0; G]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for g in 0..G {
                let q = whole((x[g] + min[g]) * inverse[g], 0.0, last);
                let wq = w[g] * q;
                q1[g] += wq;
                qq[g] += wq * q;
                xq[g] += wq * x[g];
            }
        }
        [q1, qq, xq]
    }
}

/// Scales of `G` groups of `N` elements in units of one `d`: `d · l[g]` with `l[g]` in `low..=high`.
///
/// `nearest` rounds to a level of the format; `ends` are the levels that the largest element of a
/// group may get.
#[inline(always)]
pub(super) fn group_scales<const G: usize, const N: usize>(
    x: &[f32],
    w: &[f32],
    ends: &[f32],
    (low, high): (i32, i32),
    nearest: impl Fn(f32) -> f32 + Copy,
) -> (F16Le, [i32; G]) {
    let columns = Columns::<G, N>::new(x, w);
    let (scales, costs) = best_scales(&columns, ends, nearest);
    let (mut padded_scales, mut padded_costs) = ([0.0; LANES], [0.0; LANES]);
    padded_scales[..G].copy_from_slice(&scales);
    padded_costs[..G].copy_from_slice(&costs);
    let (d, _) = best_scale(&padded_scales, &padded_costs, &[low as f32], |x| {
        whole(x, low as f32, high as f32)
    });
    let d = F16Le::from_f32(d);

    let mut levels = [0.0; G];
    let (mut best_gain, mut best) = ([f32::NEG_INFINITY; G], [[0.0; G]; 2]);
    let inverse_d = inverse_or_zero(d.to_f32());
    for nearby in [0.0, -1.0, 1.0] {
        let (mut l, mut inverse) = ([0.0; G], [0.0; G]);
        for g in 0..G {
            let middle = whole(scales[g] * inverse_d, low as f32, high as f32);
            l[g] = whole(middle + nearby, low as f32, high as f32);
            inverse[g] = inverse_or_zero(d.to_f32() * l[g]);
        }
        let [xq, qq] = columns.moments(inverse, nearest);
        for g in 0..G {
            let scale = d.to_f32() * l[g];
            let gain = scale * (2.0 * xq[g] - scale * qq[g]);
            let better = gain > best_gain[g];
            best_gain[g] = if better { gain } else { best_gain[g] };
            levels[g] = if better { l[g] } else { levels[g] };
            best[0][g] = if better { xq[g] } else { best[0][g] };
            best[1][g] = if better { qq[g] } else { best[1][g] };
        }
    }
    // With the levels chosen, d itself has a best value.
    let (mut xq, mut qq) = (0.0, 0.0);
    for g in 0..G {
        xq += levels[g] * best[0][g];
        qq += levels[g] * levels[g] * best[1][g];
    }
    let fitted = xq / qq;
    let usable = fitted.is_finite() && fitted != 0.0;
    let d = if usable { F16Le::from_f32(fitted) } else { d };
    (d, levels.map(|l| l as i32))
}

/// The best scale of each group, and what it costs to miss it.
#[inline(always)]
fn best_scales<const G: usize, const N: usize>(
    columns: &Columns<G, N>,
    ends: &[f32],
    nearest: impl Fn(f32) -> f32 + Copy,
) -> (Lane<G>, Lane<G>) {
    let largest = columns.largest();
    let mut unit = [0.0; G];
    for g in 0..G {
        unit[g] = inverse_or_zero(largest[g]);
    }
    let mut best = Best {
        gain: [0.0; G],
        xq: [0.0; G],
        qq: [0.0; G],
    };
    for &end in ends {
        for k in -STEPS..=STEPS {
            let mut inverse = [0.0; G];
            for g in 0..G {
                inverse[g] = (end + step(end) * k as f32) * unit[g];
            }
            best.attempt(columns, inverse, nearest);
        }
    }
    for _ in 0..2 {
        // The scale that fits the best levels so far.
        let mut inverse = [0.0; G];
        for g in 0..G {
            inverse[g] = best.qq[g] * inverse_or_zero(best.xq[g]);
        }
        best.attempt(columns, inverse, nearest);
    }
    let plain = ends.first().map_or(0.0, |end| 1.0 / end);
    let mut scales = [0.0; G];
    for g in 0..G {
        let fitted = best.xq[g] * inverse_or_zero(best.qq[g]);
        // Where nothing has any weight, the plain scale will do.
        scales[g] = if best.gain[g] > 0.0 {
            fitted
        } else {
            largest[g] * plain
        };
    }
    (scales, best.qq)
}

/// The best levels of each group so far: what they gain, and their moments.
struct Best<const G: usize> {
    gain: Lane<G>,
    xq: Lane<G>,
    qq: Lane<G>,
}

impl<const G: usize> Best<G> {
    /// Tries the levels at an inverse scale. (A closure would not be compiled for the caller's
    /// instruction set.)
    #[inline(always)]
    fn attempt<const N: usize>(
        &mut self,
        columns: &Columns<G, N>,
        inverse: Lane<G>,
        nearest: impl Fn(f32) -> f32 + Copy,
    ) {
        let [xq, qq] = columns.moments(inverse, nearest);
        for g in 0..G {
            let gain = xq[g] * xq[g] / qq[g];
            let better = gain > self.gain[g];
            self.gain[g] = if better { gain } else { self.gain[g] };
            self.xq[g] = if better { xq[g] } else { self.xq[g] };
            self.qq[g] = if better { qq[g] } else { self.qq[g] };
        }
    }
}

/// The scales and minima of groups in units of one `d` and one `dmin`: an element is
/// `d · scale · q − dmin · min`.
pub(super) struct Lines<const G: usize> {
    pub(super) d: F16Le,
    pub(super) dmin: F16Le,
    pub(super) scales: [u8; G],
    pub(super) mins: [u8; G],
}

/// What fitting lines knows of each group: its weights, their products with x, and the sums at the
/// chosen levels.
#[derive(Clone, Copy)]
struct Fit<const G: usize> {
    gain: Lane<G>,
    scale: Lane<G>,
    min: Lane<G>,
    q: Lane<G>,
    qq: Lane<G>,
    xq: Lane<G>,
}

impl<const G: usize> Fit<G> {
    /// Takes over what is better in `other`.
    #[inline(always)]
    fn keep(&mut self, other: &Fit<G>) {
        for g in 0..G {
            let better = other.gain[g] > self.gain[g];
            self.gain[g] = if better { other.gain[g] } else { self.gain[g] };
            self.scale[g] = if better {
                other.scale[g]
            } else {
                self.scale[g]
            };
            self.min[g] = if better { other.min[g] } else { self.min[g] };
            self.q[g] = if better { other.q[g] } else { self.q[g] };
            self.qq[g] = if better { other.qq[g] } else { self.qq[g] };
            self.xq[g] = if better { other.xq[g] } else { self.xq[g] };
        }
    }
}

impl<const G: usize> Lines<G> {
    /// The lines for groups of `N` elements with levels `0..=last`, scales and minima
    /// `0..=last_scale`.
    #[inline(always)]
    pub(super) fn new<const N: usize>(x: &[f32], w: &[f32], last: f32, last_scale: f32) -> Self {
        let columns = Columns::<G, N>::new(x, w);
        let (mut sum_w, mut sum_x) = ([0.0; G], [0.0; G]);
        for (x, w) in columns.x.iter().zip(&columns.w) {
            for g in 0..G {
                sum_w[g] += w[g];
                sum_x[g] += w[g] * x[g];
            }
        }
        let lines = best_lines(&columns, sum_w, sum_x, last);
        let pad = |lane: Lane<G>| {
            let mut padded = [0.0; LANES];
            padded[..G].copy_from_slice(&lane);
            padded
        };
        let to_scale = |x: f32| whole(x, 0.0, last_scale);
        let (d, _) = best_scale(&pad(lines.scale), &pad(lines.qq), &[last_scale], to_scale);
        let (dmin, _) = best_scale(&pad(lines.min), &pad(sum_w), &[last_scale], to_scale);
        let (d, dmin) = (F16Le::from_f32(d), F16Le::from_f32(dmin));
        let best = nearby_multiples(&columns, &lines, sum_w, sum_x, last, last_scale, (d, dmin));
        // Here scales and minima are the multiples. Σ over all groups, for fitting d and dmin.
        let (mut uu, mut uv, mut vv, mut xu, mut xv) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
        for g in 0..G {
            let (l, m) = (best.scale[g], best.min[g]);
            uu += l * l * best.qq[g];
            uv += l * m * best.q[g];
            vv += m * m * sum_w[g];
            xu += l * best.xq[g];
            xv += m * sum_x[g];
        }
        let determinant = uu * vv - uv * uv;
        let fitted = (vv * xu - uv * xv) / determinant;
        let fitted_min = (uv * xu - uu * xv) / determinant;
        let usable = determinant > 0.0 && fitted > 0.0 && fitted_min >= 0.0;
        let (d, dmin) = if usable && fitted.is_finite() && fitted_min.is_finite() {
            (F16Le::from_f32(fitted), F16Le::from_f32(fitted_min))
        } else {
            (d, dmin)
        };
        Lines {
            d,
            dmin,
            scales: best.scale.map(|l| l as u8),
            mins: best.min.map(|m| m as u8),
        }
    }

    /// The levels, `0..=last`, of all elements.
    #[inline(always)]
    pub(super) fn levels(&self, x: &[f32], last: u8) -> [u8; 256] {
        let len = x.len() / G;
        let mut q = [0; 256];
        for (g, (x, q)) in x.chunks_exact(len).zip(q.chunks_exact_mut(len)).enumerate() {
            let scale = self.d.to_f32() * f32::from(self.scales[g]);
            let min = self.dmin.to_f32() * f32::from(self.mins[g]);
            for (q, x) in q.iter_mut().zip(x) {
                *q = level_at(x + min, scale, 0, i32::from(last)) as u8;
            }
        }
        q
    }
}

/// The best scale and minimum of each group, neither negative.
#[inline(always)]
fn best_lines<const G: usize, const N: usize>(
    columns: &Columns<G, N>,
    sum_w: Lane<G>,
    sum_x: Lane<G>,
    last: f32,
) -> Fit<G> {
    let (mut low, mut high) = ([0.0f32; G], [f32::NEG_INFINITY; G]);
    for x in &columns.x {
        for g in 0..G {
            low[g] = if x[g] < low[g] { x[g] } else { low[g] };
            high[g] = if x[g] > high[g] { x[g] } else { high[g] };
        }
    }
    let (mut unit, mut plain_min, mut plain) = ([0.0; G], [0.0; G], [0.0; G]);
    for g in 0..G {
        let range = if high[g] > low[g] {
            high[g] - low[g]
        } else {
            0.0
        };
        unit[g] = inverse_or_zero(range);
        plain_min[g] = -low[g];
        plain[g] = range / last;
    }
    let zero = [0.0; G];
    let mut best = Fit {
        gain: [f32::NEG_INFINITY; G],
        scale: plain,
        min: plain_min,
        q: zero,
        qq: zero,
        xq: zero,
    };
    for k in -STEPS..STEPS + 4 {
        // At last, three times, the line that fits the best levels so far.
        let refine = k > STEPS;
        let (mut min, mut inverse) = (plain_min, zero);
        for g in 0..G {
            inverse[g] = if refine {
                inverse_or_zero(best.scale[g])
            } else {
                (last + 0.1 * k as f32) * unit[g]
            };
            min[g] = if refine { best.min[g] } else { min[g] };
        }
        let [q, qq, xq] = columns.line_moments(min, inverse, last);
        let (mut scale, mut gain) = (zero, zero);
        for g in 0..G {
            // The regression line of x over q, through the origin if its minimum would be negative.
            let determinant = sum_w[g] * qq[g] - q[g] * q[g];
            let slope = (sum_w[g] * xq[g] - q[g] * sum_x[g]) / determinant;
            let below = (q[g] * xq[g] - qq[g] * sum_x[g]) / determinant;
            let line = below >= 0.0 && determinant > 0.0;
            scale[g] = if line { slope } else { xq[g] / qq[g] };
            min[g] = if line { below } else { 0.0 };
            let fits = line_gain(scale[g], min[g], [q[g], qq[g], xq[g]], sum_w[g], sum_x[g]);
            gain[g] = if scale[g] >= 0.0 {
                fits
            } else {
                f32::NEG_INFINITY
            };
        }
        best.keep(&Fit {
            gain,
            scale,
            min,
            q,
            qq,
            xq,
        });
    }
    best
}

/// What a line gains over leaving everything at zero.
#[inline(always)]
fn line_gain(scale: f32, min: f32, [q, qq, xq]: [f32; 3], w: f32, x: f32) -> f32 {
    scale * (2.0 * xq - scale * qq + 2.0 * min * q) - min * (2.0 * x + min * w)
}

/// The best multiples of `d` and `dmin` near each group's line; they are the result's scales and
/// minima.
#[inline(always)]
fn nearby_multiples<const G: usize, const N: usize>(
    columns: &Columns<G, N>,
    lines: &Fit<G>,
    sum_w: Lane<G>,
    sum_x: Lane<G>,
    last: f32,
    last_scale: f32,
    (d, dmin): (F16Le, F16Le),
) -> Fit<G> {
    let (d, dmin) = (d.to_f32(), dmin.to_f32());
    let (inverse_d, inverse_dmin) = (inverse_or_zero(d), inverse_or_zero(dmin));
    let zero = [0.0; G];
    let mut best = Fit {
        gain: [f32::NEG_INFINITY; G],
        scale: zero,
        min: zero,
        q: zero,
        qq: zero,
        xq: zero,
    };
    // Corners are hardly ever better than what lies beside the middle.
    for (dl, dm) in [
        (0.0, 0.0),
        (-1.0, 0.0),
        (1.0, 0.0),
        (0.0, -1.0),
        (0.0, 1.0),
        (1.0, 1.0),
        (-1.0, -1.0),
    ] {
        let (mut l, mut m) = (zero, zero);
        let (mut min, mut inverse) = (zero, zero);
        for g in 0..G {
            let middle = whole(lines.scale[g] * inverse_d, 0.0, last_scale);
            l[g] = whole(middle + dl, 0.0, last_scale);
            let middle = whole(lines.min[g] * inverse_dmin, 0.0, last_scale);
            m[g] = whole(middle + dm, 0.0, last_scale);
            min[g] = dmin * m[g];
            inverse[g] = inverse_or_zero(d * l[g]);
        }
        let [q, qq, xq] = columns.line_moments(min, inverse, last);
        let mut gain = zero;
        for g in 0..G {
            gain[g] = line_gain(d * l[g], min[g], [q[g], qq[g], xq[g]], sum_w[g], sum_x[g]);
        }
        best.keep(&Fit {
            gain,
            scale: l,
            min: m,
            q,
            qq,
            xq,
        });
    }
    best
}
