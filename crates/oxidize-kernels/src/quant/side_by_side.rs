//! Scales and lines of sixteen blocks of 32 at once, one to a lane: what [`super::scale_search`] finds for each block
//! alone, bit for bit, without sums that run over lanes.

use super::block_search::{Columns, Lane};
use super::scale_search::{STEPS, inverse_or_zero, step, whole};
use super::{Quantize, importance_of};

/// Blocks that are worked on side by side.
pub(super) const SIDE: usize = 16;

/// Up to sixteen blocks and what their errors cost. Where there are fewer, the rest are zeros.
pub(super) type Blocks = Columns<SIDE, 32>;

type Side = Lane<SIDE>;

/// A block's scale, which is not negative, and its minimum: `scale · q + min` with `q` in `0..=last`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Line {
    pub(super) scale: f32,
    pub(super) min: f32,
}

/// One block of a format that makes several at once.
#[inline(always)]
pub(super) fn one_of_many<B: Quantize>(src: &[f32], importance: Option<&[f32]>) -> B {
    let mut block = [B::zeroed()];
    B::quantize_blocks(src, importance, &mut block);
    block[0]
}

impl Blocks {
    /// The blocks of `src`, the first of which is number `first` of all that `importance` is about.
    #[inline(always)]
    pub(super) fn weighted(src: &[f32], importance: Option<&[f32]>, first: usize) -> Blocks {
        let mut blocks = Columns {
            x: [[0.0; SIDE]; 32],
            w: [[1.0; SIDE]; 32],
        };
        for (g, src) in src.chunks_exact(32).enumerate() {
            for (x, src) in blocks.x.iter_mut().zip(src) {
                x[g] = *src;
            }
            if let Some(known) = importance_of(importance, first + g, 32) {
                for (w, known) in blocks.w.iter_mut().zip(known) {
                    w[g] = *known;
                }
            }
        }
        blocks.weigh();
        blocks
    }

    /// Turns importance into the weights of errors, as [`super::weighting::weights`] does.
    #[inline(always)]
    fn weigh(&mut self) {
        let (mut squares, mut most) = ([0.0; SIDE], [0.0; SIDE]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for g in 0..SIDE {
                squares[g] += x[g] * x[g];
                most[g] = if w[g] > most[g] { w[g] } else { most[g] };
            }
        }
        for (x, w) in self.x.iter().zip(&mut self.w) {
            for g in 0..SIDE {
                let weight = (squares[g] / 32.0 + x[g] * x[g]).sqrt();
                // Inputs that were always zero say nothing.
                w[g] = weight * if most[g] > 0.0 { w[g] } else { 1.0 };
            }
        }
    }

    /// The scales that [`super::scale_search::best_scale`] finds.
    #[inline(always)]
    pub(super) fn best_scales(&self, ends: &[f32], nearest: impl Fn(f32) -> f32 + Copy) -> Side {
        let zero = [0.0; SIDE];
        let extreme = self.largest();
        let mut best = Best {
            gain: zero,
            xq: zero,
            qq: zero,
            end: zero,
            k: zero,
        };
        for &end in ends {
            for k in (-STEPS..=STEPS).step_by(3) {
                best.attempt(self, &extreme, ([end; SIDE], [k as f32; SIDE]), nearest);
            }
        }
        let (end, rough) = (best.end, best.k);
        for nearby in [-2.0, -1.0, 1.0, 2.0] {
            best.attempt(self, &extreme, (end, rough.map(|k| k + nearby)), nearest);
        }
        let found = best.gain;
        for _ in 0..2 {
            let mut inverse = zero;
            for g in 0..SIDE {
                inverse[g] = best.qq[g] / best.xq[g];
            }
            best.keep(self.scale_sums(&inverse, nearest), (end, rough));
        }
        let plain = ends.first().map_or(f32::INFINITY, |end| *end);
        let mut scales = zero;
        for g in 0..SIDE {
            let scale = if found[g] == 0.0 {
                extreme[g] / plain
            } else {
                best.xq[g] / best.qq[g]
            };
            scales[g] = if extreme[g] == 0.0 { 0.0 } else { scale };
        }
        scales
    }

