//! IQ2_S: groups of 8 magnitudes from a codebook of 1024 entries, with a sign bit per weight.
//!
//! `w = d · (½ + scale) / 4 · ±grid`.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::F16Le;
use super::grids::{IQ2_S_GRID, signed};
use super::iq2_xxs::{PEAKS, grid};
use super::q8_k::Q8_K;
use super::search::grid::{Grid, Search, split_signs};
use super::unpacked::{UnpackedBlock, odd_scales, pack_scales};
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2_S {
    /// Scale of the scales.
    pub d: F16Le,
    /// Low bits of the table indices.
    pub qs: [u8; 32],
    /// One sign bit per weight.
    pub signs: [u8; 32],
    /// High 2 bits of four indices.
    pub qh: [u8; 8],
    /// Two 4-bit scales per byte.
    pub scales: [u8; 8],
}

assert_layout!(IQ2_S, 82);

impl IQ2_S {
    #[inline(always)]
    pub(super) fn unpacked(&self) -> UnpackedBlock<16> {
        UnpackedBlock {
            d: self.d.to_f32() * 0.125,
            sub_scales: self.sub_scales(),
            levels: self.levels(),
        }
    }

    #[inline(always)]
    pub(super) fn sub_scales(&self) -> [i32; 16] {
        odd_scales(&self.scales)
    }

    /// Returns the magnitudes and the sign bits of weights `8 i` to `8 i + 7`.
    #[inline(always)]
    pub(super) fn vector(&self, i: usize) -> (u64, u8) {
        let high = usize::from(self.qh[i / 4] >> (i % 4 * 2) & 3);
        let magnitudes = IQ2_S_GRID[usize::from(self.qs[i]) | high << 8];
        (magnitudes, self.signs[i])
    }

    /// Returns the weights in units of their group's scale.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        signed(|i| self.vector(i))
    }
}

impl Block for IQ2_S {
    const TYPE: TensorType = TensorType::IQ2_S;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for IQ2_S {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for IQ2_S {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        static GRID: LazyLock<Grid<8>> = LazyLock::new(|| grid(&IQ2_S_GRID));
        let w = error_weights(src, importance);
        let (signs, magnitudes) = split_signs(src, &w, false);
        let search = Search::of_magnitudes(&GRID, 2, 0.125, PEAKS);
        let found = search.run(&magnitudes, &w);
        let mut block = IQ2_S::zeroed();
        (block.d, block.signs) = (found.d, signs);
        block.scales = pack_scales(&found.scales);
        for (i, entry) in found.entries[..32].iter().enumerate() {
            block.qs[i] = *entry as u8;
            block.qh[i / 4] |= ((entry >> 8) as u8) << (i % 4 * 2);
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
        let mut block = IQ2_S::zeroed();
        block.d = F16Le::from_f32(8.0);
        // Weights 88 to 95, group 5: the last entry of the table is 0x2b in all places.
        block.qs[11] = 255;
        block.qh[2] = 0b1100_0000;
        block.signs[11] = 0b1000_0001;
        block.scales[2] = 0x30;
        let out = floats(&block);
        let unit = 8.0 * 3.5 * 0.25;
        let expected = [-43.0, 43.0, 43.0, 43.0, 43.0, 43.0, 43.0, -43.0].map(|x| x * unit);
        assert_eq!(out[88..96], expected);
        assert_eq!(out[0], 8.0);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ2_S>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<IQ2_S>(0.26);
    }
}
