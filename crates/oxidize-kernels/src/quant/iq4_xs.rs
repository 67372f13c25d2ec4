//! IQ4_XS: IQ4_NL in 8 groups of 32 weights, with a signed 6-bit scale each.
//!
//! `w = d · (scale − 32) · level[q]`.

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::{F16Le, U16Le};
use super::iq4_nl::{ENDS, LEVELS, indices, nearest, pack_levels};
use super::packing::{nibbles, pack_nibbles};
use super::q8_k::Q8_K;
use super::search::block::group_scales;
use super::unpacked::UnpackedBlock;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ4_XS {
    /// Scale of the scales.
    pub d: F16Le,
    /// High 2 bits of the scales.
    pub scales_h: U16Le,
    /// Low 4 bits of the scales, two per byte.
    pub scales_l: [u8; 4],
    /// Two weights per byte, 16 bytes per group.
    pub qs: [u8; 128],
}

assert_layout!(IQ4_XS, 136);

impl IQ4_XS {
    #[inline(always)]
    fn unpacked(&self) -> UnpackedBlock<8> {
        UnpackedBlock {
            d: self.d.to_f32(),
            sub_scales: self.group_scales().map(i32::from),
            levels: self.levels(),
        }
    }

    /// Returns the weights in units of their group's scale.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        let mut levels = [0; 256];
        let (groups, _) = self.qs.as_chunks::<16>();
        for (levels, qs) in levels.chunks_exact_mut(32).zip(groups) {
            for (level, q) in levels.iter_mut().zip(nibbles(qs)) {
                *level = LEVELS[usize::from(q & 15)];
            }
        }
        levels
    }

    /// Returns the scales of the groups in units of `d`: −32 to 31.
    #[inline(always)]
    pub(crate) fn group_scales(&self) -> [i8; 8] {
        let high = self.scales_h.get();
        std::array::from_fn(|i| {
            let low = self.scales_l[i / 2] >> (i % 2 * 4) & 15;
            let high = (high >> (2 * i)) as u8 & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl Block for IQ4_XS {
    const TYPE: TensorType = TensorType::IQ4_XS;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for IQ4_XS {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for IQ4_XS {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        let w: [f32; 256] = error_weights(src, importance);
        let (d, scales) = group_scales::<8, 32>(src, &w, &ENDS, (-32, 31), nearest);
        let mut block = IQ4_XS::zeroed();
        block.d = d;
        let mut high = 0;
        for (i, (src, qs)) in src
            .chunks_exact(32)
            .zip(block.qs.chunks_exact_mut(16))
            .enumerate()
        {
            let stored = (scales[i] + 32) as u8;
            block.scales_l[i / 2] |= (stored & 15) << (i % 2 * 4);
            high |= u16::from(stored >> 4) << (2 * i);
            let scale = d.to_f32() * scales[i] as f32;
            qs.copy_from_slice(&pack_nibbles(&indices(src, scale)));
        }
        block.scales_h = high.into();
        block
    }
}

impl ScalarQuantized for IQ4_XS {
    const GROUP: usize = 32;

    fn scale_and_offset(&self, group: usize) -> (f32, f32) {
        (self.unpacked().scale(group), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let groups = self.qs.chunks_exact_mut(16).zip(levels.chunks_exact(32));
        for (qs, levels) in groups {
            qs.copy_from_slice(&pack_levels(levels));
        }
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        nearest(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = IQ4_XS::zeroed();
        block.d = F16Le::from_f32(0.5);
        block.qs[16 * 5 + 2] = 0xf8;
        // Scale 5: 0b10_0011 - 32 is 3; scale 0 is -32.
        block.scales_l[2] = 0x30;
        block.scales_h = U16Le::from(0b10 << 10);
        let out = floats(&block);
        assert_eq!(
            [out[162], out[178], out[0]],
            [1.5, 1.5 * 113.0, 16.0 * 127.0]
        );
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ4_XS>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<IQ4_XS>(0.08);
    }
}
