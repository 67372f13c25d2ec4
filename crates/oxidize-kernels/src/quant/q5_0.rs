//! Q5_0: 32 weights of 5 bits, symmetric, with one scale.
//!
//! `w = d · (q − 16)`. Nibbles are packed as in Q4_0; bit `i` of `qh` is the fifth bit of weight `i`.

use bytemuck::{Pod, Zeroable};

use super::fields::{F16Le, U32Le};
use super::packing::{nibbles, pack_nibbles, scale_into};
use super::q4_0::quantize_symmetric;
use super::q8_0::Q8_0;
use super::search::scale::round_clamp;
use super::search::scale_x16::quantize_single;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_0 {
    /// Scale.
    pub d: F16Le,
    /// Fifth bits.
    pub qh: U32Le,
    /// Low nibbles, two weights per byte.
    pub qs: [u8; 16],
}

assert_layout!(Q5_0, 22);

impl Q5_0 {
    /// Returns the weights in units of `d`: −16 to 15.
    #[inline(always)]
    fn levels(&self) -> [i8; 32] {
        five_bits(&self.qs, self.qh).map(|q| q as i8 - 16)
    }
}

impl Block for Q5_0 {
    const TYPE: TensorType = TensorType::Q5_0;
    const LEN: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        scale_into(out, self.d.to_f32(), &self.levels());
    }
}

impl Dot for Q5_0 {
    type Activation = Q8_0;

    #[inline]
    fn dot(&self, activations: &[Q8_0]) -> f32 {
        let a = &activations[0];
        self.d.to_f32() * a.d.to_f32() * a.dot_levels(&self.levels()) as f32
    }
}

impl Quantize for Q5_0 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        quantize_single(src, importance)
    }

    #[inline(always)]
    fn quantize_blocks(src: &[f32], importance: Option<&[f32]>, out: &mut [Self]) {
        quantize_symmetric(src, importance, 16, out, |d, q| Q5_0 {
            d,
            qh: fifth_bits(q),
            qs: pack_nibbles(q),
        });
    }
}

impl ScalarQuantized for Q5_0 {
    const GROUP: usize = 32;

    fn scale_and_offset(&self, _: usize) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let q = std::array::from_fn(|i| (levels[i] + 16) as u8);
        self.qs = pack_nibbles(&q);
        self.qh = fifth_bits(&q);
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, -16.0, 15.0)
    }
}

/// Unpacks the 32 five-bit weights of a Q5_0 or Q5_1 block.
#[inline(always)]
pub(super) fn five_bits(qs: &[u8; 16], qh: U32Le) -> [u8; 32] {
    let mut q = nibbles(qs);
    let qh = qh.get();
    for (i, q) in q.iter_mut().enumerate() {
        *q |= ((qh >> i & 1) as u8) << 4;
    }
    q
}

/// Packs the fifth bits of 32 weights as the `qh` of a Q5_0 or Q5_1 block.
pub(super) fn fifth_bits(q: &[u8; 32]) -> U32Le {
    q.iter()
        .enumerate()
        .fold(0, |bits, (i, q)| bits | u32::from(q >> 4 & 1) << i)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut qs = [0; 16];
        qs[1] = 0x5f;
        let block = Q5_0 {
            d: F16Le::from_f32(2.0),
            qh: U32Le::from(1 << 1 | 1 << 31),
            qs,
        };
        let out = floats(&block);
        assert_eq!(
            [out[1], out[17], out[31], out[0]],
            [30.0, -22.0, 0.0, -32.0]
        );
    }

    #[test]
    fn representable_values_round_trip() {
        let src: [f32; 32] = std::array::from_fn(|i| i as f32 - 16.0);
        let block = Q5_0::quantize(&src);
        assert_eq!(block.d.to_f32(), 1.0);
        assert_eq!(floats(&block), src);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q5_0>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q5_0>(0.045);
    }
}
