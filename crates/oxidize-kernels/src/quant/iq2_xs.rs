//! IQ2_XS: groups of 8 magnitudes from a codebook of 512 entries, with a scale per 16 weights.
//!
//! `w = d · (½ + scale) / 4 · ±grid`. The eighth sign of a group is implied: the number
//! of negative weights is even.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::{F16Le, U16Le};
use super::grids::{IQ2_XS_GRID, even_signs, signed};
use super::iq2_xxs::{PEAKS, grid};
use super::q8_k::Q8_K;
use super::search::grid::{Grid, Search, split_signs};
use super::unpacked::{UnpackedBlock, odd_scales, pack_scales};
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2_XS {
    /// Scale of the scales.
    pub d: F16Le,
    /// A 9-bit table index and 7 sign bits per 8 weights.
    pub qs: [U16Le; 32],
    /// Two 4-bit scales per byte.
    pub scales: [u8; 8],
}

assert_layout!(IQ2_XS, 74);

impl IQ2_XS {
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
        let q = self.qs[i].get();
        (
            IQ2_XS_GRID[usize::from(q & 511)],
            even_signs((q >> 9) as u8),
        )
    }

    /// Returns the weights in units of their group's scale.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        signed(|i| self.vector(i))
    }
}

impl Block for IQ2_XS {
    const TYPE: TensorType = TensorType::IQ2_XS;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for IQ2_XS {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for IQ2_XS {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        static GRID: LazyLock<Grid<8>> = LazyLock::new(|| grid(&IQ2_XS_GRID));
        let w = error_weights(src, importance);
        let (signs, magnitudes) = split_signs(src, &w, true);
        let search = Search::of_magnitudes(&GRID, 2, 0.125, PEAKS);
        let found = search.run(&magnitudes, &w);
        let mut block = IQ2_XS::zeroed();
        (block.d, block.scales) = (found.d, pack_scales(&found.scales));
        for (i, q) in block.qs.iter_mut().enumerate() {
            *q = U16Le::from(found.entries[i] | u16::from(signs[i] & 127) << 9);
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
        let mut block = IQ2_XS::zeroed();
        block.d = F16Le::from_f32(8.0);
        // Weights 88 to 95, group 5: the last entry of the table is 0x2b in all places.
        block.qs[11] = U16Le::from(511 | 0b100_0001 << 9);
        block.scales[2] = 0x30;
        let out = floats(&block);
        let unit = 8.0 * 3.5 * 0.25;
        let expected = [-43.0, 43.0, 43.0, 43.0, 43.0, 43.0, -43.0, 43.0].map(|x| x * unit);
        assert_eq!(out[88..96], expected);
        assert_eq!(out[0], 8.0);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ2_XS>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<IQ2_XS>(0.31);
    }
}
