//! Q5_K: 8 groups of 32 weights of 5 bits, with a 6-bit scale and minimum each.
//!
//! `w = d · scale · q − dmin · min`. Nibbles and scales are packed as in Q4_K, the fifth bits in `qh`.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::packing::{bits, nibbles_256, pack_bits, pack_nibbles_256};
use super::q4_k::{quantize_groups, scales_and_mins};
use super::q8_k::Q8_K;
use super::search::scale::round_clamp;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_K {
    /// Scale of the scales.
    pub d: F16Le,
    /// Scale of the minimums.
    pub dmin: F16Le,
    /// Eight packed pairs of a 6-bit scale and a 6-bit minimum.
    pub scales: [u8; 12],
    /// Fifth bits: bit `j` of byte `i` belongs to weight `32 j + i`.
    pub qh: [u8; 32],
    /// Low nibbles, two weights per byte.
    pub qs: [u8; 128],
}

assert_layout!(Q5_K, 176);

impl Q5_K {
    #[inline(always)]
    fn five_bits(&self) -> [u8; 256] {
        let mut q = nibbles_256(&self.qs);
        for (q, high) in q.iter_mut().zip(bits(&self.qh)) {
            *q |= high << 4;
        }
        q
    }
}

impl Block for Q5_K {
    const TYPE: TensorType = TensorType::Q5_K;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let (scales, mins) = scales_and_mins(&self.scales);
        let q = self.five_bits();
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

impl Dot for Q5_K {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        let (scales, mins) = scales_and_mins(&self.scales);
        let levels = self.five_bits().map(|q| q as i8);
        let scaled = self.d.to_f32() * a.dot_levels(&levels, &scales.map(i32::from)) as f32;
        a.d.get() * (scaled - self.dmin.to_f32() * a.dot_mins(&mins) as f32)
    }
}

impl Quantize for Q5_K {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        let (d, dmin, scales, q) = quantize_groups(src, importance, 31);
        let qh = pack_bits(&q.map(|q| q >> 4));
        Q5_K {
            d,
            dmin,
            scales,
            qh,
            qs: pack_nibbles_256(&q),
        }
    }
}

impl ScalarQuantized for Q5_K {
    const GROUP: usize = 32;

    fn scale_and_offset(&self, group: usize) -> (f32, f32) {
        let (scales, mins) = scales_and_mins(&self.scales);
        let min = self.dmin.to_f32() * f32::from(mins[group]);
        (self.d.to_f32() * f32::from(scales[group]), -min)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.five_bits().map(|q| q as i8));
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let q = std::array::from_fn(|i| levels[i] as u8);
        self.qs = pack_nibbles_256(&q);
        self.qh = pack_bits(&q.map(|q| q >> 4));
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
        let mut block = Q5_K::zeroed();
        (block.d, block.dmin) = (F16Le::from_f32(0.5), F16Le::from_f32(0.25));
        // Weight 97 is the high nibble of byte 33 and bit 3 of high byte 1, in group 3.
        block.qs[33] = 0x90;
        block.qh[1] = 1 << 3;
        block.scales[3] = 7;
        block.scales[7] = 2;
        let out = floats(&block);
        assert_eq!([out[97], out[96]], [25.0 * 3.5 - 0.5, -0.5]);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q5_K>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q5_K>(0.036);
    }
}
