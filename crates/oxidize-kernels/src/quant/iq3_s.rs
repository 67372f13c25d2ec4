//! IQ3_S: groups of 4 magnitudes from a codebook of 512 entries, with a sign bit per weight.
//!
//! `w = d · (1 + 2 · scale) · ±grid`.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::F16Le;
use super::grids::{IQ3_S_GRID, signed};
use super::iq3_xxs::grid;
use super::q8_k::Q8_K;
use super::search::grid::{Grid, Search, split_signs};
use super::unpacked::{UnpackedBlock, odd_scales, pack_scales};
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ3_S {
    /// Scale of the scales.
    pub d: F16Le,
    /// Low bits of the table indices.
    pub qs: [u8; 64],
    /// High bits of eight indices.
    pub qh: [u8; 8],
    /// One sign bit per weight.
    pub signs: [u8; 32],
    /// Two 4-bit scales per byte, for 32 weights each.
    pub scales: [u8; 4],
}

assert_layout!(IQ3_S, 110);

impl IQ3_S {
    #[inline(always)]
    pub(super) fn unpacked(&self) -> UnpackedBlock<8> {
        UnpackedBlock {
            d: self.d.to_f32(),
            sub_scales: self.sub_scales(),
            levels: self.levels(),
        }
    }

    #[inline(always)]
    pub(super) fn sub_scales(&self) -> [i32; 8] {
        odd_scales(&self.scales)
    }

    /// Returns the magnitudes and the sign bits of weights `8 i` to `8 i + 7`.
    #[inline(always)]
    pub(super) fn vector(&self, i: usize) -> (u64, u8) {
        let [low, high] = [2 * i, 2 * i + 1].map(|q| {
            let high = usize::from(self.qh[q / 8] >> (q % 8) & 1);
            IQ3_S_GRID[usize::from(self.qs[q]) | high << 8]
        });
        (u64::from(low) | u64::from(high) << 32, self.signs[i])
    }

    /// Returns the weights in units of their group's scale.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        signed(|i| self.vector(i))
    }
}

impl Block for IQ3_S {
    const TYPE: TensorType = TensorType::IQ3_S;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for IQ3_S {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for IQ3_S {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        const PEAKS: [f32; 8] = [9.5, 10.9, 12.2, 13.4, 14.6, 15.8, 17.2, 19.0];
        static GRID: LazyLock<Grid<4>> = LazyLock::new(|| grid(&IQ3_S_GRID));
        let w = error_weights(src, importance);
        let (signs, magnitudes) = split_signs(src, &w, false);
        let search = Search::of_magnitudes(&GRID, 8, 1.0, PEAKS);
        let found = search.run(&magnitudes, &w);
        let mut block = IQ3_S::zeroed();
        (block.d, block.signs) = (found.d, signs);
        block.scales = pack_scales(&found.scales);
        for (i, entry) in found.entries.iter().enumerate() {
            block.qs[i] = *entry as u8;
            block.qh[i / 8] |= ((entry >> 8) as u8) << (i % 8);
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
        let mut block = IQ3_S::zeroed();
        block.d = F16Le::from_f32(0.5);
        // Weights 108 to 111, group 3: the last entry of the table is 1, 1, 15, 15.
        block.qs[27] = 255;
        block.qh[3] = 1 << 3;
        block.signs[13] = 0b1001_0000;
        block.scales[1] = 0x20;
        let out = floats(&block);
        let expected = [-1.0, 1.0, 15.0, -15.0].map(|x| x * 2.5);
        assert_eq!(out[108..112], expected);
        assert_eq!(out[0], 0.5);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ3_S>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<IQ3_S>(0.146);
    }
}
