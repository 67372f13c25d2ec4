//! Search for the scales of all groups of a 256-weight block at once.
//!
//! Each vector lane is a group, so no sum runs over lanes. The search is that of [`super::scale`] for one
//! group. The scales are then quantized to sub-scales, multiples of one `d`. Adjacent sub-scales are tried as
//! well, because the nearest is not always the best, and `d` is refitted at the end.

use super::scale::{LANES, STEPS, best_scale, inverse_or_zero, level_div, round_clamp, step};
use crate::quant::fields::F16Le;

/// One number per group.
pub(super) type PerGroup<const G: usize> = [f32; G];

/// A transposed block and its error weights: `x[i][g]` is element `i` of group `g`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Columns<const G: usize, const N: usize> {
    pub(crate) x: [PerGroup<G>; N],
    pub(crate) w: [PerGroup<G>; N],
}

impl<const G: usize, const N: usize> Columns<G, N> {
    #[inline(always)]
    pub(crate) fn new(x: &[f32], w: &[f32]) -> Self {
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

    /// Returns the element of largest magnitude of each group, with its sign.
    #[inline(always)]
    pub(crate) fn max_abs_signed(&self) -> PerGroup<G> {
        let mut largest = [0.0f32; G];
        for x in &self.x {
            for g in 0..G {
                let more = x[g].abs() > largest[g].abs();
                largest[g] = if more { x[g] } else { largest[g] };
            }
        }
        largest
    }

    /// Returns Σwxq and Σwq² of each group at the levels nearest to `x · inverse`.
    #[inline(always)]
    fn moments(&self, inverse: PerGroup<G>, nearest: impl Fn(f32) -> f32) -> [PerGroup<G>; 2] {
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

    /// Returns Σwq, Σwq² and Σwxq of each group at the levels nearest to `(x + min) · inverse`.
    #[inline(always)]
    pub(super) fn affine_moments(
        &self,
        min: PerGroup<G>,
        inverse: PerGroup<G>,
        max_level: f32,
    ) -> [PerGroup<G>; 3] {
        let (mut q1, mut qq, mut xq) = ([0.0; G], [0.0; G], [0.0; G]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for g in 0..G {
                let q = round_clamp((x[g] + min[g]) * inverse[g], 0.0, max_level);
                let wq = w[g] * q;
                q1[g] += wq;
                qq[g] += wq * q;
                xq[g] += wq * x[g];
            }
        }
        [q1, qq, xq]
    }
}

/// Returns the scales of `G` groups of `N` elements: `d` and sub-scales in `low..=high`.
///
/// `nearest` rounds to a level of the format; `ends` are the levels that the extreme element of a group may
/// get.
#[inline(always)]
pub(crate) fn group_scales<const G: usize, const N: usize>(
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
        round_clamp(x, low as f32, high as f32)
    });
    let d = F16Le::from_f32(d);

