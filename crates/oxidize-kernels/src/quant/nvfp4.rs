//! NVFP4: 4 groups of 16 weights as 4-bit floats (E2M1), with an E4M3 scale per group.
//!
//! `w = d · E2M1`. The low nibbles of a group's 8 bytes are its first 8 weights.

use bytemuck::{Pod, Zeroable};

use super::mxfp4::{E2M1_DOUBLED, e2m1, nearest_doubled, nearest_e2m1};
use super::packing::scale_into;
use super::q8_0::Q8_0;
use super::search::scale::max_abs;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 64 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct NVFP4 {
    /// Scales, as unsigned E4M3.
    pub d: [u8; 4],
    /// Two weights per byte, 8 bytes per group.
    pub qs: [u8; 32],
}

assert_layout!(NVFP4, 36);

impl NVFP4 {
    /// Returns the weights in units of their group's half scale.
    #[inline(always)]
    pub(crate) fn levels(&self) -> [i8; 64] {
        let mut levels = [0; 64];
        for (levels, qs) in levels.chunks_exact_mut(16).zip(self.qs.chunks_exact(8)) {
            for (i, byte) in qs.iter().enumerate() {
                levels[i] = E2M1_DOUBLED[usize::from(byte & 15)];
                levels[i + 8] = E2M1_DOUBLED[usize::from(byte >> 4)];
            }
        }
        levels
    }
}

impl Block for NVFP4 {
    const TYPE: TensorType = TensorType::NVFP4;
    const LEN: usize = 64;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        let levels = self.levels();
        let groups = out.chunks_exact_mut(16).zip(levels.chunks_exact(16));
        for ((out, levels), d) in groups.zip(self.d) {
            scale_into(out, half_scale(d), levels);
        }
    }
}

impl Dot for NVFP4 {
    type Activation = Q8_0;

    #[inline]
    fn dot(&self, activations: &[Q8_0]) -> f32 {
        let levels = self.levels();
        let (halves, _) = levels.as_chunks::<32>();
        let mut sum = 0.0;
        for ((levels, d), a) in halves.iter().zip(self.d.chunks_exact(2)).zip(activations) {
            let mut first = *levels;
            first[16..].fill(0);
            let first = a.dot_levels(&first);
            let second = a.dot_levels(levels) - first;
            let scaled = half_scale(d[0]) * first as f32 + half_scale(d[1]) * second as f32;
            sum += a.d.to_f32() * scaled;
        }
        sum
    }
}

impl Quantize for NVFP4 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], _: Option<&[f32]>) -> Self {
        let mut block = NVFP4::zeroed();
        let groups = src.chunks_exact(16).zip(block.qs.chunks_exact_mut(8));
        for ((src, qs), d) in groups.zip(&mut block.d) {
            // 6 is the largest E2M1 value.
            *d = nearest_e4m3(max_abs(src) / 6.0);
            let half_scale = half_scale(*d);
            for (i, q) in qs.iter_mut().enumerate() {
                *q = nearest_e2m1(src[i], half_scale) | nearest_e2m1(src[i + 8], half_scale) << 4;
            }
        }
        block
    }
}

impl ScalarQuantized for NVFP4 {
    const GROUP: usize = 16;

    fn scale_and_offset(&self, group: usize) -> (f32, f32) {
        (half_scale(self.d[group]), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let groups = self.qs.chunks_exact_mut(8).zip(levels.chunks_exact(16));
        for (qs, levels) in groups {
            for (i, q) in qs.iter_mut().enumerate() {
                *q = e2m1(levels[i]) | e2m1(levels[i + 8]) << 4;
            }
        }
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        nearest_doubled(x)
    }
}

/// Returns half of an unsigned E4M3 scale, to go with the doubled levels; NaN (`0x7f`) becomes 0.
///
/// The top bit is ignored, so `0xff` is a number and not NaN, as in the reference code of the format.
#[inline(always)]
pub fn half_scale(e4m3: u8) -> f32 {
    let (exponent, mantissa) = (e4m3 >> 3 & 15, f32::from(e4m3 & 7));
    let power = f32::from_bits((u32::from(exponent.max(1)) + 127 - 7) << 23);
    match (e4m3, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa / 8.0 * power * 0.5,
        _ => (1.0 + mantissa / 8.0) * power * 0.5,
    }
}

/// Returns the unsigned E4M3 nearest to `x`, ties away from zero, at most 448.
fn nearest_e4m3(x: f32) -> u8 {
    const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
    let x = x.clamp(0.0, 448.0);
    if x.is_nan() {
        return 0;
    }
    if x < SMALLEST_NORMAL {
        // In units of the smallest subnormal, 2^-9; 8 units are the smallest normal number.
        return (x * 512.0).round() as u8;
    }
    // A carry out of the three mantissa bits increments the exponent.
    let rounded = (x.to_bits() + (1 << 19)) >> 20;
    (rounded - ((127 - 7) << 3)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut qs = [0; 32];
        (qs[0], qs[31]) = (0x27, 0xf1);
        // 1.0 and 448.
        let out = floats(&NVFP4 {
            d: [0x38, 0, 0, 0x7e],
            qs,
        });
        assert_eq!(
            [out[0], out[8], out[55], out[63]],
            [6.0, 1.0, 224.0, -2688.0]
        );
    }

    #[test]
    fn e4m3_scales_round_trip() {
        for e4m3 in 0..0x7f {
            assert_eq!(nearest_e4m3(2.0 * half_scale(e4m3)), e4m3);
        }
        assert_eq!(half_scale(0x7f), 0.0);
        assert_eq!((nearest_e4m3(1e30), nearest_e4m3(f32::NAN)), (0x7e, 0));
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<NVFP4>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<NVFP4>(0.1);
    }
}
