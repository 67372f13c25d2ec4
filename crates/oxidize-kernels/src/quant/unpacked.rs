//! [`UnpackedBlock`]: the common unpacked form of most 256-weight formats.
//!
//! The formats differ in how they pack these parts, not in how the parts are used.

use super::packing::scale_into;
use super::q8_k::Q8_K;

/// 256 weights in `G` groups: a weight is `d · sub_scale · level`.
pub(super) struct UnpackedBlock<const G: usize> {
    /// Scale of the sub-scales.
    pub(super) d: f32,
    /// Integer sub-scale of each group.
    pub(super) sub_scales: [i32; G],
    /// Weights in units of their group's scale.
    pub(super) levels: [i8; 256],
}

impl<const G: usize> UnpackedBlock<G> {
    /// Returns the scale of a group.
    #[inline(always)]
    pub(super) fn scale(&self, group: usize) -> f32 {
        self.d * self.sub_scales[group] as f32
    }

    /// Writes the weights.
    #[inline(always)]
    pub(super) fn dequantize(&self, out: &mut [f32]) {
        let levels = self.levels.chunks_exact(256 / G);
        let groups = out.chunks_exact_mut(256 / G).zip(levels);
        for (group, (out, levels)) in groups.enumerate() {
            scale_into(out, self.scale(group), levels);
        }
    }

    /// Returns the dot product with a block of activations.
    #[inline(always)]
    pub(super) fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        self.d * a.d.get() * a.dot_levels(&self.levels, &self.sub_scales) as f32
    }
}

/// Returns `2 · scale + 1`: the IQ formats store `scale` for a sub-scale of `scale + ½`, here in halves.
#[inline(always)]
pub(super) fn odd_scale(scale: u32) -> i32 {
    2 * scale as i32 + 1
}

/// Unpacks `G` stored scales, two per byte, to [`odd_scale`] sub-scales.
#[inline(always)]
pub(super) fn odd_scales<const G: usize>(packed: &[u8]) -> [i32; G] {
    std::array::from_fn(|i| odd_scale(u32::from(packed[i / 2] >> (i % 2 * 4) & 15)))
}

/// Packs stored scales two per byte, for [`odd_scales`] to unpack.
#[inline(always)]
pub(super) fn pack_scales<const BYTES: usize>(scales: &[u8]) -> [u8; BYTES] {
    std::array::from_fn(|i| scales[2 * i] | scales[2 * i + 1] << 4)
}

/// Packs four times 7 sign bits and, in the top bits, a 4-bit scale. The eighth signs are implied by the
/// others.
#[inline(always)]
pub(super) fn pack_signs(signs: &[u8], scale: u8) -> u32 {
    let packed = signs[..4].iter().rev();
    packed.fold(u32::from(scale), |bits, signs| {
        bits << 7 | u32::from(signs & 127)
    })
}
