//! ggml's search for the scales of K-quants, used when no importance is known.
//!
//! Without importance, a more thorough search is not better on average. Repeating ggml's search
//! (`make_qkx2_quants`, `make_qx_quants` and `make_q3_quants` in `ggml-quants.c`) gives byte-identical files
//! that can be compared. Each vector lane is a group, as in [`super::block`].

use super::block::{AffineScales, Columns, PerGroup};
use super::scale::round_clamp;
use crate::quant::fields::F16Le;

/// Parameters of the search for the scale and the minimum of a group (`make_qkx2_quants`).
#[derive(Clone, Copy)]
pub(crate) struct AffineSearch {
    /// Highest level of a weight.
    pub(crate) max_level: f32,
    /// Highest sub-scale and minimum.
    pub(crate) max_scale: f32,
    /// Offset of the first tried range from `max_level`, in levels; further ranges are a tenth of a level
    /// apart.
    pub(crate) first: f32,
    /// Number of further ranges.
    pub(crate) steps: u8,
    /// True to minimize absolute errors, false to minimize squared errors.
    pub(crate) absolute: bool,
}

impl<const G: usize> AffineScales<G> {
    /// Fits groups of `N` elements of `x` with the error weights `w`.
    #[inline(always)]
    pub(crate) fn ggml_compat<const N: usize>(x: &[f32], w: &[f32], search: AffineSearch) -> Self {
        let (scales, mins) = best_affine(&Columns::<G, N>::new(x, w), search);
        let (d, scales) = sub_scales(scales, search.max_scale);
        let (dmin, mins) = sub_scales(mins, search.max_scale);
        AffineScales {
            d,
            dmin,
            scales,
            mins,
        }
    }
}

/// Quantizes scales to sub-scales: the largest becomes `max_scale`.
#[inline(always)]
fn sub_scales<const G: usize>(x: PerGroup<G>, max_scale: f32) -> (F16Le, [u8; G]) {
    let largest = x.iter().fold(0.0f32, |m, x| if *x > m { *x } else { m });
    let inverse = if largest > 0.0 {
        max_scale / largest
    } else {
        0.0
    };
    let sub_scales = x.map(|x| round_clamp(inverse * x, 0.0, max_scale) as u8);
    (F16Le::from_f32(largest / max_scale), sub_scales)
}

/// Returns the scale and the minimum of each group.
#[inline(always)]
fn best_affine<const G: usize, const N: usize>(
    columns: &Columns<G, N>,
    search: AffineSearch,
) -> (PerGroup<G>, PerGroup<G>) {
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
        inverse[g] = search.max_level / (high[g] + min[g]);
        scale[g] = 1.0 / inverse[g];
    }
    let initial_min = min;
    let mut least_error = columns.error((min, inverse), (scale, min), search);
    for step in 0..=search.steps {
        for g in 0..G {
            let range = search.first + 0.1 * f32::from(step) + search.max_level;
            // As in ggml, the range uses the best minimum so far.
            inverse[g] = range / (high[g] + min[g]);
        }
        let [q, qq, xq] = columns.affine_moments(min, inverse, search.max_level);
        // Linear regression, through the origin if the minimum would be negative.
        let (mut slope, mut new_min, mut valid) = ([0.0; G], [0.0; G], [false; G]);
        for g in 0..G {
            let determinant = sum_w[g] * qq[g] - q[g] * q[g];
            let regression = (sum_w[g] * xq[g] - sum_x[g] * q[g]) / determinant;
            new_min[g] = (q[g] * xq[g] - qq[g] * sum_x[g]) / determinant;
            slope[g] = if new_min[g] < 0.0 {
                xq[g] / qq[g]
            } else {
                regression
            };
            new_min[g] = if new_min[g] < 0.0 { 0.0 } else { new_min[g] };
            valid[g] = determinant > 0.0;
        }
        let error = columns.error((min, inverse), (slope, new_min), search);
        for g in 0..G {
            let better = valid[g] && error[g] < least_error[g];
            least_error[g] = if better { error[g] } else { least_error[g] };
            scale[g] = if better { slope[g] } else { scale[g] };
            min[g] = if better { new_min[g] } else { min[g] };
        }
    }
    for g in 0..G {
        let flat = high[g] == -initial_min[g];
        scale[g] = if flat { 0.0 } else { scale[g] };
        min[g] = if flat { initial_min[g] } else { min[g] };
    }
    (scale, min)
}

impl<const G: usize, const N: usize> Columns<G, N> {
    /// Returns the error of the levels nearest to `(x + min) · inverse` at a scale and a new minimum. It
    /// recomputes the levels: LLVM would vectorize loops that store them over elements, with groups far
    /// apart.
    #[inline(always)]
    fn error(
        &self,
        (min, inverse): (PerGroup<G>, PerGroup<G>),
        (scale, new_min): (PerGroup<G>, PerGroup<G>),
        search: AffineSearch,
    ) -> PerGroup<G> {
        let mut error = [0.0; G];
        for (x, w) in self.x.iter().zip(&self.w) {
            for g in 0..G {
                let q = round_clamp((x[g] + min[g]) * inverse[g], 0.0, search.max_level);
                let difference = scale[g] * q - new_min[g] - x[g];
                let cost = if search.absolute {
                    difference.abs()
                } else {
                    difference * difference
                };
                error[g] += w[g] * cost;
            }
        }
        error
    }