    /// The lines for which `scale · q + min` comes closest to `x`, of those that split the range into a little more
    /// or less than `last` parts, and fitted again to the levels these led to.
    ///
    /// One input may be a million times as important as those beside it, and singles have seven digits. So
    /// elements and levels are counted from the middle, where such a one has nothing to add to the sums.
    #[inline(always)]
    pub(super) fn best_lines(&self, last: f32) -> [Line; SIDE] {
        let zero = [0.0; SIDE];
        let (mut low, mut high) = (self.x[0], self.x[0]);
        for x in &self.x {
            for g in 0..SIDE {
                low[g] = if x[g] < low[g] { x[g] } else { low[g] };
                high[g] = if x[g] > high[g] { x[g] } else { high[g] };
            }
        }
        let [sum_w, sum_x] = total(FromMiddle(self, &zero));
        let mut middle = zero;
        for g in 0..SIDE {
            middle[g] = sum_x[g] / sum_w[g];
        }
        let [_, sum_x] = total(FromMiddle(self, &middle));
        let (mut scale, mut min, mut most) = (zero, low, [f32::NEG_INFINITY; SIDE]);
        for g in 0..SIDE {
            scale[g] = (high[g] - low[g]) / last;
        }
        for k in -STEPS..STEPS + 4 {
            // At last, three times, the line that fits the best levels so far.
            let refine = k > STEPS;
            let (mut from, mut inverse, mut center) = (zero, zero, zero);
            for g in 0..SIDE {
                let range = (last + 0.1 * k as f32) / (high[g] - low[g]);
                inverse[g] = if refine {
                    inverse_or_zero(scale[g])
                } else {
                    range
                };
                from[g] = if refine { min[g] } else { low[g] };
                center[g] = whole((middle[g] - from[g]) * inverse[g], 0.0, last);
            }
            let [q, qq, xq] = total(AtLine {
                blocks: self,
                from: &from,
                inverse: &inverse,
                middle: &middle,
                center: &center,
                last,
            });
            for g in 0..SIDE {
                let (w, x, q, qq, xq) = (sum_w[g], sum_x[g], q[g], qq[g], xq[g]);
                let determinant = w * qq - q * q;
                let slope = (w * xq - q * x) / determinant;
                let above = (qq * x - q * xq) / determinant;
                let gain = slope * (2.0 * xq - slope * qq - 2.0 * above * q)
                    + above * (2.0 * x - above * w);
                let better = gain > most[g] && slope >= 0.0 && determinant > 0.0;
                most[g] = if better { gain } else { most[g] };
                scale[g] = if better { slope } else { scale[g] };
                let start = middle[g] + (above - slope * center[g]);
                min[g] = if better { start } else { min[g] };
            }
        }
        let mut lines = [Line::default(); SIDE];
        for g in 0..SIDE {
            let flat = high[g] == low[g];
            lines[g].scale = if flat { 0.0 } else { scale[g] };
            lines[g].min = if flat { low[g] } else { min[g] };
        }
        lines
    }

    /// Σwxq and Σwq² of each block, at the levels nearest to `x · inverse`.
    #[inline(always)]
    fn scale_sums(&self, inverse: &Side, nearest: impl Fn(f32) -> f32 + Copy) -> [Side; 2] {
        total(AtScale {
            blocks: self,
            inverse,
            nearest,
        })
    }
}

/// What is added up, for the elements of each block. (Closures would not be compiled for the caller's instruction
/// set.)
trait Terms<const K: usize>: Copy {
    /// What element `i` of each block contributes.
    fn of(self, i: usize) -> [Side; K];
}

/// Σw and Σwx of each block, with `x` counted from somewhere.
#[derive(Clone, Copy)]
struct FromMiddle<'a>(&'a Blocks, &'a Side);

impl Terms<2> for FromMiddle<'_> {
    #[inline(always)]
    fn of(self, i: usize) -> [Side; 2] {
        let (x, w) = (&self.0.x[i], &self.0.w[i]);
        let mut wx = [0.0; SIDE];
        for g in 0..SIDE {
            wx[g] = w[g] * (x[g] - self.1[g]);
        }
        [*w, wx]
    }
}

#[derive(Clone, Copy)]
struct AtScale<'a, F> {
    blocks: &'a Blocks,
    inverse: &'a Side,
    nearest: F,
}

impl<F: Fn(f32) -> f32 + Copy> Terms<2> for AtScale<'_, F> {
    #[inline(always)]
    fn of(self, i: usize) -> [Side; 2] {
        let (x, w) = (&self.blocks.x[i], &self.blocks.w[i]);
        let (mut xq, mut qq) = ([0.0; SIDE], [0.0; SIDE]);
        for g in 0..SIDE {
            let q = (self.nearest)(x[g] * self.inverse[g]);
            let wq = w[g] * q;
            xq[g] = wq * x[g];
            qq[g] = wq * q;
        }
        [xq, qq]
    }
}

