//! Q4_K: 8 groups of 32 weights of 4 bits, with a 6-bit scale and minimum each.
//!
//! `w = d · scale · q − dmin · min`. Each 32 bytes of `qs` hold 64 weights, the first 32 in the low nibbles.

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::F16Le;
use super::packing::{nibbles_256, pack_nibbles_256};
use super::q8_k::Q8_K;
use super::search::block::AffineScales;
use super::search::ggml_compat::AffineSearch;
use super::search::scale::round_clamp;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_K {
    /// Scale of the scales.
    pub d: F16Le,
    /// Scale of the minimums.
    pub dmin: F16Le,
    /// Eight packed pairs of a 6-bit scale and a 6-bit minimum.
    pub scales: [u8; 12],
    /// Two weights per byte.
    pub qs: [u8; 128],
}

assert_layout!(Q4_K, 144);

impl Block for Q4_K {
    const TYPE: TensorType = TensorType::Q4_K;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let (scales, mins) = scales_and_mins(&self.scales);
        let q = nibbles_256(&self.qs);
        let groups = out.chunks_exact_mut(32).zip(q.chunks_exact(32));
        for ((out, q), (scale, min)) in groups.zip(scales.into_iter().zip(mins)) {
            let scale = d * f32::from(scale);
            let min = dmin * f32::from(min);
            for (out, q) in out.iter_mut().zip(q) {
                *out = scale * f32::from(*q) - min;
            }
        }
    }
}

impl Dot for Q4_K {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        let (scales, mins) = scales_and_mins(&self.scales);
        let levels = nibbles_256(&self.qs).map(|q| q as i8);
        let scaled = self.d.to_f32() * a.dot_levels(&levels, &scales.map(i32::from)) as f32;
        a.d.get() * (scaled - self.dmin.to_f32() * a.dot_mins(&mins) as f32)
    }
}

impl Quantize for Q4_K {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        let (d, dmin, scales, q) = quantize_groups(src, importance, 15);
        Q4_K {
            d,
            dmin,
            scales,
            qs: pack_nibbles_256(&q),
        }
    }
}

impl ScalarQuantized for Q4_K {
    const GROUP: usize = 32;

    fn scale_and_offset(&self, group: usize) -> (f32, f32) {
        let (scales, mins) = scales_and_mins(&self.scales);
        let min = self.dmin.to_f32() * f32::from(mins[group]);
        (self.d.to_f32() * f32::from(scales[group]), -min)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&nibbles_256(&self.qs).map(|q| q as i8));
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let q = std::array::from_fn(|i| levels[i] as u8);
        self.qs = pack_nibbles_256(&q);
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, 0.0, 15.0)
    }
}

/// Unpacks the eight 6-bit scales and the eight 6-bit minimums of a Q4_K or Q5_K block.
///
/// The first four of each have a byte of their own, whose top 2 bits are the top bits of the last four.
#[inline(always)]
pub fn scales_and_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        let (scale, min, rest) = (packed[i], packed[i + 4], packed[i + 8]);
        scales[i] = scale & 63;
        mins[i] = min & 63;
        scales[i + 4] = rest & 15 | scale >> 6 << 4;
        mins[i + 4] = rest >> 4 | min >> 6 << 4;
    }
    (scales, mins)
}

/// Inverse of [`scales_and_mins`].
fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | scales[i + 4] >> 4 << 6;
        packed[i + 4] = mins[i] | mins[i + 4] >> 4 << 6;
        packed[i + 8] = scales[i + 4] & 15 | mins[i + 4] << 4;
    }
    packed
}

/// Quantizes a block of Q4_K or Q5_K with levels `0..=last`. Returns `d`, `dmin`, the packed scales and
/// minimums, and the levels.
#[inline(always)]
pub(super) fn quantize_groups(
    src: &[f32],
    importance: Option<&[f32]>,
    last: u8,
) -> (F16Le, F16Le, [u8; 12], [u8; 256]) {
    let affine = match importance {
        Some(_) => {
            let w: [f32; 256] = error_weights(src, importance);
            AffineScales::<8>::new::<32>(src, &w, f32::from(last), 63.0)
        }
        None => {
            // ggml's parameters; Q5_K searches a smaller range.
            let (first, steps) = if last > 15 { (-0.5, 15) } else { (-1.0, 20) };
            let search = AffineSearch {
                max_level: f32::from(last),
                max_scale: 63.0,
                first,
                steps,
                absolute: false,
            };
            AffineScales::<8>::ggml_compat::<32>(src, &group_weights(src), search)
        }
    };
    let scales = pack_scales_and_mins(&affine.scales, &affine.mins);
    (affine.d, affine.dmin, scales, affine.levels(src, last))
}

/// Error weights of ggml without importance: `√(mean(x²)) + |x|`, with the mean over the group.
#[inline(always)]
fn group_weights(x: &[f32]) -> [f32; 256] {
    let mut w = [0.0; 256];
    for (w, x) in w.chunks_exact_mut(32).zip(x.chunks_exact(32)) {
        let mean = x.iter().map(|x| x * x).sum::<f32>() / 32.0;
        for (w, x) in w.iter_mut().zip(x) {
            *w = mean.sqrt() + x.abs();
        }
    }
    w
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = Q4_K::zeroed();
        (block.d, block.dmin) = (F16Le::from_f32(0.5), F16Le::from_f32(0.25));
        // Weight 97 is the high nibble of byte 33, in group 3; weight 200 the low one of 104, in 6.
        block.qs[33] = 0x90;
        block.qs[104] = 0x05;
        block.scales[3] = 7;
        block.scales[7] = 2;
        // Group 6: scale 0b10_0001 = 33, minimum 0b01_0011 = 19.
        block.scales[2] = 0b1000_0000;
        block.scales[6] = 0b0100_0000;
        block.scales[10] = 0x31;
        let out = floats(&block);
        assert_eq!([out[97], out[96]], [9.0 * 3.5 - 0.5, -0.5]);
        assert_eq!([out[200], out[201]], [5.0 * 16.5 - 4.75, -4.75]);
    }

    #[test]
    fn packing_scales_inverts_unpacking() {
        let packed = std::array::from_fn(|i| (i * 37 + 11) as u8);
        let (scales, mins) = scales_and_mins(&packed);
        assert_eq!(pack_scales_and_mins(&scales, &mins), packed);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q4_K>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q4_K>(0.073);
    }
}
