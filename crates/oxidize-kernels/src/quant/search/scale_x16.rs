//! Search for the scales and minimums of sixteen blocks of 32 elements at once.
//!
//! Each vector lane is a block, so no sum runs over lanes. The result is bit-identical to that of
//! [`super::scale`] for each block.

use super::block::{Columns, PerGroup};
use super::scale::{STEPS, inverse_or_zero, round_clamp, step};
use crate::quant::{Quantize, block_importance};

/// Blocks per vector.
pub(crate) const LANES: usize = 16;

/// Up to sixteen blocks and their error weights; unused lanes are zeros.
pub(crate) type Blocks = Columns<LANES, 32>;

/// One number per block.
type PerBlock = PerGroup<LANES>;

/// Scale, not negative, and minimum of a block: an element is `scale · q + min` with `q` in `0..=max_level`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Affine {
    pub(crate) scale: f32,
    pub(crate) min: f32,
}

/// Quantizes a single block of a format whose search handles several at once.
#[inline(always)]
pub(crate) fn quantize_single<B: Quantize>(src: &[f32], importance: Option<&[f32]>) -> B {
    let mut block = [B::zeroed()];
    B::quantize_blocks(src, importance, &mut block);
    block[0]
}

impl Blocks {
    /// Returns the blocks of `src` with their error weights. `first` is the number of the first block, which
    /// locates it within `importance`.
    #[inline(always)]
    pub(crate) fn weighted(src: &[f32], importance: Option<&[f32]>, first: usize) -> Blocks {
        let mut blocks = Columns {
            x: [[0.0; LANES]; 32],
            w: [[1.0; LANES]; 32],
        };
        for (g, src) in src.chunks_exact(32).enumerate() {
            for (x, src) in blocks.x.iter_mut().zip(src) {
                x[g] = *src;
            }
            if let Some(known) = block_importance(importance, first + g, 32) {
                for (w, known) in blocks.w.iter_mut().zip(known) {
                    w[g] = *known;
                }
            }
        }
        blocks.apply_error_weights();
        blocks
    }

    /// Turns importance into error weights, as [`error_weights`](crate::quant::error_weights::error_weights)
    /// does.
    #[inline(always)]
    fn apply_error_weights(&mut self) {
        let (mut squares, mut largest) = ([0.0; LANES], [0.0; LANES]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for g in 0..LANES {
                squares[g] += x[g] * x[g];
                largest[g] = if w[g] > largest[g] { w[g] } else { largest[g] };
            }
        }
        for (x, w) in self.x.iter().zip(&mut self.w) {
            for g in 0..LANES {
                let weight = (squares[g] / 32.0 + x[g] * x[g]).sqrt();
                // All zeros means no data.
                w[g] = weight * if largest[g] > 0.0 { w[g] } else { 1.0 };
            }
        }
    }

    /// Returns the scales that [`super::scale::best_scale`] finds.
    #[inline(always)]
    pub(crate) fn best_scales(
        &self,
        ends: &[f32],
        nearest: impl Fn(f32) -> f32 + Copy,
    ) -> PerBlock {
        let zero = [0.0; LANES];
        let extreme = self.max_abs_signed();
        let mut best = Best {
            gain: zero,
            xq: zero,
            qq: zero,
            end: zero,
            k: zero,
        };
        for &end in ends {
            for k in (-STEPS..=STEPS).step_by(3) {
                best.attempt(self, &extreme, ([end; LANES], [k as f32; LANES]), nearest);
            }
        }
        let (end, coarse) = (best.end, best.k);
        for offset in [-2.0, -1.0, 1.0, 2.0] {
            best.attempt(self, &extreme, (end, coarse.map(|k| k + offset)), nearest);
        }
        let search_gain = best.gain;
        for _ in 0..2 {
            let mut inverse = zero;
            for g in 0..LANES {
                inverse[g] = best.qq[g] / best.xq[g];
            }
            best.keep(self.moments_at(&inverse, nearest), (end, coarse));
        }
        let first_end = ends.first().map_or(f32::INFINITY, |end| *end);
        let mut scales = zero;
        for g in 0..LANES {
            let scale = if search_gain[g] == 0.0 {
                extreme[g] / first_end
            } else {
                best.xq[g] / best.qq[g]
            };
            scales[g] = if extreme[g] == 0.0 { 0.0 } else { scale };
        }
        scales
    }