/// Σwq, Σwq² and Σwxq of each block, at the levels nearest to `(x − from) · inverse`, with `x` counted from the
/// middle and `q` from its level.
#[derive(Clone, Copy)]
struct AtLine<'a> {
    blocks: &'a Blocks,
    from: &'a Side,
    inverse: &'a Side,
    middle: &'a Side,
    center: &'a Side,
    last: f32,
}

impl Terms<3> for AtLine<'_> {
    #[inline(always)]
    fn of(self, i: usize) -> [Side; 3] {
        let (x, w) = (&self.blocks.x[i], &self.blocks.w[i]);
        let (mut q1, mut qq, mut xq) = ([0.0; SIDE], [0.0; SIDE], [0.0; SIDE]);
        for g in 0..SIDE {
            let q = whole((x[g] - self.from[g]) * self.inverse[g], 0.0, self.last);
            let q = q - self.center[g];
            let wq = w[g] * q;
            q1[g] = wq;
            qq[g] = wq * q;
            xq[g] = wq * (x[g] - self.middle[g]);
        }
        [q1, qq, xq]
    }
}

/// The sums over all elements of each block, in halves, as [`super::scale_search`] adds up.
#[inline(always)]
fn total<const K: usize>(terms: impl Terms<K>) -> [Side; K] {
    let even = plus(eight(terms, 0), eight(terms, 2));
    let odd = plus(eight(terms, 1), eight(terms, 3));
    plus(even, odd)
}

/// Those of every fourth element.
#[inline(always)]
fn eight<const K: usize>(terms: impl Terms<K>, i: usize) -> [Side; K] {
    plus(four(terms, i), four(terms, i + 4))
}

#[inline(always)]
fn four<const K: usize>(terms: impl Terms<K>, i: usize) -> [Side; K] {
    plus(two(terms, i), two(terms, i + 8))
}

#[inline(always)]
fn two<const K: usize>(terms: impl Terms<K>, i: usize) -> [Side; K] {
    plus(terms.of(i), terms.of(i + 16))
}

#[inline(always)]
fn plus<const K: usize>(mut a: [Side; K], b: [Side; K]) -> [Side; K] {
    for (a, b) in a.iter_mut().zip(&b) {
        for g in 0..SIDE {
            a[g] += b[g];
        }
    }
    a
}

/// The best scales so far: what they gain, the moments at their levels, and where they were found.
struct Best {
    gain: Side,
    xq: Side,
    qq: Side,
    end: Side,
    k: Side,
}

impl Best {
    /// Tries the scales that take the largest elements `k` steps past `end`.
    #[inline(always)]
    fn attempt(
        &mut self,
        blocks: &Blocks,
        extreme: &Side,
        (end, k): (Side, Side),
        nearest: impl Fn(f32) -> f32 + Copy,
    ) {
        let mut inverse = [0.0; SIDE];
        for g in 0..SIDE {
            inverse[g] = (end[g] + step(end[g]) * k[g]) / extreme[g];
        }
        self.keep(blocks.scale_sums(&inverse, nearest), (end, k));
    }