    let mut levels = [0.0; G];
    let (mut best_gain, mut best) = ([f32::NEG_INFINITY; G], [[0.0; G]; 2]);
    let inverse_d = inverse_or_zero(d.to_f32());
    for offset in [0.0, -1.0, 1.0] {
        let (mut l, mut inverse) = ([0.0; G], [0.0; G]);
        for g in 0..G {
            let middle = round_clamp(scales[g] * inverse_d, low as f32, high as f32);
            l[g] = round_clamp(middle + offset, low as f32, high as f32);
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
    // Refit d to the chosen levels and sub-scales.
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

/// Returns the best scale of each group and the weight of an error in it.
#[inline(always)]
fn best_scales<const G: usize, const N: usize>(
    columns: &Columns<G, N>,
    ends: &[f32],
    nearest: impl Fn(f32) -> f32 + Copy,
) -> (PerGroup<G>, PerGroup<G>) {
    let largest = columns.max_abs_signed();
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
        // Try the scale that fits the best levels so far.
        let mut inverse = [0.0; G];
        for g in 0..G {
            inverse[g] = best.qq[g] * inverse_or_zero(best.xq[g]);
        }
        best.attempt(columns, inverse, nearest);
    }
    let inverse_end = ends.first().map_or(0.0, |end| 1.0 / end);
    let mut scales = [0.0; G];
    for g in 0..G {
        let fitted = best.xq[g] * inverse_or_zero(best.qq[g]);
        // Without any error weight, the extreme element gets the first end.
        scales[g] = if best.gain[g] > 0.0 {
            fitted
        } else {
            largest[g] * inverse_end
        };
    }
    (scales, best.qq)
}

/// Error reduction and moments of the best levels of each group so far.
struct Best<const G: usize> {
    gain: PerGroup<G>,
    xq: PerGroup<G>,
    qq: PerGroup<G>,
}

impl<const G: usize> Best<G> {
    /// Tries the levels at an inverse scale. Not a closure, which would not be compiled for the caller's
    /// instruction set.
    #[inline(always)]
    fn attempt<const N: usize>(
        &mut self,
        columns: &Columns<G, N>,
        inverse: PerGroup<G>,
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

/// Sub-scales and minimums of groups: an element is `d · scale · q − dmin · min`.
pub(crate) struct AffineScales<const G: usize> {
    pub(crate) d: F16Le,
    pub(crate) dmin: F16Le,
    pub(crate) scales: [u8; G],
    pub(crate) mins: [u8; G],
}

/// Scale, minimum, error reduction and the moments Σwq, Σwq² and Σwxq of each group.
#[derive(Clone, Copy)]
struct AffineFit<const G: usize> {
    gain: PerGroup<G>,
    scale: PerGroup<G>,
    min: PerGroup<G>,
    q: PerGroup<G>,
    qq: PerGroup<G>,
    xq: PerGroup<G>,
}

impl<const G: usize> AffineFit<G> {
    /// Replaces the groups for which `other` is better.
    #[inline(always)]
    fn keep(&mut self, other: &AffineFit<G>) {
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

impl<const G: usize> AffineScales<G> {
    /// Fits groups of `N` elements with levels `0..=max_level`, sub-scales and minimums `0..=max_scale`.
    #[inline(always)]
    pub(crate) fn new<const N: usize>(
        x: &[f32],
        w: &[f32],
        max_level: f32,
        max_scale: f32,
    ) -> Self {
        let columns = Columns::<G, N>::new(x, w);
        let (mut sum_w, mut sum_x) = ([0.0; G], [0.0; G]);
        for (x, w) in columns.x.iter().zip(&columns.w) {
            for g in 0..G {
                sum_w[g] += w[g];
                sum_x[g] += w[g] * x[g];
            }
        }
        let fit = best_affine(&columns, sum_w, sum_x, max_level);
        let pad = |lane: PerGroup<G>| {
            let mut padded = [0.0; LANES];
            padded[..G].copy_from_slice(&lane);
            padded
        };
        let to_scale = |x: f32| round_clamp(x, 0.0, max_scale);
        let (d, _) = best_scale(&pad(fit.scale), &pad(fit.qq), &[max_scale], to_scale);
        let (dmin, _) = best_scale(&pad(fit.min), &pad(sum_w), &[max_scale], to_scale);
        let (d, dmin) = (F16Le::from_f32(d), F16Le::from_f32(dmin));
        let sums = (sum_w, sum_x);
        let best = best_sub_scales(&columns, &fit, sums, max_level, max_scale, (d, dmin));
        // Sums over all groups for refitting d and dmin, by least squares in two variables.
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
        AffineScales {
            d,
            dmin,
            scales: best.scale.map(|l| l as u8),
            mins: best.min.map(|m| m as u8),
        }
    }

    /// Returns the levels, `0..=max_level`, of all elements.
    #[inline(always)]
    pub(crate) fn levels(&self, x: &[f32], max_level: u8) -> [u8; 256] {
        let len = x.len() / G;
        let mut q = [0; 256];
        for (g, (x, q)) in x.chunks_exact(len).zip(q.chunks_exact_mut(len)).enumerate() {
            let scale = self.d.to_f32() * f32::from(self.scales[g]);
            let min = self.dmin.to_f32() * f32::from(self.mins[g]);
            for (q, x) in q.iter_mut().zip(x) {
                *q = level_div(x + min, scale, 0, i32::from(max_level)) as u8;
            }
        }
        q
    }
}

/// Returns the best scale and minimum of each group, neither negative.
#[inline(always)]
fn best_affine<const G: usize, const N: usize>(
    columns: &Columns<G, N>,
    sum_w: PerGroup<G>,
    sum_x: PerGroup<G>,
    max_level: f32,
) -> AffineFit<G> {
    let (mut low, mut high) = ([0.0f32; G], [f32::NEG_INFINITY; G]);
    for x in &columns.x {
        for g in 0..G {
            low[g] = if x[g] < low[g] { x[g] } else { low[g] };
            high[g] = if x[g] > high[g] { x[g] } else { high[g] };
        }
    }
    let (mut inverse_range, mut full_min, mut full_scale) = ([0.0; G], [0.0; G], [0.0; G]);
    for g in 0..G {
        let range = if high[g] > low[g] {
            high[g] - low[g]
        } else {
            0.0
        };
        inverse_range[g] = inverse_or_zero(range);
        full_min[g] = -low[g];
        full_scale[g] = range / max_level;
    }
    let zero = [0.0; G];
    let mut best = AffineFit {
        gain: [f32::NEG_INFINITY; G],
        scale: full_scale,
        min: full_min,
        q: zero,
        qq: zero,
        xq: zero,
    };
    for k in -STEPS..STEPS + 4 {
        // The last three steps try the scale and minimum that fit the best levels so far.
        let refine = k > STEPS;
        let (mut min, mut inverse) = (full_min, zero);
        for g in 0..G {
            inverse[g] = if refine {
                inverse_or_zero(best.scale[g])
            } else {
                (max_level + 0.1 * k as f32) * inverse_range[g]
            };
            min[g] = if refine { best.min[g] } else { min[g] };
        }
        let [q, qq, xq] = columns.affine_moments(min, inverse, max_level);
        let (mut scale, mut gain) = (zero, zero);
        for g in 0..G {
            // Linear regression of x over q, through the origin if the minimum would be negative.
            let determinant = sum_w[g] * qq[g] - q[g] * q[g];
            let slope = (sum_w[g] * xq[g] - q[g] * sum_x[g]) / determinant;
            let offset = (q[g] * xq[g] - qq[g] * sum_x[g]) / determinant;
            let valid = offset >= 0.0 && determinant > 0.0;
            scale[g] = if valid { slope } else { xq[g] / qq[g] };
            min[g] = if valid { offset } else { 0.0 };
            let reduction = affine_gain(scale[g], min[g], [q[g], qq[g], xq[g]], sum_w[g], sum_x[g]);
            gain[g] = if scale[g] >= 0.0 {
                reduction
            } else {
                f32::NEG_INFINITY
            };
        }
        best.keep(&AffineFit {
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

/// Returns the error reduction of a scale and a minimum over all zeros.
#[inline(always)]
fn affine_gain(scale: f32, min: f32, [q, qq, xq]: [f32; 3], w: f32, x: f32) -> f32 {
    scale * (2.0 * xq - scale * qq + 2.0 * min * q) - min * (2.0 * x + min * w)
}

/// Returns the best sub-scales and minimums, in units of `d` and `dmin`, near each group's fit.
#[inline(always)]
fn best_sub_scales<const G: usize, const N: usize>(
    columns: &Columns<G, N>,
    fit: &AffineFit<G>,
    (sum_w, sum_x): (PerGroup<G>, PerGroup<G>),
    max_level: f32,
    max_scale: f32,
    (d, dmin): (F16Le, F16Le),
) -> AffineFit<G> {
    let (d, dmin) = (d.to_f32(), dmin.to_f32());
    let (inverse_d, inverse_dmin) = (inverse_or_zero(d), inverse_or_zero(dmin));
    let zero = [0.0; G];
    let mut best = AffineFit {
        gain: [f32::NEG_INFINITY; G],
        scale: zero,
        min: zero,
        q: zero,
        qq: zero,
        xq: zero,
    };
    // The other two diagonal neighbors are hardly ever better.
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
            let middle = round_clamp(fit.scale[g] * inverse_d, 0.0, max_scale);
            l[g] = round_clamp(middle + dl, 0.0, max_scale);
            let middle = round_clamp(fit.min[g] * inverse_dmin, 0.0, max_scale);
            m[g] = round_clamp(middle + dm, 0.0, max_scale);
            min[g] = dmin * m[g];
            inverse[g] = inverse_or_zero(d * l[g]);
        }
        let [q, qq, xq] = columns.affine_moments(min, inverse, max_level);
        let mut gain = zero;
        for g in 0..G {
            gain[g] = affine_gain(d * l[g], min[g], [q[g], qq[g], xq[g]], sum_w[g], sum_x[g]);
        }
        best.keep(&AffineFit {
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