    /// Returns the element of largest magnitude of each group; 0 if it is negligible (ggml's
    /// `GROUP_MAX_EPS`).
    #[inline(always)]
    fn extremes(&self) -> PerGroup<G> {
        self.max_abs_signed()
            .map(|x| if x.abs() < 1e-15 { 0.0 } else { x })
    }
}

/// Returns `d` and sub-scales, `low` to `−low − 1`, of groups of 16 with levels `lowest..−lowest`: the best
/// of nineteen scales per group (`make_qx_quants`). Errors are weighted by the squares of the elements.
#[inline(always)]
pub(crate) fn stepped_scales(x: &[f32], lowest: f32, low: f32) -> (F16Le, [i32; 16]) {
    let columns = squared(x);
    let extremes = columns.extremes();
    let (mut scale, mut best) = ([0.0; 16], [f32::NEG_INFINITY; 16]);
    // The default scale first: another has to be better.
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
    signed_sub_scales(zero_where_flat(scale, extremes), low)
}

/// Like [`stepped_scales`], but optimizes each level given all others, in up to five passes
/// (`make_q3_quants`).
#[inline(always)]
pub(crate) fn refined_scales(x: &[f32], lowest: f32, low: f32) -> (F16Le, [i32; 16]) {
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
                // The sums without this element, and with it at the level that fits the others.
                let rest_xq = xq[g] - w * x * q[g];
                let rest_qq = qq[g] - w * q[g] * q[g];
                let new_level = round_clamp(x * rest_qq / rest_xq, lowest, -lowest - 1.0);
                let (new_xq, new_qq) = (
                    rest_xq + w * x * new_level,
                    rest_qq + w * new_level * new_level,
                );
                let gains = new_xq * new_xq * qq[g] > xq[g] * xq[g] * new_qq;
                let better = rest_xq > 0.0 && new_level != q[g] && new_qq > 0.0 && gains;
                q[g] = if better { new_level } else { q[g] };
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
    signed_sub_scales(zero_where_flat(scale, extremes), low)
}

/// Returns sixteen groups of sixteen elements, weighted by the squares of the elements.
#[inline(always)]
fn squared(x: &[f32]) -> Columns<16, 16> {
    let mut w = [0.0; 256];
    for (w, x) in w.iter_mut().zip(x) {
        *w = x * x;
    }
    Columns::new(x, &w)
}

impl Columns<16, 16> {
    /// Returns the levels of `lowest..−lowest` nearest to `x · inverse`.
    #[inline(always)]
    fn signed_levels(&self, inverse: PerGroup<16>, lowest: f32) -> [PerGroup<16>; 16] {
        let mut levels = [[0.0; 16]; 16];
        for (q, x) in levels.iter_mut().zip(&self.x) {
            for g in 0..16 {
                q[g] = round_clamp(inverse[g] * x[g], lowest, -lowest - 1.0);
            }
        }
        levels
    }

    /// Returns Σwxq and Σwq² of each group at the levels of [`signed_levels`](Self::signed_levels).
    #[inline(always)]
    fn sums(&self, inverse: PerGroup<16>, lowest: f32) -> (PerGroup<16>, PerGroup<16>) {
        let (mut xq, mut qq) = ([0.0; 16], [0.0; 16]);
        for (x, w) in self.x.iter().zip(&self.w) {
            for g in 0..16 {
                let q = round_clamp(inverse[g] * x[g], lowest, -lowest - 1.0);
                xq[g] += w[g] * x[g] * q;
                qq[g] += w[g] * q * q;
            }
        }
        (xq, qq)
    }
}

#[inline(always)]
fn zero_where_flat(mut scale: PerGroup<16>, extremes: PerGroup<16>) -> PerGroup<16> {
    for g in 0..16 {
        scale[g] = if extremes[g] == 0.0 { 0.0 } else { scale[g] };
    }
    scale
}

/// Quantizes scales to sub-scales, `low` to `−low − 1`: the one of largest magnitude becomes `low`.
#[inline(always)]
fn signed_sub_scales(scales: PerGroup<16>, low: f32) -> (F16Le, [i32; 16]) {
    let largest = super::scale::max_abs_signed(&scales);
    if largest == 0.0 {
        return (F16Le::from_f32(0.0), [0; 16]);
    }
    let inverse = low / largest;
    let sub_scales = scales.map(|scale| round_clamp(inverse * scale, low, -low - 1.0) as i32);
    (F16Le::from_f32(1.0 / inverse), sub_scales)
}

#[cfg(test)]
mod tests {
    use crate::quant::testing::Random;
    use crate::quant::{TensorType, quantize};

    /// FNV-1a hashes of the bytes that llama.cpp's quantizer writes for the same floats, some of which are
    /// zeros and some all equal.
    #[test]
    fn k_quants_match_llama_cpp() {
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
