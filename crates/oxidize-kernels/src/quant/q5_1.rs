//! Q5_1: 32 weights of 5 bits, with a scale and a minimum.
//!
//! `w = d · q + m`. Nibbles are packed as in Q4_0; bit `i` of `qh` is the fifth bit of weight `i`.

use bytemuck::{Pod, Zeroable};

use super::fields::{F16Le, U32Le};
use super::packing::pack_nibbles;
use super::q4_1::quantize_affine;
use super::q5_0::{fifth_bits, five_bits};
use super::q8_1::Q8_1;
use super::search::scale::round_clamp;
use super::search::scale_x16::quantize_single;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_1 {
    /// Scale.
    pub d: F16Le,
    /// Minimum.
    pub m: F16Le,
    /// Fifth bits.
    pub qh: U32Le,
    /// Low nibbles, two weights per byte.
    pub qs: [u8; 16],
}

assert_layout!(Q5_1, 24);

impl Block for Q5_1 {
    const TYPE: TensorType = TensorType::Q5_1;
    const LEN: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (out, q) in out.iter_mut().zip(five_bits(&self.qs, self.qh)) {
            *out = d * f32::from(q) + m;
        }
    }
}

impl Dot for Q5_1 {
    type Activation = Q8_1;

    #[inline]
    fn dot(&self, activations: &[Q8_1]) -> f32 {
        let a = &activations[0];
        let sum = a.dot_levels(&five_bits(&self.qs, self.qh).map(|q| q as i8));
        self.d.to_f32() * a.d.to_f32() * sum as f32 + self.m.to_f32() * a.s.to_f32()
    }
}

impl Quantize for Q5_1 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        quantize_single(src, importance)
    }

    #[inline(always)]
    fn quantize_blocks(src: &[f32], importance: Option<&[f32]>, out: &mut [Self]) {
        quantize_affine(src, importance, 31, out, |d, m, q| Q5_1 {
            d,
            m,
            qh: fifth_bits(q),
            qs: pack_nibbles(q),
        });
    }
}

impl ScalarQuantized for Q5_1 {
    const GROUP: usize = 32;

    fn scale_and_offset(&self, _: usize) -> (f32, f32) {
        (self.d.to_f32(), self.m.to_f32())
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&five_bits(&self.qs, self.qh).map(|q| q as i8));
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let q = std::array::from_fn(|i| levels[i] as u8);
        self.qs = pack_nibbles(&q);
        self.qh = fifth_bits(&q);
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, 0.0, 31.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut qs = [0; 16];
        qs[15] = 0xf0;
        let block = Q5_1 {
            d: F16Le::from_f32(0.5),
            m: F16Le::from_f32(-4.0),
            qh: U32Le::from(1 << 31 | 1),
            qs,
        };
        let out = floats(&block);
        assert_eq!([out[31], out[15], out[0]], [11.5, -4.0, 4.0]);
    }

    #[test]
    fn representable_values_round_trip() {
        let src: [f32; 32] = std::array::from_fn(|i| i as f32 + 5.0);
        let block = Q5_1::quantize(&src);
        assert_eq!((block.d.to_f32(), block.m.to_f32()), (1.0, 5.0));
        assert_eq!(floats(&block), src);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q5_1>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q5_1>(0.045);
    }
}
