//! IQ1_M: IQ1_S with a scale for 16 weights and a shift for 8.
//!
//! `w = d · (2 · scale + 1) · (grid ± ⅛)`. The half-precision `d` is spread over the top
//! nibbles of `scales`.

use bytemuck::{Pod, Zeroable};

use super::fields::{F16Le, U16Le};
use super::grids::IQ1_GRID;
use super::iq1_s::{search, shifted};
use super::levels::Levels;
use super::q8_k::Q8_K;
use super::ternary_search::Shift;
use super::weighting::weights;
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ1_M {
    /// Low bits of the table indices.
    pub qs: [u8; 32],
    /// A nibble for 8 weights: 3 high bits of the index, the sign of the shift.
    pub qh: [u8; 16],
    /// Four 3-bit scales and a quarter of `d` each.
    pub scales: [U16Le; 4],
}

assert_layout!(IQ1_M, 56);

impl IQ1_M {
    #[inline(always)]
    pub(super) fn unpacked(&self) -> Levels<16> {
        Levels {
            unit: self.d() * 0.125,
            multiples: self.multiples(),
            levels: self.levels(),
        }
    }

    #[inline(always)]
    pub(super) fn multiples(&self) -> [i32; 16] {
        std::array::from_fn(|i| 2 * i32::from(self.scales[i / 4].get() >> (i % 4 * 3) & 7) + 1)
    }

    /// Whether weights `8 i` to `8 i + 7` are moved down, not up.
    #[inline(always)]
    pub(super) fn is_down(&self, i: usize) -> bool {
        self.qh[i / 2] >> (i % 2 * 4) & 8 != 0
    }

    /// These weights before they are moved: −1, 0 or 1.
    #[inline(always)]
    pub(super) fn ternary(&self, i: usize) -> u64 {
        let high = usize::from(self.qh[i / 2] >> (i % 2 * 4) & 7);
        IQ1_GRID[usize::from(self.qs[i]) | high << 8]
    }

    /// The weights in units of an eighth of their group's scale: −9 to 9.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        let mut levels = [0; 256];
        for (i, levels) in levels.chunks_exact_mut(8).enumerate() {
            levels.copy_from_slice(&shifted(self.ternary(i), self.is_down(i)));
        }
        levels
    }

    /// The scale of the scales.
    #[inline(always)]
    pub fn d(&self) -> f32 {
        self.half().to_f32()
    }

    /// The same as it is stored.
    #[inline(always)]
    pub(super) fn half(&self) -> F16Le {
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
        let w = weights(src, importance);
        let mut x = [0.0; 256];
        x.copy_from_slice(src);
        let found = search(2, Shift::EachVector).run(&x, &w);
        let mut block = IQ1_M::zeroed();
        for (i, entry) in found.entries[..32].iter().enumerate() {
            block.qs[i] = *entry as u8;
            // Those that are moved down come after the table's 2048.
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
        // 2.0 is 0x4000: its top nibble is in the last of the scales.
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
    fn dot_is_that_of_the_floats() {
        check_dot::<IQ1_M>();
    }

    #[test]
    fn floats_survive() {
        check_quantize::<IQ1_M>(0.47);
    }
}