    /// Returns the scales and minimums for which `scale · q + min` is closest to `x`. The search tries scales
    /// that split the range into a little more or less than `max_level` parts and refits them to the
    /// resulting levels.
    ///
    /// One input may be a million times as important as its neighbors, and `f32` has seven digits. So
    /// elements and levels are relative to the weighted mean, where such an input contributes little to the
    /// sums.
    #[inline(always)]
    pub(crate) fn best_affine(&self, max_level: f32) -> [Affine; LANES] {
        let zero = [0.0; LANES];
        let (mut low, mut high) = (self.x[0], self.x[0]);
        for x in &self.x {
            for g in 0..LANES {
                low[g] = if x[g] < low[g] { x[g] } else { low[g] };
                high[g] = if x[g] > high[g] { x[g] } else { high[g] };
            }
        }
        let [sum_w, sum_x] = total(CenteredTerms(self, &zero));
        let mut mean = zero;
        for g in 0..LANES {
            mean[g] = sum_x[g] / sum_w[g];
        }
        let [_, sum_x] = total(CenteredTerms(self, &mean));
        let (mut scale, mut min, mut best_gain) = (zero, low, [f32::NEG_INFINITY; LANES]);
        for g in 0..LANES {
            scale[g] = (high[g] - low[g]) / max_level;
        }
        for k in -STEPS..STEPS + 4 {
            // The last three steps try the scale and minimum that fit the best levels so far.
            let refine = k > STEPS;
            let (mut start, mut inverse, mut mean_level) = (zero, zero, zero);
            for g in 0..LANES {
                let range = (max_level + 0.1 * k as f32) / (high[g] - low[g]);
                inverse[g] = if refine {
                    inverse_or_zero(scale[g])
                } else {
                    range
                };
                start[g] = if refine { min[g] } else { low[g] };
                mean_level[g] = round_clamp((mean[g] - start[g]) * inverse[g], 0.0, max_level);
            }
            let [q, qq, xq] = total(AffineTerms {
                blocks: self,
                start: &start,
                inverse: &inverse,
                mean: &mean,
                mean_level: &mean_level,
                max_level,
            });
            for g in 0..LANES {
                let (w, x, q, qq, xq) = (sum_w[g], sum_x[g], q[g], qq[g], xq[g]);
                let determinant = w * qq - q * q;
                let slope = (w * xq - q * x) / determinant;
                let offset = (qq * x - q * xq) / determinant;
                let gain = slope * (2.0 * xq - slope * qq - 2.0 * offset * q)
                    + offset * (2.0 * x - offset * w);
                let better = gain > best_gain[g] && slope >= 0.0 && determinant > 0.0;
                best_gain[g] = if better { gain } else { best_gain[g] };
                scale[g] = if better { slope } else { scale[g] };
                let fitted_min = mean[g] + (offset - slope * mean_level[g]);
                min[g] = if better { fitted_min } else { min[g] };
            }
        }
        let mut fits = [Affine::default(); LANES];
        for g in 0..LANES {
            let flat = high[g] == low[g];
            fits[g].scale = if flat { 0.0 } else { scale[g] };
            fits[g].min = if flat { low[g] } else { min[g] };
        }
        fits
    }

    /// Returns Σwxq and Σwq² of each block at the levels nearest to `x · inverse`.
    #[inline(always)]
    fn moments_at(&self, inverse: &PerBlock, nearest: impl Fn(f32) -> f32 + Copy) -> [PerBlock; 2] {
        total(ScaleTerms {
            blocks: self,
            inverse,
            nearest,
        })
    }
}

/// Summands of [`total`]. Not closures, which would not be compiled for the caller's instruction set.
trait Terms<const K: usize>: Copy {
    /// Returns the terms of element `i` of each block.
    fn of(self, i: usize) -> [PerBlock; K];
}

/// Terms of Σw and Σw(x − origin).
#[derive(Clone, Copy)]
struct CenteredTerms<'a>(&'a Blocks, &'a PerBlock);

impl Terms<2> for CenteredTerms<'_> {
    #[inline(always)]
    fn of(self, i: usize) -> [PerBlock; 2] {
        let (x, w) = (&self.0.x[i], &self.0.w[i]);
        let mut wx = [0.0; LANES];
        for g in 0..LANES {
            wx[g] = w[g] * (x[g] - self.1[g]);
        }
        [*w, wx]
    }
}

/// Terms of Σwxq and Σwq² at the levels nearest to `x · inverse`.
#[derive(Clone, Copy)]
struct ScaleTerms<'a, F> {
    blocks: &'a Blocks,
    inverse: &'a PerBlock,
    nearest: F,
}

