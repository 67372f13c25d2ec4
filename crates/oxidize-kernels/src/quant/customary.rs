//! Scales as everybody else's quantiser chooses them: what the K-quants do where no importance is known.
//!
//! Then nothing says which errors matter, and a search that goes further ends now better, now worse,
//! as chance will have it. Choosing what others choose makes the same weights of the same floats, so
//! that files can be compared. A lane is a group, as in [`super::block_search`].

use super::block_search::{Columns, Lane, Lines};
use super::fields::F16Le;
use super::scale_search::whole;

/// How the line of a group is looked for.
#[derive(Clone, Copy)]
pub(super) struct LineSearch {
    /// The highest level of a weight, and of a scale.
    pub(super) last: f32,
    pub(super) last_scale: f32,
    /// Ranges are tried from so many levels more than `last` on, a tenth of a level apart.
    pub(super) first: f32,
    pub(super) steps: u8,
    /// Whether errors count by their magnitude, not by its square.
    pub(super) absolute: bool,
}

impl<const G: usize> Lines<G> {
    /// The lines of groups of `N` elements of `x` with the weights `w`.
    #[inline(always)]
    pub(super) fn customary<const N: usize>(x: &[f32], w: &[f32], search: LineSearch) -> Self {
        let (scales, mins) = lines(&Columns::<G, N>::new(x, w), search);
        let (d, scales) = shares(scales, search.last_scale);
        let (dmin, mins) = shares(mins, search.last_scale);
        Lines {
            d,
            dmin,
            scales,
            mins,
        }
    }
}

/// Numbers in units of the largest one's `last`-th part.
#[inline(always)]
fn shares<const G: usize>(x: Lane<G>, last: f32) -> (F16Le, [u8; G]) {
    let largest = x.iter().fold(0.0f32, |m, x| if *x > m { *x } else { m });
    let inverse = if largest > 0.0 { last / largest } else { 0.0 };
    let shares = x.map(|x| whole(inverse * x, 0.0, last) as u8);
    (F16Le::from_f32(largest / last), shares)
}

/// The scale and the minimum of each group.
#[inline(always)]
fn lines<const G: usize, const N: usize>(
    columns: &Columns<G, N>,
    search: LineSearch,
) -> (Lane<G>, Lane<G>) {
    let (mut low, mut high) = (columns.x[0], columns.x[0]);
    let (mut sum_w, mut sum_x) = ([0.0; G], [0.0; G]);
    for (x, w) in columns.x.iter().zip(&columns.w) {
        for g in 0..G {
            low[g] = if x[g] < low[g] { x[g] } else { low[g] };
            high[g] = if x[g] > high[g] { x[g] } else { high[g] };
            sum_w[g] += w[g];
            sum_x[g] += w[g] * x[g];
        }
    }
    let (mut min, mut scale, mut inverse) = ([0.0; G], [0.0; G], [0.0; G]);
    for g in 0..G {
        min[g] = if low[g] > 0.0 { 0.0 } else { -low[g] };
        inverse[g] = search.last / (high[g] + min[g]);
        scale[g] = 1.0 / inverse[g];
    }
    let plain = min;
    let mut least = columns.error((min, inverse), (scale, min), search);
    for step in 0..=search.steps {
        for g in 0..G {
            let range = search.first + 0.1 * f32::from(step) + search.last;
            // What has been found so far is the range from here on.
            inverse[g] = range / (high[g] + min[g]);
        }
        let [q, qq, xq] = columns.line_moments(min, inverse, search.last);
        // The regression line, through the origin if its minimum would be negative.
        let (mut slope, mut below, mut is_line) = ([0.0; G], [0.0; G], [false; G]);
        for g in 0..G {
            let determinant = sum_w[g] * qq[g] - q[g] * q[g];
            let line = (sum_w[g] * xq[g] - sum_x[g] * q[g]) / determinant;
            below[g] = (q[g] * xq[g] - qq[g] * sum_x[g]) / determinant;
            slope[g] = if below[g] < 0.0 { xq[g] / qq[g] } else { line };
            below[g] = if below[g] < 0.0 { 0.0 } else { below[g] };
            is_line[g] = determinant > 0.0;
        }
        let error = columns.error((min, inverse), (slope, below), search);
        for g in 0..G {
            let better = is_line[g] && error[g] < least[g];
            least[g] = if better { error[g] } else { least[g] };
            scale[g] = if better { slope[g] } else { scale[g] };
            min[g] = if better { below[g] } else { min[g] };
        }
    }
    for g in 0..G {
        let flat = high[g] == -plain[g];
        scale[g] = if flat { 0.0 } else { scale[g] };
        min[g] = if flat { plain[g] } else { min[g] };
    }
    (scale, min)
}

