//! IQ1_S: groups of 8 ternary weights from a codebook, shifted by an eighth.
//!
//! `w = d · (2 · scale + 1) · (grid ± ⅛)`. An index has 8 bits in `qs` and 3 in `qh`.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::{F16Le, U16Le};
use super::grids::IQ1_GRID;
use super::q8_k::Q8_K;
use super::search::ternary::{Grid, Search, Shift};
use super::unpacked::UnpackedBlock;
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ1_S {
    /// Scale of the scales.
    pub d: F16Le,
    /// Low bits of the table indices.
    pub qs: [u8; 32],
    /// Per 32 weights: 3 high bits of each of four indices, a 3-bit scale, the sign of the shift.
    pub qh: [U16Le; 8],
}

assert_layout!(IQ1_S, 50);

impl IQ1_S {
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
        self.qh.map(|qh| 2 * i32::from(qh.get() >> 12 & 7) + 1)
    }

    /// True if the weights of a group are shifted down, false if up.
    #[inline(always)]
    pub(super) fn is_down(&self, group: usize) -> bool {
        self.qh[group].get() & 0x8000 != 0
    }

    /// Returns weights `8 i` to `8 i + 7` before the shift, a byte each: −1, 0 or 1.
    #[inline(always)]
    pub(super) fn ternary(&self, i: usize) -> u64 {
        let high = usize::from(self.qh[i / 4].get() >> (i % 4 * 3) & 7);
        IQ1_GRID[usize::from(self.qs[i]) | high << 8]
    }

    /// Returns the weights in units of an eighth of their group's scale: −9 to 9.
    #[inline(always)]
    fn levels(&self) -> [i8; 256] {
        let mut levels = [0; 256];
        for (i, levels) in levels.chunks_exact_mut(8).enumerate() {
            levels.copy_from_slice(&shifted(self.ternary(i), self.is_down(i / 4)));
        }
        levels
    }
}

/// Returns an entry of the table in eighths, shifted by one eighth.
#[inline(always)]
pub(super) fn shifted(ternary: u64, is_down: bool) -> [i8; 8] {
    let delta = if is_down { -1 } else { 1 };
    ternary.to_le_bytes().map(|level| 8 * level as i8 + delta)
}

impl Block for IQ1_S {
    const TYPE: TensorType = TensorType::IQ1_S;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.unpacked().dequantize(out);
    }
}

impl Dot for IQ1_S {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        self.unpacked().dot(activations)
    }
}

impl Quantize for IQ1_S {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        let w = error_weights(src, importance);
        let mut x = [0.0; 256];
        x.copy_from_slice(src);
        let found = search(4, Shift::EachScale).run(&x, &w);
        let mut block = IQ1_S::zeroed();
        block.d = found.d;
        for (i, qh) in block.qh.iter_mut().enumerate() {
            let mut bits = u16::from(found.scales[i]) << 12;
            for j in 0..4 {
                let entry = found.entries[4 * i + j];
                block.qs[4 * i + j] = entry as u8;
                bits |= (entry >> 8 & 7) << (3 * j);
                // Entries from 2048 on are the table's entries shifted down.
                bits |= (entry >> 11) << 15;
            }
            *qh = bits.into();
        }
        block
    }
}

/// Returns the codebook search of IQ1_S and IQ1_M.
#[inline(always)]
pub(super) fn search(per_scale: usize, shift: Shift) -> Search<'static> {
    static GRID: LazyLock<Grid> = LazyLock::new(|| {
        Grid::new(
            IQ1_GRID
                .iter()
                .map(|entry| entry.to_le_bytes().map(|level| level as i8)),
        )
    });
    Search {
        grid: &GRID,
        per_scale,
        last: 7,
        unit: 1.0,
        peaks: [1.0, 1.15, 1.3, 1.5, 1.7, 1.9, 2.2, 2.6],
        shift,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = IQ1_S::zeroed();
        block.d = F16Le::from_f32(2.0);
        // Weights 88 to 95, group 2: the last entry of the table is 1 in all places.
        block.qs[11] = 255;
        block.qh[2] = U16Le::from(0x8000 | 3 << 12 | 7 << 9);
        let out = floats(&block);
        assert_eq!(out[88..96], [2.0 * 7.0 * 0.875; 8]);
        // Entry 0 is -1 in all places.
        assert_eq!((out[80], out[0]), (2.0 * 7.0 * -1.125, 2.0 * -0.875));
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<IQ1_S>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<IQ1_S>(0.53);
    }
}
