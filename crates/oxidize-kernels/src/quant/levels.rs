//! [`Levels`]: what most blocks of 256 weights are once their bits are unpacked.
//!
//! The formats differ in how they pack these parts, not in what is done with them.

use super::packing::scale_into;
use super::q8_k::Q8_K;

/// Weights in `G` groups, each `unit · multiple · level`.
pub(super) struct Levels<const G: usize> {
    /// The scale of the block.
    pub(super) unit: f32,
    /// The scale of each group, in units.
    pub(super) multiples: [i32; G],
    /// Each weight, in units of its group's scale.
    pub(super) levels: [i8; 256],
}

impl<const G: usize> Levels<G> {
    /// The scale of a group.
    #[inline(always)]
    pub(super) fn scale(&self, group: usize) -> f32 {
        self.unit * self.multiples[group] as f32
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

    /// The dot product with a block of activations.
    #[inline(always)]
    pub(super) fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        self.unit * a.d.get() * a.dot_levels(&self.levels, &self.multiples) as f32
    }
}

/// A stored scale as formats of odd multiples mean it: `scale + ½` in units of a half.
#[inline(always)]
pub(super) fn odd(scale: u32) -> i32 {
    2 * scale as i32 + 1
}

/// The [`odd`] multiples of `G` scales, two a byte.
#[inline(always)]
pub(super) fn odd_nibbles<const G: usize>(packed: &[u8]) -> [i32; G] {
    std::array::from_fn(|i| odd(u32::from(packed[i / 2] >> (i % 2 * 4) & 15)))
}

/// Undoes the packing that [`odd_nibbles`] reads.
#[inline(always)]
pub(super) fn pack_scales<const BYTES: usize>(scales: &[u8]) -> [u8; BYTES] {
    std::array::from_fn(|i| scales[2 * i] | scales[2 * i + 1] << 4)
}

/// Four times 7 sign bits, the eighth of each following from them, and a 4-bit scale above.
#[inline(always)]
pub(super) fn pack_signs(signs: &[u8], scale: u8) -> u32 {
    let packed = signs[..4].iter().rev();
    packed.fold(u32::from(scale), |bits, signs| {
        bits << 7 | u32::from(signs & 127)
    })
}