impl<F: Fn(f32) -> f32 + Copy> Terms<2> for ScaleTerms<'_, F> {
    #[inline(always)]
    fn of(self, i: usize) -> [PerBlock; 2] {
        let (x, w) = (&self.blocks.x[i], &self.blocks.w[i]);
        let (mut xq, mut qq) = ([0.0; LANES], [0.0; LANES]);
        for g in 0..LANES {
            let q = (self.nearest)(x[g] * self.inverse[g]);
            let wq = w[g] * q;
            xq[g] = wq * x[g];
            qq[g] = wq * q;
        }
        [xq, qq]
    }
}

/// Terms of Σwq, Σwq² and Σwxq at the levels nearest to `(x − start) · inverse`, with `x` relative to the
/// mean and `q` relative to the level of the mean.
#[derive(Clone, Copy)]
struct AffineTerms<'a> {
    blocks: &'a Blocks,
    start: &'a PerBlock,
    inverse: &'a PerBlock,
    mean: &'a PerBlock,
    mean_level: &'a PerBlock,
    max_level: f32,
}

impl Terms<3> for AffineTerms<'_> {
    #[inline(always)]
    fn of(self, i: usize) -> [PerBlock; 3] {
        let (x, w) = (&self.blocks.x[i], &self.blocks.w[i]);
        let (mut q1, mut qq, mut xq) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for g in 0..LANES {
            let q = round_clamp(
                (x[g] - self.start[g]) * self.inverse[g],
                0.0,
                self.max_level,
            );
            let q = q - self.mean_level[g];
            let wq = w[g] * q;
            q1[g] = wq;
            qq[g] = wq * q;
            xq[g] = wq * (x[g] - self.mean[g]);
        }
        [q1, qq, xq]
    }
}

/// Returns the sums over all elements of each block, in the summation order of [`super::scale`].
#[inline(always)]
fn total<const K: usize>(terms: impl Terms<K>) -> [PerBlock; K] {
    let even = plus(sum_8(terms, 0), sum_8(terms, 2));
    let odd = plus(sum_8(terms, 1), sum_8(terms, 3));
    plus(even, odd)
}

/// Returns the sums over every fourth element from `i`.
#[inline(always)]
fn sum_8<const K: usize>(terms: impl Terms<K>, i: usize) -> [PerBlock; K] {
    plus(sum_4(terms, i), sum_4(terms, i + 4))
}

#[inline(always)]
fn sum_4<const K: usize>(terms: impl Terms<K>, i: usize) -> [PerBlock; K] {
    plus(sum_2(terms, i), sum_2(terms, i + 8))
}

#[inline(always)]
fn sum_2<const K: usize>(terms: impl Terms<K>, i: usize) -> [PerBlock; K] {
    plus(terms.of(i), terms.of(i + 16))
}

#[inline(always)]
fn plus<const K: usize>(mut a: [PerBlock; K], b: [PerBlock; K]) -> [PerBlock; K] {
    for (a, b) in a.iter_mut().zip(&b) {
        for g in 0..LANES {
            a[g] += b[g];
        }
    }
    a
}

/// Error reduction, moments, end level and step of the best scales so far.
struct Best {
    gain: PerBlock,
    xq: PerBlock,
    qq: PerBlock,
    end: PerBlock,
    k: PerBlock,
}

impl Best {
    /// Tries the scales that map the extreme elements to `k` steps past `end`.
    #[inline(always)]
    fn attempt(
        &mut self,
        blocks: &Blocks,
        extreme: &PerBlock,
        (end, k): (PerBlock, PerBlock),
        nearest: impl Fn(f32) -> f32 + Copy,
    ) {
        let mut inverse = [0.0; LANES];
        for g in 0..LANES {
            inverse[g] = (end[g] + step(end[g]) * k[g]) / extreme[g];
        }
        self.keep(blocks.moments_at(&inverse, nearest), (end, k));
    }

