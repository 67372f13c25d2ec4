//! IQ3_XXS: groups of 4 magnitudes from a codebook of 256 entries, with packed signs.
//!
//! `w = d · (½ + scale) / 2 · ±grid`. The eighth sign of 8 weights is implied: the number
//! of negative weights is even.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::{F16Le, U32Le};
use super::grids::{IQ3_XXS_GRID, even_signs, signed};
use super::q8_k::Q8_K;
use super::search::grid::{Grid, Search, split_signs};
use super::unpacked::{UnpackedBlock, odd_scale, pack_signs};
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ3_XXS {
    /// Scale of the scales.
    pub d: F16Le,
    /// Table indices.
    pub qs: [u8; 64],
    /// Per 32 weights: four times 7 sign bits and a 4-bit scale.
    pub scales: [U32Le; 8],
}

assert_layout!(IQ3_XXS, 98);

impl IQ3_XXS {
    #[inline(always)]
    pub(super) fn unpacked(&self) -> UnpackedBlock<8> {
        UnpackedBlock {
            d: self.d.to_f32() * 0.25,
            sub_scales: self.sub_scales(),
            levels: self.levels(),
        }
    }

    #[inline(always)]
    pub(super) fn sub_scales(&self) -> [i32; 8] {
        self.scales.map(|s| odd_scale(s.get() >> 28))
    }

    /// Returns the magnitudes and the sign bits of weights `8 i` to `8 i + 7`.
    #[inline(always)]
    pub(super) fn vector(&self, i: usize) -> (u64, u8) {
        let signs = even_signs((self.scales[i / 4].get() >> (i % 4 * 7)) as u8);
        let [low, high] = [2 * i, 2 * i + 1].map(|q| IQ3_XXS_GRID[usize::from(self.qs[q])]);
        (u64::from(low) | u64::from(high) << 32, signs)
    }

    /// Returns the weights in units of their group's scale.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        signed(|i| self.vector(i))
    }
}

impl Block for IQ3_XXS {
    const TYPE: TensorType = TensorType::IQ3_XXS;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for IQ3_XXS {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for IQ3_XXS {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        const PEAKS: [f32; 8] = [36.0, 41.0, 46.0, 50.0, 54.0, 58.0, 63.0, 70.0];
        static GRID: LazyLock<Grid<4>> = LazyLock::new(|| grid(&IQ3_XXS_GRID));
        let w = error_weights(src, importance);
        let (signs, magnitudes) = split_signs(src, &w, true);
        let search = Search::of_magnitudes(&GRID, 8, 0.25, PEAKS);
        let found = search.run(&magnitudes, &w);
        let mut block = IQ3_XXS::zeroed();
        block.d = found.d;
        block.qs = found.entries.map(|entry| entry as u8);
        for (i, bits) in block.scales.iter_mut().enumerate() {
            *bits = pack_signs(&signs[4 * i..], found.scales[i]).into();
        }
        block
    }
}

/// Builds the search table of a codebook with four magnitudes per entry.
pub(super) fn grid(table: &[u32]) -> Grid<4> {
    Grid::new(
        table
            .iter()
            .map(|entry| entry.to_le_bytes().map(|m| m as i8)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = IQ3_XXS::zeroed();
        block.d = F16Le::from_f32(4.0);
        // Weights 108 to 111, group 3: entry 1 of the table starts with 0x14.
        block.qs[27] = 1;
        block.scales[3] = U32Le::from(2 << 28 | 0b101_0000 << 7);
        let out = floats(&block);
        let unit = 4.0 * 2.5 * 0.5;
        assert_eq!(out[104..108], [4.0 * unit; 4]);
        assert_eq!(out[108..112], [-20.0, 4.0, -4.0, 4.0].map(|x| x * unit));
        assert_eq!(out[0], 4.0);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ3_XXS>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<IQ3_XXS>(0.2);
    }
}
