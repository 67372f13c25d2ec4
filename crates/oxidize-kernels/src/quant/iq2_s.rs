//! IQ2_S: groups of 8 magnitudes from a table of 1024, with all their signs.
//!
//! `w = d · (½ + scale) / 4 · ±grid`.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::grid_search::{Grid, Search, Shift, split_signs};
use super::grids::{IQ2_S_GRID, signed};
use super::iq2_xxs::{TOPS, grid};
use super::packing::scale_into;
use super::q8_k::Q8_K;
use super::weighting::{raised_square, weights};
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2_S {
    /// Scale of the scales.
    pub d: F16Le,
    /// Low bits of the table indices.
    pub qs: [u8; 32],
    /// One sign a bit.
    pub signs: [u8; 32],
    /// High 2 bits of four indices.
    pub qh: [u8; 8],
    /// Two 4-bit scales a byte.
    pub scales: [u8; 8],
}

assert_layout!(IQ2_S, 82);

impl IQ2_S {
    /// The weights in units of their group's scale.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        let mut levels = [0; 256];
        for (i, levels) in levels.chunks_exact_mut(8).enumerate() {
            let high = usize::from(self.qh[i / 4] >> (i % 4 * 2) & 3);
            let magnitudes = IQ2_S_GRID[usize::from(self.qs[i]) | high << 8].to_le_bytes();
            levels.copy_from_slice(&signed(magnitudes, self.signs[i]));
        }
        levels
    }

    /// The scales of the groups of 16: 0 to 15.
    #[inline(always)]
    fn group_scales(&self) -> [u8; 16] {
        std::array::from_fn(|i| self.scales[i / 2] >> (i % 2 * 4) & 15)
    }
}

impl Block for IQ2_S {
    const TYPE: TensorType = TensorType::IQ2_S;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        let (d, levels) = (self.d.to_f32(), self.levels());
        let groups = out.chunks_exact_mut(16).zip(levels.chunks_exact(16));
        for ((out, levels), scale) in groups.zip(self.group_scales()) {
            scale_into(out, d * (0.5 + f32::from(scale)) * 0.25, levels);
        }
    }
}

impl Dot for IQ2_S {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        // (½ + scale) / 4 is (2 · scale + 1) / 8.
        let sum = a.dot_levels(
            &self.levels(),
            &self.group_scales().map(|s| 2 * i32::from(s) + 1),
        );
        self.d.to_f32() * a.d.get() * 0.125 * sum as f32
    }
}

impl Quantize for IQ2_S {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        static GRID: LazyLock<Grid<8>> = LazyLock::new(|| grid(&IQ2_S_GRID));
        let w = weights(src, importance, 2.0, raised_square);
        let (signs, magnitudes) = split_signs(src, &w, false);
        let search = Search {
            grid: &GRID,
            per_scale: 2,
            last: 15,
            unit: 0.125,
            tops: TOPS,
            shift: Shift::None,
        };
        let found = search.run(&magnitudes, &w);
        let mut block = IQ2_S::zeroed();
        (block.d, block.signs) = (found.d, signs);
        for (i, entry) in found.entries[..32].iter().enumerate() {
            block.qs[i] = *entry as u8;
            block.qh[i / 4] |= ((entry >> 8) as u8) << (i % 4 * 2);
        }
        for (i, scale) in found.scales.into_iter().enumerate() {
            block.scales[i / 2] |= scale << (i % 2 * 4);
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
    fn dot_is_that_of_the_floats() {
        check_dot::<IQ2_S>();
    }

    #[test]
    fn floats_survive() {
        check_quantize::<IQ2_S>(0.26);
    }
}
