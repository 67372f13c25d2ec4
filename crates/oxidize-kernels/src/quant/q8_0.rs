//! Q8_0: 32 weights of 8 bits with one scale.
//!
//! `w = d · q`. Also the activation format of the 32-weight formats without a minimum.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::packing::{dot_i8, scale_into};
use super::search::scale::{clamp_to_i32, inverse_or_zero, max_abs, round_clamp};
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_0 {
    /// Scale.
    pub d: F16Le,
    /// Weights.
    pub qs: [i8; 32],
}

assert_layout!(Q8_0, 34);

impl Q8_0 {
    /// Returns the integer dot product with the levels of a block of weights.
    #[inline(always)]
    pub(super) fn dot_levels(&self, levels: &[i8; 32]) -> i32 {
        dot_i8(levels, &self.qs)
    }
}

impl Block for Q8_0 {
    const TYPE: TensorType = TensorType::Q8_0;
    const LEN: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        scale_into(out, self.d.to_f32(), &self.qs);
    }
}

impl Dot for Q8_0 {
    type Activation = Q8_0;

    #[inline]
    fn dot(&self, activations: &[Q8_0]) -> f32 {
        let a = &activations[0];
        self.d.to_f32() * a.d.to_f32() * a.dot_levels(&self.qs) as f32
    }
}

impl Quantize for Q8_0 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], _: Option<&[f32]>) -> Self {
        let (d, qs) = quantize_i8(src);
        Q8_0 {
            d: F16Le::from_f32(d),
            qs,
        }
    }
}

impl ScalarQuantized for Q8_0 {
    const GROUP: usize = 32;
    const SWEEPS: usize = 1;

    fn scale_and_offset(&self, _: usize) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.qs);
    }

    fn write_levels(&mut self, levels: &[i8]) {
        self.qs.copy_from_slice(levels);
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, -127.0, 127.0)
    }
}

/// Quantizes 32 floats with the scale that maps the largest magnitude to 127.
///
/// Ties round away from zero, as in ggml.
#[inline(always)]
pub(super) fn quantize_i8(src: &[f32]) -> (f32, [i8; 32]) {
    let d = max_abs(src) / 127.0;
    let inverse = inverse_or_zero(d);
    let mut qs = [0; 32];
    for (q, x) in qs.iter_mut().zip(src) {
        *q = clamp_to_i32((x * inverse).round(), -128, 127) as i8;
    }
    (d, qs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut qs = [0; 32];
        (qs[0], qs[31]) = (127, -128);
        let out = floats(&Q8_0 {
            d: F16Le::from_f32(0.125),
            qs,
        });
        assert_eq!([out[0], out[1], out[31]], [15.875, 0.0, -16.0]);
    }

    #[test]
    fn ties_round_away_from_zero() {
        let mut src = [0.0; 32];
        (src[0], src[1], src[2]) = (127.0, 2.5, -0.5);
        let block = Q8_0::quantize(&src);
        assert_eq!(
            (block.d.to_f32(), &block.qs[..4]),
            (1.0, &[127, 3, -1, 0][..])
        );
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q8_0>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q8_0>(0.0055);
    }
}
