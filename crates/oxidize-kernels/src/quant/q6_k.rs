//! Q6_K: 16 groups of 16 weights of 6 bits, with an 8-bit scale each.
//!
//! `w = d · scale · (q − 32)`. Each half of the block has 64 bytes of low nibbles and 32 bytes
//! of high bits.

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::F16Le;
use super::q8_k::Q8_K;
use super::search::block::group_scales;
use super::search::ggml_compat::stepped_scales;
use super::search::scale::{level_div, round_clamp};
use super::unpacked::UnpackedBlock;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q6_K {
    /// Low nibbles, two weights per byte.
    pub ql: [u8; 128],
    /// High 2 bits, four weights per byte.
    pub qh: [u8; 64],
    /// One scale per group.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: F16Le,
}

assert_layout!(Q6_K, 210);

impl Q6_K {
    #[inline(always)]
    fn unpacked(&self) -> UnpackedBlock<16> {
        UnpackedBlock {
            d: self.d.to_f32(),
            sub_scales: self.scales.map(i32::from),
            levels: self.levels(),
        }
    }

    /// Returns the weights in units of their group's scale: −32 to 31.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        let mut levels = [0; 256];
        for (i, levels) in levels.chunks_exact_mut(32).enumerate() {
            let (low, low_shift, high, high_shift) = position(i);
            let (low, high) = (&self.ql[low..][..32], &self.qh[high..][..32]);
            for ((level, low), high) in levels.iter_mut().zip(low).zip(high) {
                *level = (low >> low_shift & 15 | (high >> high_shift & 3) << 4) as i8 - 32;
            }
        }
        levels
    }
}

/// Returns the position of the `i`-th 32 weights of 8: first byte in `ql` and bit shift there, first byte in
/// `qh` and bit shift there.
#[inline(always)]
fn position(i: usize) -> (usize, usize, usize, usize) {
    let (half, quarter) = (i / 4, i % 4);
    (
        64 * half + 32 * (quarter % 2),
        4 * (quarter / 2),
        32 * half,
        2 * quarter,
    )
}

impl Block for Q6_K {
    const TYPE: TensorType = TensorType::Q6_K;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for Q6_K {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for Q6_K {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        let (d, scales) = match importance {
            Some(_) => {
                let w: [f32; 256] = error_weights(src, importance);
                let nearest = |x: f32| round_clamp(x, -32.0, 31.0);
                group_scales::<16, 16>(src, &w, &[-32.0], (-128, 127), nearest)
            }
            None => stepped_scales(src, -32.0, -128.0),
        };
        let mut block = Q6_K::zeroed();
        block.d = d;
        block.scales = scales.map(|s| s as i8);
        let mut levels = [0; 256];
        let groups = levels.chunks_exact_mut(16).zip(src.chunks_exact(16));
        for ((levels, src), scale) in groups.zip(scales) {
            let scale = d.to_f32() * scale as f32;
            for (q, x) in levels.iter_mut().zip(src) {
                *q = level_div(*x, scale, -32, 31) as i8;
            }
        }
        block.write_levels(&levels);
        block
    }
}

impl ScalarQuantized for Q6_K {
    const GROUP: usize = 16;
    const SWEEPS: usize = 2;

    fn scale_and_offset(&self, group: usize) -> (f32, f32) {
        (self.unpacked().scale(group), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        (self.ql, self.qh) = ([0; 128], [0; 64]);
        for (i, levels) in levels.chunks_exact(32).enumerate() {
            let (low, low_shift, high, high_shift) = position(i);
            for (j, level) in levels.iter().enumerate() {
                let q = (level + 32) as u8;
                self.ql[low + j] |= (q & 15) << low_shift;
                self.qh[high + j] |= (q >> 4) << high_shift;
            }
        }
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, -32.0, 31.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = Q6_K::zeroed();
        block.d = F16Le::from_f32(0.5);
        // Weight 224 + 1: the high nibble of byte 97 and the top bits of high byte 33, group 14.
        block.ql[97] = 0x90;
        block.qh[33] = 0b11_00_00_00;
        block.scales[14] = -3;
        let out = floats(&block);
        assert_eq!([out[225], out[224], out[161]], [-1.5 * 25.0, 48.0, 0.0]);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q6_K>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q6_K>(0.02);
    }
}
