//! IQ4_NL: 32 weights of 4 bits with 16 non-uniform levels.
//!
//! `w = d · level[q]`. Nibbles are packed as in Q4_0.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::packing::{nibbles, pack_nibbles, scale_into};
use super::q8_0::Q8_0;
use super::search::scale::inverse_or_zero;
use super::search::scale_x16::{Blocks, LANES, quantize_single};
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ4_NL {
    /// Scale.
    pub d: F16Le,
    /// Two weights per byte.
    pub qs: [u8; 16],
}

assert_layout!(IQ4_NL, 18);

/// Levels of IQ4_NL and IQ4_XS, indexed by a nibble.
pub const LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Lowest and highest level.
pub(super) const ENDS: [f32; 2] = [LEVELS[0] as f32, LEVELS[15] as f32];

impl IQ4_NL {
    /// Returns the weights in units of `d`.
    #[inline(always)]
    fn levels(&self) -> [i8; 32] {
        nibbles(&self.qs).map(|q| LEVELS[usize::from(q & 15)])
    }
}

impl Block for IQ4_NL {
    const TYPE: TensorType = TensorType::IQ4_NL;
    const LEN: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        scale_into(out, self.d.to_f32(), &self.levels());
    }
}

impl Dot for IQ4_NL {
    type Activation = Q8_0;

    #[inline]
    fn dot(&self, activations: &[Q8_0]) -> f32 {
        let a = &activations[0];
        self.d.to_f32() * a.d.to_f32() * a.dot_levels(&self.levels()) as f32
    }
}

impl Quantize for IQ4_NL {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        quantize_single(src, importance)
    }

    #[inline(always)]
    fn quantize_blocks(src: &[f32], importance: Option<&[f32]>, out: &mut [Self]) {
        for (n, (out, src)) in out
            .chunks_mut(LANES)
            .zip(src.chunks(32 * LANES))
            .enumerate()
        {
            let blocks = Blocks::weighted(src, importance, n * LANES);
            let scales = blocks.best_scales(&ENDS, nearest);
            for ((block, src), d) in out.iter_mut().zip(src.chunks_exact(32)).zip(scales) {
                let d = F16Le::from_f32(d);
                *block = IQ4_NL {
                    d,
                    qs: pack_nibbles(&indices(src, d.to_f32())),
                };
            }
        }
    }
}

impl ScalarQuantized for IQ4_NL {
    const GROUP: usize = 32;

    fn scale_and_offset(&self, _: usize) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        self.qs = pack_levels(levels);
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        nearest(x)
    }
}

/// Packs 32 levels as nibbles.
pub(super) fn pack_levels(levels: &[i8]) -> [u8; 16] {
    pack_nibbles(&std::array::from_fn(|i| index(f32::from(levels[i]))))
}

/// Returns the indices of the levels nearest to 32 weights at the scale `d`.
#[inline(always)]
pub(super) fn indices(src: &[f32], d: f32) -> [u8; 32] {
    let inverse = inverse_or_zero(d);
    let mut q = [0; 32];
    for (q, x) in q.iter_mut().zip(src) {
        *q = index(x * inverse);
    }
    q
}

/// Returns the index of the level nearest to `x`.
#[inline(always)]
fn index(x: f32) -> u8 {
    // The index is the number of midpoints between adjacent levels that are below x.
    LEVELS
        .windows(2)
        .map(|w| u8::from(2.0 * x > f32::from(w[0]) + f32::from(w[1])))
        .sum()
}

/// Returns the level nearest to `x`.
#[inline(always)]
pub(super) fn nearest(x: f32) -> f32 {
    let mut level = f32::from(LEVELS[0]);
    for w in LEVELS.windows(2) {
        let (low, high) = (f32::from(w[0]), f32::from(w[1]));
        level += if 2.0 * x > low + high {
            high - low
        } else {
            0.0
        };
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut qs = [0x88; 16];
        qs[3] = 0xf0;
        let out = floats(&IQ4_NL {
            d: F16Le::from_f32(0.5),
            qs,
        });
        assert_eq!([out[3], out[19], out[0]], [-63.5, 56.5, 0.5]);
    }

    #[test]
    fn levels_are_fixed_points_of_rounding() {
        for (i, level) in LEVELS.iter().enumerate() {
            assert_eq!(usize::from(index(f32::from(*level))), i);
            assert_eq!(nearest(f32::from(*level)), f32::from(*level));
        }
        assert_eq!((index(f32::NEG_INFINITY), index(f32::INFINITY)), (0, 15));
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ4_NL>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<IQ4_NL>(0.08);
    }
}
