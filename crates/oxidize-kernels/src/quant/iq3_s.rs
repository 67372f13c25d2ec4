//! IQ3_S: groups of 4 magnitudes from a table of 512, with all their signs.
//!
//! `w = d · (1 + 2 · scale) · ±grid`.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::grid_search::{Grid, Search, Shift, split_signs};
use super::grids::{IQ3_S_GRID, signed};
use super::iq3_xxs::grid;
use super::packing::scale_into;
use super::q8_k::Q8_K;
use super::weighting::{raised_square, weights};
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
    /// One sign a bit.
    pub signs: [u8; 32],
    /// Two 4-bit scales a byte, for 32 weights each.
    pub scales: [u8; 4],
}

assert_layout!(IQ3_S, 110);

impl IQ3_S {
    /// The weights in units of their group's scale.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        let mut levels = [0; 256];
        for (i, levels) in levels.chunks_exact_mut(4).enumerate() {
            let high = usize::from(self.qh[i / 8] >> (i % 8) & 1);
            let magnitudes = IQ3_S_GRID[usize::from(self.qs[i]) | high << 8].to_le_bytes();
            levels.copy_from_slice(&signed(magnitudes, self.signs[i / 2] >> (i % 2 * 4)));
        }
        levels
    }

    /// The scales of the groups of 32: 0 to 15.
    #[inline(always)]
    fn group_scales(&self) -> [u8; 8] {
        std::array::from_fn(|i| self.scales[i / 2] >> (i % 2 * 4) & 15)
    }
}

impl Block for IQ3_S {
    const TYPE: TensorType = TensorType::IQ3_S;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        let (d, levels) = (self.d.to_f32(), self.levels());
        let groups = out.chunks_exact_mut(32).zip(levels.chunks_exact(32));
        for ((out, levels), scale) in groups.zip(self.group_scales()) {
            scale_into(out, d * f32::from(1 + 2 * scale), levels);
        }
    }
}

impl Dot for IQ3_S {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        let sum = a.dot_levels(
            &self.levels(),
            &self.group_scales().map(|s| 2 * i32::from(s) + 1),
        );
        self.d.to_f32() * a.d.get() * sum as f32
    }
}

impl Quantize for IQ3_S {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        static GRID: LazyLock<Grid<4>> = LazyLock::new(|| grid(&IQ3_S_GRID));
        let w = weights(src, importance, 2.0, raised_square);
        let (signs, magnitudes) = split_signs(src, &w, false);
        let search = Search {
            grid: &GRID,
            per_scale: 8,
            last: 15,
            unit: 1.0,
            tops: [9.0, 10.3, 11.5, 12.6, 13.7, 14.8, 16.0, 17.8],
            shift: Shift::None,
        };
        let found = search.run(&magnitudes, &w);
        let mut block = IQ3_S::zeroed();
        (block.d, block.signs) = (found.d, signs);
        for (i, entry) in found.entries.iter().enumerate() {
            block.qs[i] = *entry as u8;
            block.qh[i / 8] |= ((entry >> 8) as u8) << (i % 8);
        }
        for (i, scale) in found.scales[..8].iter().enumerate() {
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
    fn dot_is_that_of_the_floats() {
        check_dot::<IQ3_S>();
    }

    #[test]
    fn floats_survive() {
        check_quantize::<IQ3_S>(0.146);
    }
}
