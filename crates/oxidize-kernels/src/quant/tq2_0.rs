//! TQ2_0: 256 ternary weights, four per byte.
//!
//! `w = d · (q − 1)`. Each 32 bytes of `qs` hold 128 weights in four 2-bit planes.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::packing::{pack_two_bits, scale_into, two_bits};
use super::q8_k::Q8_K;
use super::search::scale::{clamp_to_i32, inverse_or_zero, max_abs, round_clamp};
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TQ2_0 {
    /// Four weights per byte.
    pub qs: [u8; 64],
    /// Scale.
    pub d: F16Le,
}

assert_layout!(TQ2_0, 66);

impl TQ2_0 {
    /// Returns the weights in units of `d`: −1, 0 or 1, and 2 for the code that quantizers do not use.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        two_bits(&self.qs).map(|q| q as i8 - 1)
    }
}

impl Block for TQ2_0 {
    const TYPE: TensorType = TensorType::TQ2_0;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        scale_into(out, self.d.to_f32(), &self.levels());
    }
}

impl Dot for TQ2_0 {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        self.d.to_f32() * a.d.get() * a.dot_levels(&self.levels(), &[1]) as f32
    }
}

impl Quantize for TQ2_0 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], _: Option<&[f32]>) -> Self {
        let (d, levels) = ternary(src);
        let mut block = TQ2_0 { qs: [0; 64], d };
        block.write_levels(&levels);
        block
    }
}

impl ScalarQuantized for TQ2_0 {
    const GROUP: usize = 256;

    fn scale_and_offset(&self, _: usize) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        self.qs = pack_two_bits(&std::array::from_fn(|i| (levels[i] + 1) as u8));
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, -1.0, 1.0)
    }
}

/// Returns the scale of 256 weights that are already ternary, and the weights as −1, 0 or 1.
#[inline(always)]
pub(super) fn ternary(src: &[f32]) -> (F16Le, [i8; 256]) {
    let d = max_abs(src);
    let inverse = inverse_or_zero(d);
    let mut q = [0; 256];
    for (q, x) in q.iter_mut().zip(src) {
        *q = clamp_to_i32((x * inverse).round(), -1, 1) as i8;
    }
    (F16Le::from_f32(d), q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = TQ2_0 {
            qs: [0b01_01_01_01; 64],
            d: F16Le::from_f32(0.5),
        };
        block.qs[2] = 0b00_01_10_11;
        let out = floats(&block);
        assert_eq!(
            [2, 34, 66, 98, 3].map(|i| out[i]),
            [1.0, 0.5, 0.0, -0.5, 0.0]
        );
    }

    #[test]
    fn ternary_weights_round_trip() {
        let src: [f32; 256] = std::array::from_fn(|i| ((i * i + i / 7) % 3) as f32 * 0.5 - 0.5);
        assert_eq!(floats(&TQ2_0::quantize(&src)), src);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<TQ2_0>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<TQ2_0>(0.9);
    }
}
