//! TQ1_0: 256 ternary weights, five per byte.
//!
//! `w = d · (q − 1)`. A byte divided by 256 is a base-3 fraction whose digits are the weights. Multiplying it
//! by 3 yields the next digit as the carry.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::packing::scale_into;
use super::q8_k::Q8_K;
use super::search::scale::round_clamp;
use super::tq2_0::ternary;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TQ1_0 {
    /// Five weights per byte: 32 bytes for the first 160 weights, 16 bytes for the next 80.
    pub qs: [u8; 48],
    /// Four weights per byte, for the last 16.
    pub qh: [u8; 4],
    /// Scale.
    pub d: F16Le,
}

assert_layout!(TQ1_0, 54);

impl TQ1_0 {
    /// Returns the weights in units of `d`: −1, 0 or 1.
    #[inline(always)]
    pub(crate) fn levels(&self) -> [i8; 256] {
        let mut levels = [0; 256];
        let (first, rest) = levels.split_at_mut(160);
        let (second, third) = rest.split_at_mut(80);
        let (qs32, qs16) = self.qs.split_at(32);
        unpack(qs32, first);
        unpack(qs16, second);
        unpack(&self.qh, third);
        levels
    }
}

impl Block for TQ1_0 {
    const TYPE: TensorType = TensorType::TQ1_0;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        scale_into(out, self.d.to_f32(), &self.levels());
    }
}

impl Dot for TQ1_0 {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        self.d.to_f32() * a.d.get() * a.dot_levels(&self.levels(), &[1]) as f32
    }
}

impl Quantize for TQ1_0 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], _: Option<&[f32]>) -> Self {
        let (d, levels) = ternary(src);
        let mut block = TQ1_0 {
            qs: [0; 48],
            qh: [0; 4],
            d,
        };
        block.write_levels(&levels);
        block
    }
}

impl ScalarQuantized for TQ1_0 {
    const GROUP: usize = 256;

    fn scale_and_offset(&self, _: usize) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let q: [u8; 256] = std::array::from_fn(|i| (levels[i] + 1) as u8);
        let (qs32, qs16) = self.qs.split_at_mut(32);
        pack(&q[..160], qs32);
        pack(&q[160..240], qs16);
        pack(&q[240..], &mut self.qh);
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, -1.0, 1.0)
    }
}

/// Unpacks digits to levels: the first digits of all bytes, then the second ones, until `levels` is full.
#[inline(always)]
fn unpack(packed: &[u8], levels: &mut [i8]) {
    let mut power = 1u8;
    for levels in levels.chunks_exact_mut(packed.len()) {
        for (level, byte) in levels.iter_mut().zip(packed) {
            // The fraction that remains after the previous digits.
            let fraction = u16::from(byte.wrapping_mul(power));
            *level = ((fraction * 3) >> 8) as i8 - 1;
        }
        power = power.wrapping_mul(3);
    }
}

/// Inverse of [`unpack`] for weights of 0, 1 or 2.
fn pack(q: &[u8], packed: &mut [u8]) {
    let n = packed.len();
    for (i, byte) in packed.iter_mut().enumerate() {
        let mut digits = q[i..].iter().step_by(n);
        let number = (0..5).fold(0, |number, _| {
            number * 3 + u16::from(*digits.next().unwrap_or(&0))
        });
        // Rounded up, so that the truncated fraction still has the same digits.
        *byte = (number * 256).div_ceil(243) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = TQ1_0 {
            qs: [0; 48],
            qh: [0; 4],
            d: F16Le::from_f32(2.0),
        };
        // Base 3: 0.20120 is 2·81 + 0·27 + 1·9 + 2·3 = 177 of 243, so 187 of 256.
        block.qs[1] = 187;
        let out = floats(&block);
        let digits = [0, 1, 2, 3, 4].map(|n| out[1 + 32 * n]);
        assert_eq!(digits, [2.0, -2.0, 0.0, 2.0, -2.0]);
        assert_eq!(out[0], -2.0);
    }

    #[test]
    fn ternary_weights_round_trip() {
        let src: [f32; 256] = std::array::from_fn(|i| ((i * i + i / 7) % 3) as f32 * 0.5 - 0.5);
        assert_eq!(floats(&TQ1_0::quantize(&src)), src);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<TQ1_0>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<TQ1_0>(0.9);
    }
}