    /// Takes over what is better.
    #[inline(always)]
    fn keep(&mut self, [xq, qq]: [Side; 2], (end, k): (Side, Side)) {
        for g in 0..SIDE {
            // The gain at the best scale for these levels.
            let gain = xq[g] * xq[g] / qq[g];
            let better = gain > self.gain[g];
            self.gain[g] = if better { gain } else { self.gain[g] };
            self.xq[g] = if better { xq[g] } else { self.xq[g] };
            self.qq[g] = if better { qq[g] } else { self.qq[g] };
            self.end[g] = if better { end[g] } else { self.end[g] };
            self.k[g] = if better { k[g] } else { self.k[g] };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::scale_search::best_scale;
    use crate::quant::testing::{ROUNDS, Random};
    use crate::quant::weighting::weights;

    /// In the order of the lanes' sums.
    fn sum(mut x: [f32; 32]) -> f32 {
        for len in [16, 8, 4, 2, 1] {
            for i in 0..len {
                x[i] += x[i + len];
            }
        }
        x[0]
    }

    fn line_alone(x: &[f32], w: &[f32; 32], last: f32) -> Line {
        let low = x.iter().fold(x[0], |m, x| m.min(*x));
        let range = x.iter().fold(low, |m, x| m.max(*x)) - low;
        let mut best = Line {
            scale: range / last,
            min: low,
        };
        if range == 0.0 {
            return best;
        }
        let sum_of = |f: &dyn Fn(usize) -> f32| sum(std::array::from_fn(f));
        let sum_w = sum(*w);
        let middle = sum_of(&|i| w[i] * x[i]) / sum_w;
        let sum_x = sum_of(&|i| w[i] * (x[i] - middle));
        let mut most = f32::NEG_INFINITY;
        for k in -STEPS..=STEPS + 3 {
            let (from, inverse) = if k > STEPS {
                (best.min, inverse_or_zero(best.scale))
            } else {
                (low, (last + 0.1 * k as f32) / range)
            };
            let level = |x: f32| whole((x - from) * inverse, 0.0, last);
            let center = level(middle);
            let q: [f32; 32] = std::array::from_fn(|i| level(x[i]) - center);
            let q1 = sum_of(&|i| w[i] * q[i]);
            let qq = sum_of(&|i| w[i] * q[i] * q[i]);
            let xq = sum_of(&|i| w[i] * q[i] * (x[i] - middle));
            let determinant = sum_w * qq - q1 * q1;
            let scale = (sum_w * xq - q1 * sum_x) / determinant;
            let above = (qq * sum_x - q1 * xq) / determinant;
            let gain = scale * (2.0 * xq - scale * qq - 2.0 * above * q1)
                + above * (2.0 * sum_x - above * sum_w);
            if gain > most && scale >= 0.0 && determinant > 0.0 {
                let min = middle + (above - scale * center);
                (best, most) = (Line { scale, min }, gain);
            }
        }
        best
    }

    /// What is on a line stays there, however unlike the inputs are, and wherever the line is.
    #[test]
    fn lines_are_found_again() {
        let mut random = Random::new(9);
        for round in 0..ROUNDS {
            let (scale, min) = (0.25 + random.normal().abs(), 3.0 * random.normal());
            let mut q: Vec<f32> = (0..32).map(|i| ((i * 7 + round) % 16) as f32).collect();
            q[round % 32] = [0.0, 15.0][round % 2];
            let x: Vec<f32> = q.iter().map(|q| scale * q + min).collect();
            let mut importance: Vec<f32> = random.normals(32).iter().map(|x| x * x).collect();
            importance[round % 32] = 1e6;
            let line = Blocks::weighted(&x, Some(&importance), 0).best_lines(15.0)[0];
            for (q, x) in q.iter().zip(&x) {
                let found = line.scale * q + line.min;
                assert!(
                    (found - x).abs() < 1e-4 * (scale + x.abs()),
                    "{round}: {found} {x}"
                );
            }
        }
    }

    /// Whatever lies beside a block, and however many blocks there are.
    #[test]
    fn blocks_side_by_side_are_blocks_alone() {
        let mut random = Random::new(5);
        for round in 0..ROUNDS {
            let mut x = random.normals(32 * SIDE - 32 * (round % 5));
            let mut importance: Vec<f32> = random.normals(96).iter().map(|x| x * x).collect();
            match round % 4 {
                0 => x[..40].fill(0.0),
                1 => x[7..60].fill(-1.5),
                2 => importance[..32].fill(0.0),
                _ => x.iter_mut().for_each(|x| *x = x.abs()),
            }
            let known = (round % 3 > 0).then_some(&importance[..]);
            let blocks = Blocks::weighted(&x, known, round);
            let nearest = |x| whole(x, -8.0, 7.0);
            let scales = blocks.best_scales(&[-8.0, 7.0], nearest);
            let lines = blocks.best_lines(15.0);
            for (g, x) in x.chunks(32).enumerate() {
                let w: [f32; 32] = weights(x, importance_of(known, round + g, 32));
                assert_eq!(w, blocks.w.map(|w| w[g]), "{round} {g}");
                let (scale, _) = best_scale(x, &w, &[-8.0, 7.0], nearest);
                assert_eq!(scales[g].to_bits(), scale.to_bits(), "{round} {g}");
                assert_eq!(lines[g], line_alone(x, &w, 15.0), "{round} {g}");
            }
        }
    }
}