impl<const G: usize, const N: usize> Columns<G, N> {
    /// What the levels nearest to `(x + min) · inverse` miss at the line `(scale, below)`. They are computed
    /// again: loops that store them would be vectorised over elements, with groups far apart.
    #[inline(always)]
    fn error(
        &self,
        (min, inverse): (Lane<G>, Lane<G>),
        (scale, below): (Lane<G>, Lane<G>),
        search: LineSearch,
    ) -> Lane<G> {
        let mut error = [0.0; G];
        for (x, w) in self.x.iter().zip(&self.w) {
            for g in 0..G {
                let q = whole((x[g] + min[g]) * inverse[g], 0.0, search.last);
                let miss = scale[g] * q - below[g] - x[g];
                let miss = if search.absolute {
                    miss.abs()
                } else {
                    miss * miss
                };
                error[g] += w[g] * miss;
            }
        }
        error
    }

    /// The element of largest magnitude of each group; 0 where all are as good as zero.
    #[inline(always)]
    fn extremes(&self) -> Lane<G> {
        self.largest()
            .map(|x| if x.abs() < 1e-15 { 0.0 } else { x })
    }
}

/// Scales of groups of 16 in units of one `d`, `low` to `−low − 1` of them: the best of nineteen scales of each
/// group, whose levels are of `lowest..−lowest`. Errors count by the squares of the elements.
#[inline(always)]
pub(super) fn stepped_scales(x: &[f32], lowest: f32, low: f32) -> (F16Le, [i32; 16]) {
    let columns = squared(x);
    let extremes = columns.extremes();
    let (mut scale, mut best) = ([0.0; 16], [f32::NEG_INFINITY; 16]);
    // The plain one first: another has to be better.
    for step in [0].into_iter().chain(-9..0).chain(1..=9) {
        let mut inverse = [0.0; 16];
        for g in 0..16 {
            inverse[g] = -(-lowest + 0.1 * step as f32) / extremes[g];
        }
        let (xq, qq) = columns.sums(inverse, lowest);
        for g in 0..16 {
            let better = step == 0 || qq[g] > 0.0 && xq[g] * xq[g] > best[g] * qq[g];
            let fitted = if qq[g] == 0.0 { 0.0 } else { xq[g] / qq[g] };
            scale[g] = if better { fitted } else { scale[g] };
            best[g] = if better { fitted * xq[g] } else { best[g] };
        }
    }
    in_units(zero_where_flat(scale, extremes), low)
}

/// The same with the scale that is best once every level has been chosen anew given all others, up to five times.
#[inline(always)]
pub(super) fn refined_scales(x: &[f32], lowest: f32, low: f32) -> (F16Le, [i32; 16]) {
    let columns = squared(x);
    let extremes = columns.extremes();
    let mut inverse = [0.0; 16];
    for g in 0..16 {
        inverse[g] = lowest / extremes[g];
    }
    let mut levels = columns.signed_levels(inverse, lowest);
    let (mut xq, mut qq) = columns.sums(inverse, lowest);
    for _ in 0..5 {
        let mut changed = false;
        for ((q, x), w) in levels.iter_mut().zip(&columns.x).zip(&columns.w) {
            for g in 0..16 {
                let (x, w) = (x[g], w[g]);
                // Without this element, and with it at the level that would fit the others.
                let rest_xq = xq[g] - w * x * q[g];
                let rest_qq = qq[g] - w * q[g] * q[g];
                let other = whole(x * rest_qq / rest_xq, lowest, -lowest - 1.0);
                let (new_xq, new_qq) = (rest_xq + w * x * other, rest_qq + w * other * other);
                let gains = new_xq * new_xq * qq[g] > xq[g] * xq[g] * new_qq;
                let better = rest_xq > 0.0 && other != q[g] && new_qq > 0.0 && gains;
                q[g] = if better { other } else { q[g] };
                xq[g] = if better { new_xq } else { xq[g] };
                qq[g] = if better { new_qq } else { qq[g] };
                changed |= better;
            }
        }
        if !changed {
            break;
        }
    }
    let mut scale = [0.0; 16];
    for g in 0..16 {
        scale[g] = if qq[g] > 0.0 { xq[g] / qq[g] } else { 0.0 };
    }
    in_units(zero_where_flat(scale, extremes), low)
}

