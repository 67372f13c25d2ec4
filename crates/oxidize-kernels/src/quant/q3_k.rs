//! Q3_K: 16 groups of 16 weights of 3 bits, with a signed 6-bit scale each.
//!
//! `w = d · (scale − 32) · (q − 4)`. The low 2 bits are packed as in Q2_K, the third bits in `hmask`.

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::F16Le;
use super::packing::{bits, pack_bits, pack_two_bits, two_bits};
use super::q8_k::Q8_K;
use super::search::block::group_scales;
use super::search::ggml_compat::refined_scales;
use super::search::scale::{level_div, round_clamp};
use super::unpacked::UnpackedBlock;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q3_K {
    /// Third bits: bit `j` of byte `i` belongs to weight `32 j + i`.
    pub hmask: [u8; 32],
    /// Low 2 bits, four weights per byte.
    pub qs: [u8; 64],
    /// Sixteen packed 6-bit scales.
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: F16Le,
}

assert_layout!(Q3_K, 110);

impl Q3_K {
    #[inline(always)]
    fn unpacked(&self) -> UnpackedBlock<16> {
        UnpackedBlock {
            d: self.d.to_f32(),
            sub_scales: self.group_scales().map(i32::from),
            levels: self.levels(),
        }
    }

    /// Returns the weights in units of their group's scale: −4 to 3.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        let mut levels = [0; 256];
        let (low, high) = (two_bits(&self.qs), bits(&self.hmask));
        for ((level, low), high) in levels.iter_mut().zip(low).zip(high) {
            *level = (low | high << 2) as i8 - 4;
        }
        levels
    }

    /// Returns the scales of the groups in units of `d`: −32 to 31.
    #[inline(always)]
    pub(crate) fn group_scales(&self) -> [i8; 16] {
        let (low, high) = self.scales.split_at(8);
        std::array::from_fn(|i| {
            let low = low[i % 8] >> (i / 8 * 4) & 15;
            let high = high[i % 4] >> (i / 4 * 2) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl Block for Q3_K {
    const TYPE: TensorType = TensorType::Q3_K;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for Q3_K {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for Q3_K {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        let (d, scales) = match importance {
            Some(_) => {
                let w: [f32; 256] = error_weights(src, importance);
                let nearest = |x: f32| round_clamp(x, -4.0, 3.0);
                group_scales::<16, 16>(src, &w, &[-4.0], (-32, 31), nearest)
            }
            None => refined_scales(src, -4.0, -32.0),
        };
        let (mut packed_scales, mut q) = ([0; 12], [0; 256]);
        for (i, (src, q)) in src.chunks_exact(16).zip(q.chunks_exact_mut(16)).enumerate() {
            let stored = (scales[i] + 32) as u8;
            packed_scales[i % 8] |= (stored & 15) << (i / 8 * 4);
            packed_scales[8 + i % 4] |= (stored >> 4) << (i / 4 * 2);
            let scale = d.to_f32() * scales[i] as f32;
            for (q, x) in q.iter_mut().zip(src) {
                *q = (level_div(*x, scale, -4, 3) + 4) as u8;
            }
        }
        let hmask = pack_bits(&q.map(|q| q >> 2));
        Q3_K {
            hmask,
            qs: pack_two_bits(&q),
            scales: packed_scales,
            d,
        }
    }
}

impl ScalarQuantized for Q3_K {
    const GROUP: usize = 16;

    fn scale_and_offset(&self, group: usize) -> (f32, f32) {
        (self.unpacked().scale(group), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let q = std::array::from_fn(|i| (levels[i] + 4) as u8);
        self.qs = pack_two_bits(&q);
        self.hmask = pack_bits(&q.map(|q| q >> 2));
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, -4.0, 3.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = Q3_K::zeroed();
        block.d = F16Le::from_f32(0.5);
        // Weight 161: the second 2 bits of byte 33, bit 5 of mask byte 1, group 10.
        block.qs[33] = 0b00_00_11_00;
        block.hmask[1] = 1 << 5;
        // Scale 10: the high nibble of byte 2 and bits 4 and 5 of byte 10. 0b10_0011 - 32 is 3.
        block.scales[2] = 0x30;
        block.scales[10] = 0b10_0000;
        let out = floats(&block);
        assert_eq!(
            [out[161], out[160], out[0]],
            [0.5 * 3.0 * 3.0, -6.0, 0.5 * 32.0 * 4.0]
        );
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q3_K>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q3_K>(0.18);
    }
}