    /// Replaces the blocks for which the new levels are better.
    #[inline(always)]
    fn keep(&mut self, [xq, qq]: [PerBlock; 2], (end, k): (PerBlock, PerBlock)) {
        for g in 0..LANES {
            // Error reduction at the best scale for these levels.
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
    use crate::quant::error_weights::error_weights;
    use crate::quant::search::scale::best_scale;
    use crate::quant::testing::{ROUNDS, Random};

    /// Sums in the order of [`total`].
    fn sum(mut x: [f32; 32]) -> f32 {
        for len in [16, 8, 4, 2, 1] {
            for i in 0..len {
                x[i] += x[i + len];
            }
        }
        x[0]
    }

    /// Scalar reference of [`Blocks::best_affine`] for one block.
    fn reference_affine(x: &[f32], w: &[f32; 32], max_level: f32) -> Affine {
        let low = x.iter().fold(x[0], |m, x| m.min(*x));
        let range = x.iter().fold(low, |m, x| m.max(*x)) - low;
        let mut best = Affine {
            scale: range / max_level,
            min: low,
        };
        if range == 0.0 {
            return best;
        }
        let sum_of = |f: &dyn Fn(usize) -> f32| sum(std::array::from_fn(f));
        let sum_w = sum(*w);
        let mean = sum_of(&|i| w[i] * x[i]) / sum_w;
        let sum_x = sum_of(&|i| w[i] * (x[i] - mean));
        let mut best_gain = f32::NEG_INFINITY;
        for k in -STEPS..=STEPS + 3 {
            let (start, inverse) = if k > STEPS {
                (best.min, inverse_or_zero(best.scale))
            } else {
                (low, (max_level + 0.1 * k as f32) / range)
            };
            let level = |x: f32| round_clamp((x - start) * inverse, 0.0, max_level);
            let mean_level = level(mean);
            let q: [f32; 32] = std::array::from_fn(|i| level(x[i]) - mean_level);
            let q1 = sum_of(&|i| w[i] * q[i]);
            let qq = sum_of(&|i| w[i] * q[i] * q[i]);
            let xq = sum_of(&|i| w[i] * q[i] * (x[i] - mean));
            let determinant = sum_w * qq - q1 * q1;
            let scale = (sum_w * xq - q1 * sum_x) / determinant;
            let offset = (qq * sum_x - q1 * xq) / determinant;
            let gain = scale * (2.0 * xq - scale * qq - 2.0 * offset * q1)
                + offset * (2.0 * sum_x - offset * sum_w);
            if gain > best_gain && scale >= 0.0 && determinant > 0.0 {
                let min = mean + (offset - scale * mean_level);
                (best, best_gain) = (Affine { scale, min }, gain);
            }
        }
        best
    }

    /// Exactly representable elements are recovered for any importance, scale and minimum.
    #[test]
    fn best_affine_recovers_exact_fit() {
        let mut random = Random::new(9);
        for round in 0..ROUNDS {
            let (scale, min) = (0.25 + random.normal().abs(), 3.0 * random.normal());
            let mut q: Vec<f32> = (0..32).map(|i| ((i * 7 + round) % 16) as f32).collect();
            q[round % 32] = [0.0, 15.0][round % 2];
            let x: Vec<f32> = q.iter().map(|q| scale * q + min).collect();
            let mut importance: Vec<f32> = random.normals(32).iter().map(|x| x * x).collect();
            importance[round % 32] = 1e6;
            let fit = Blocks::weighted(&x, Some(&importance), 0).best_affine(15.0)[0];
            for (q, x) in q.iter().zip(&x) {
                let found = fit.scale * q + fit.min;
                assert!(
                    (found - x).abs() < 1e-4 * (scale + x.abs()),
                    "{round}: {found} {x}"
                );
            }
        }
    }

    /// The result for a block does not depend on the other blocks or on their number.
    #[test]
    fn sixteen_blocks_match_single_blocks() {
        let mut random = Random::new(5);
        for round in 0..ROUNDS {
            let mut x = random.normals(32 * LANES - 32 * (round % 5));
            let mut importance: Vec<f32> = random.normals(96).iter().map(|x| x * x).collect();
            match round % 4 {
                0 => x[..40].fill(0.0),
                1 => x[7..60].fill(-1.5),
                2 => importance[..32].fill(0.0),
                _ => x.iter_mut().for_each(|x| *x = x.abs()),
            }
            let known = (round % 3 > 0).then_some(&importance[..]);
            let blocks = Blocks::weighted(&x, known, round);
            let nearest = |x| round_clamp(x, -8.0, 7.0);
            let scales = blocks.best_scales(&[-8.0, 7.0], nearest);
            let fits = blocks.best_affine(15.0);
            for (g, x) in x.chunks(32).enumerate() {
                let w: [f32; 32] = error_weights(x, block_importance(known, round + g, 32));
                assert_eq!(w, blocks.w.map(|w| w[g]), "{round} {g}");
                let (scale, _) = best_scale(x, &w, &[-8.0, 7.0], nearest);
                assert_eq!(scales[g].to_bits(), scale.to_bits(), "{round} {g}");
                assert_eq!(fits[g], reference_affine(x, &w, 15.0), "{round} {g}");
            }
        }
    }
}