/// Sixteen groups of sixteen, weighted by their squares.
#[inline(always)]
fn squared(x: &[f32]) -> Columns<16, 16> {
    let mut w = [0.0; 256];
    for (w, x) in w.iter_mut().zip(x) {
        *w = x * x;
    }
    Columns::new(x, &w)
}

impl Columns<16, 16> {
    /// The levels of `lowest..−lowest` nearest to `x · inverse`.
    #[inline(always)]
    fn signed_levels(&self, inverse: Lane<16>, lowest: f32) -> [Lane<16>; 16] {
        let mut levels = [[0.0; 16]; 16];
        for (q, x) in levels.iter_mut().zip(&self.x) {
            for g in 0..16 {
                q[g] = whole(inverse[g] * x[g], lowest, -lowest - 1.0);
            }
        }
        levels
    }

    /// Σwxq and Σwq² of each group at those levels.
    #[inline(always)]
    fn sums(&self, inverse: Lane<16>, lowest: f32) -> (Lane<16>, Lane<16>) {
        let (mut xq, mut qq) = ([0.0; 16], [0.0; 16]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for g in 0..16 {
                let q = whole(inverse[g] * x[g], lowest, -lowest - 1.0);
                xq[g] += w[g] * x[g] * q;
                qq[g] += w[g] * q * q;
            }
        }
        (xq, qq)
    }
}

#[inline(always)]
fn zero_where_flat(mut scale: Lane<16>, extremes: Lane<16>) -> Lane<16> {
    for g in 0..16 {
        scale[g] = if extremes[g] == 0.0 { 0.0 } else { scale[g] };
    }
    scale
}

/// Scales as multiples, `low` to `−low − 1`, of one `d`: `low` is that of the largest.
#[inline(always)]
fn in_units(scales: Lane<16>, low: f32) -> (F16Le, [i32; 16]) {
    let largest = super::scale_search::largest(&scales);
    if largest == 0.0 {
        return (F16Le::from_f32(0.0), [0; 16]);
    }
    let inverse = low / largest;
    let multiples = scales.map(|scale| whole(inverse * scale, low, -low - 1.0) as i32);
    (F16Le::from_f32(1.0 / inverse), multiples)
}

#[cfg(test)]
mod tests {
    use crate::quant::testing::Random;
    use crate::quant::{TensorType, quantize};

    /// The bytes that llama.cpp's quantiser makes of the same floats, as their FNV-1a hash. Some are zeros,
    /// some all alike.
    #[test]
    fn blocks_are_those_of_llama_cpp() {
        let mut floats = Random::new(11).normals(2048);
        floats[256..288].fill(0.0);
        floats[512..544].fill(1.5);
        for (ty, expected) in [
            (TensorType::Q2_K, 0x9665_9fd0_a897_244d),
            (TensorType::Q3_K, 0x4a9d_97cd_5518_6bae),
            (TensorType::Q4_K, 0x2708_a27f_fcc3_74c1),
            (TensorType::Q5_K, 0x0f6a_63ab_1bf9_002b),
            (TensorType::Q6_K, 0x47d8_2352_e9ee_6d7a_u64),
        ] {
            let mut bytes = vec![0; ty.bytes_for(2048).unwrap() as usize];
            quantize(ty, &floats, &mut bytes).unwrap();
            let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            assert_eq!(hash, expected, "{ty}");
        }
    }
}
