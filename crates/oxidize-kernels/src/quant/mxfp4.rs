//! MXFP4: 32 weights as 4-bit floats (E2M1) with a power-of-two scale.
//!
//! `w = 2^(e − 127) · E2M1`, from the OCP Microscaling Formats specification, version 1.0.
//! Nibbles are packed as in Q4_0.

use bytemuck::{Pod, Zeroable};

use super::packing::{nibbles, pack_nibbles, scale_into};
use super::q8_0::Q8_0;
use super::search::scale::max_abs;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct MXFP4 {
    /// Exponent of the scale (E8M0).
    pub e: u8,
    /// Two weights per byte.
    pub qs: [u8; 16],
}

assert_layout!(MXFP4, 17);

/// Values of E2M1, doubled to make them integers.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl MXFP4 {
    /// Returns the weights in units of [`half_scale`](Self::half_scale).
    #[inline(always)]
    fn levels(&self) -> [i8; 32] {
        nibbles(&self.qs).map(|q| E2M1_DOUBLED[usize::from(q & 15)])
    }

    /// Returns `2^(e − 128)`, half of the scale, to go with the doubled levels.
    #[inline(always)]
    pub fn half_scale(&self) -> f32 {
        match self.e {
            // Subnormal floats: 2^-128 and 2^-127.
            e @ 0..2 => f32::from_bits(0x0020_0000 << e),
            e => f32::from_bits(u32::from(e - 1) << 23),
        }
    }
}

impl Block for MXFP4 {
    const TYPE: TensorType = TensorType::MXFP4;
    const LEN: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        scale_into(out, self.half_scale(), &self.levels());
    }
}

impl Dot for MXFP4 {
    type Activation = Q8_0;

    #[inline]
    fn dot(&self, activations: &[Q8_0]) -> f32 {
        let a = &activations[0];
        self.half_scale() * a.d.to_f32() * a.dot_levels(&self.levels()) as f32
    }
}

impl Quantize for MXFP4 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], _: Option<&[f32]>) -> Self {
        let largest = max_abs(src);
        // The largest weight gets the exponent of 4, the largest power of two in E2M1.
        let exponent = (largest.to_bits() >> 23) as u8;
        let mut block = MXFP4 {
            e: exponent.saturating_sub(2),
            qs: [0; 16],
        };
        let mut q = [0; 32];
        for (q, x) in q.iter_mut().zip(src) {
            *q = nearest_e2m1(*x, block.half_scale());
        }
        block.qs = pack_nibbles(&q);
        block
    }
}

impl ScalarQuantized for MXFP4 {
    const GROUP: usize = 32;

    fn scale_and_offset(&self, _: usize) -> (f32, f32) {
        (self.half_scale(), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        self.qs = pack_nibbles(&std::array::from_fn(|i| e2m1(levels[i])));
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        nearest_doubled(x)
    }
}

/// Returns the doubled E2M1 value nearest to `x`.
#[inline(always)]
pub(super) fn nearest_doubled(x: f32) -> f32 {
    let magnitude = x.abs();
    let mut level = 0.0;
    for pair in E2M1_DOUBLED[..8].windows(2) {
        let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
        level += if 2.0 * magnitude > low + high {
            high - low
        } else {
            0.0
        };
    }
    level.copysign(x)
}

/// Returns the code of a doubled E2M1 value.
pub(super) fn e2m1(level: i8) -> u8 {
    let code = E2M1_DOUBLED.iter().position(|value| *value == level);
    code.unwrap_or(0) as u8
}

/// Returns the code of the E2M1 value nearest to `x` at `half_scale`; ties go to the lower code.
pub(super) fn nearest_e2m1(x: f32, half_scale: f32) -> u8 {
    let (mut best, mut best_error) = (0, f32::INFINITY);
    for (i, level) in E2M1_DOUBLED.iter().enumerate() {
        let error = (half_scale * f32::from(*level) - x).abs();
        if error < best_error {
            (best, best_error) = (i as u8, error);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats, power_of_two};

    #[test]
    fn known_block() {
        let mut qs = [0; 16];
        (qs[0], qs[1]) = (0xf7, 0x91);
        let out = floats(&MXFP4 { e: 128, qs });
        assert_eq!(
            [out[0], out[16], out[1], out[17], out[2]],
            [12.0, -12.0, 1.0, -1.0, 0.0]
        );
    }

    #[test]
    fn half_scale_covers_all_exponents() {
        for (e, expected) in [(0, -128), (1, -127), (2, -126), (127, -1), (255, 127)] {
            let half_scale = f64::from(MXFP4 { e, qs: [0; 16] }.half_scale());
            assert_eq!(half_scale, power_of_two(expected), "{e}");
        }
    }

    #[test]
    fn representable_values_round_trip() {
        let src: [f32; 32] = std::array::from_fn(|i| f32::from(E2M1_DOUBLED[i % 16]) * 8.0);
        assert_eq!(floats(&MXFP4::quantize(&src)), src);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<MXFP4>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<MXFP4>(0.14);
    }
}
