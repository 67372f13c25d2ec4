//! IQ2_XXS: groups of 8 magnitudes from a codebook of 256 entries, with packed signs.
//!
//! `w = d · (½ + scale) / 4 · ±grid`. The eighth sign of a group is implied: the number
//! of negative weights is even.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::F16Le;
use super::grids::{IQ2_XXS_GRID, even_signs, signed};
use super::q8_k::Q8_K;
use super::search::grid::{Grid, Search, split_signs};
use super::unpacked::{UnpackedBlock, odd_scale, pack_signs};
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2_XXS {
    /// Scale of the scales.
    pub d: F16Le,
    /// Per 32 weights: four table indices, then four times 7 sign bits and a 4-bit scale.
    pub qs: [[u8; 8]; 8],
}

assert_layout!(IQ2_XXS, 66);

impl IQ2_XXS {
    #[inline(always)]
    pub(super) fn unpacked(&self) -> UnpackedBlock<8> {
        UnpackedBlock {
            d: self.d.to_f32() * 0.125,
            sub_scales: self.sub_scales(),
            levels: self.levels(),
        }
    }

    #[inline(always)]
    pub(super) fn sub_scales(&self) -> [i32; 8] {
        self.qs.map(|qs| odd_scale(signs_and_scale(&qs) >> 28))
    }

    /// Returns the magnitudes and the sign bits of weights `8 i` to `8 i + 7`.
    #[inline(always)]
    pub(super) fn vector(&self, i: usize) -> (u64, u8) {
        let qs = &self.qs[i / 4];
        let signs = even_signs((signs_and_scale(qs) >> (i % 4 * 7)) as u8);
        (IQ2_XXS_GRID[usize::from(qs[i % 4])], signs)
    }

    /// Returns the weights in units of their group's scale.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        signed(|i| self.vector(i))
    }
}

#[inline(always)]
fn signs_and_scale(qs: &[u8; 8]) -> u32 {
    u32::from_le_bytes([qs[4], qs[5], qs[6], qs[7]])
}

impl Block for IQ2_XXS {
    const TYPE: TensorType = TensorType::IQ2_XXS;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for IQ2_XXS {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for IQ2_XXS {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        static GRID: LazyLock<Grid<8>> = LazyLock::new(|| grid(&IQ2_XXS_GRID));
        let w = error_weights(src, importance);
        let (signs, magnitudes) = split_signs(src, &w, true);
        let search = Search::of_magnitudes(&GRID, 4, 0.125, PEAKS);
        let found = search.run(&magnitudes, &w);
        let mut block = IQ2_XXS::zeroed();
        block.d = found.d;
        for (i, qs) in block.qs.iter_mut().enumerate() {
            let entries = &found.entries[4 * i..][..4];
            for (q, entry) in qs.iter_mut().zip(entries) {
                *q = *entry as u8;
            }
            let bits = pack_signs(&signs[4 * i..], found.scales[i]);
            qs[4..].copy_from_slice(&bits.to_le_bytes());
        }
        block
    }
}

/// Builds the search table of a codebook with eight magnitudes per entry.
pub(super) fn grid(table: &[u64]) -> Grid<8> {
    Grid::new(
        table
            .iter()
            .map(|entry| entry.to_le_bytes().map(|m| m as i8)),
    )
}

/// Magnitudes tried for the largest element. The codebook has 8, 25 and 43.
pub(super) const PEAKS: [f32; 8] = [26.0, 30.0, 34.0, 38.0, 42.0, 46.0, 51.0, 57.0];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = IQ2_XXS::zeroed();
        block.d = F16Le::from_f32(8.0);
        // Group 3: entry 1 of the table starts with 0x2b; signs 0b10 imply that the eighth is negative.
        let signs_and_scale: u32 = 2 << 28 | 0b10 << 7;
        block.qs[3][1] = 1;
        block.qs[3][4..].copy_from_slice(&signs_and_scale.to_le_bytes());
        let out = floats(&block);
        let unit = 8.0 * 2.5 * 0.25;
        let expected = [43.0, -8.0, 8.0, 8.0, 8.0, 8.0, 8.0, -8.0].map(|x| x * unit);
        assert_eq!(out[104..112], expected);
        assert_eq!(out[0], 8.0);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ2_XXS>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<IQ2_XXS>(0.37);
    }
}
