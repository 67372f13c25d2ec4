//! IQ1_M: IQ1_S with a scale per 16 weights and a shift per 8.
//!
//! `w = d · (2 · scale + 1) · (grid ± ⅛)`. The half-precision `d` is split over the top nibbles of `scales`.

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::{F16Le, U16Le};
use super::grids::IQ1_GRID;
use super::iq1_s::{search, shifted};
use super::q8_k::Q8_K;
use super::search::ternary::Shift;
use super::unpacked::UnpackedBlock;
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ1_M {
    /// Low bits of the table indices.
    pub qs: [u8; 32],
    /// A nibble per 8 weights: 3 high bits of the index, then the sign of the shift.
    pub qh: [u8; 16],
    /// Four 3-bit scales and a nibble of `d` each.
    pub scales: [U16Le; 4],
}

assert_layout!(IQ1_M, 56);

impl IQ1_M {
    #[inline(always)]
    pub(super) fn unpacked(&self) -> UnpackedBlock<16> {
        UnpackedBlock {
            d: self.d() * 0.125,
            sub_scales: self.sub_scales(),
            levels: self.levels(),
        }
    }

    #[inline(always)]
    pub(super) fn sub_scales(&self) -> [i32; 16] {
        std::array::from_fn(|i| 2 * i32::from(self.scales[i / 4].get() >> (i % 4 * 3) & 7) + 1)
    }

    /// True if weights `8 i` to `8 i + 7` are shifted down, false if up.
    #[inline(always)]
    pub(super) fn is_down(&self, i: usize) -> bool {
        self.qh[i / 2] >> (i % 2 * 4) & 8 != 0
    }

    /// Returns weights `8 i` to `8 i + 7` before the shift, a byte each: −1, 0 or 1.
    #[inline(always)]
    pub(super) fn ternary(&self, i: usize) -> u64 {
        let high = usize::from(self.qh[i / 2] >> (i % 2 * 4) & 7);
        IQ1_GRID[usize::from(self.qs[i]) | high << 8]
    }

    /// Returns the weights in units of an eighth of their group's scale: −9 to 9.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        let mut levels = [0; 256];
        for (i, levels) in levels.chunks_exact_mut(8).enumerate() {
            levels.copy_from_slice(&shifted(self.ternary(i), self.is_down(i)));
        }
        levels
    }

    /// Returns the scale of the scales.
    #[inline(always)]
    pub fn d(&self) -> f32 {
        self.d_f16().to_f32()
    }

    /// Returns the scale of the scales in half precision, as stored.
    #[inline(always)]
    pub(super) fn d_f16(&self) -> F16Le {
        let [a, b, c, d] = self.scales.map(|s| s.get() >> 12);
        F16Le((a | b << 4 | c << 8 | d << 12).to_le_bytes())
    }
}

impl Block for IQ1_M {
    const TYPE: TensorType = TensorType::IQ1_M;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for IQ1_M {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for IQ1_M {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        let w = error_weights(src, importance);
        let mut x = [0.0; 256];
        x.copy_from_slice(src);
        let found = search(2, Shift::EachVector).run(&x, &w);
        let mut block = IQ1_M::zeroed();
        for (i, entry) in found.entries[..32].iter().enumerate() {
            block.qs[i] = *entry as u8;
            // Entries from 2048 on are the table's entries shifted down.
            let nibble = (entry >> 8 & 7 | (entry >> 11) << 3) as u8;
            block.qh[i / 2] |= nibble << (i % 2 * 4);
        }
        let d = found.d.get().to_bits();
        for (i, scales) in block.scales.iter_mut().enumerate() {
            let mut bits = (d >> (4 * i) & 15) << 12;
            for j in 0..4 {
                bits |= u16::from(found.scales[4 * i + j]) << (3 * j);
            }
            *scales = bits.into();
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = IQ1_M::zeroed();
        // 2.0 is 0x4000, whose top nibble is in the last of the scales.
        block.scales[3] = U16Le::from(0x4000);
        // Weights 88 to 95, group 5: the last entry of the table is 1 in all places.
        block.qs[11] = 255;
        block.qh[5] = 0xf0;
        block.scales[1] = U16Le::from(3 << 3);
        let out = floats(&block);
        assert_eq!(out[88..96], [2.0 * 7.0 * 0.875; 8]);
        // Entry 0 is -1 in all places.
        assert_eq!((out[80], out[0]), (2.0 * 7.0 * -0.875, 2.0 * -0.875));
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ1_M>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<IQ1_M>(0.47);
    }
}
