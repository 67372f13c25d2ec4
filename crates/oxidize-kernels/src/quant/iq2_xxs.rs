//! IQ2_XXS: groups of 8 magnitudes from a table of 256, with packed signs.
//!
//! `w = d · (½ + scale) / 4 · ±grid`. The eighth sign of a group makes the number of minuses
//! even.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2_XXS {
    /// Scale of the scales.
    pub d: F16Le,
    /// For 32 weights: four table indices, then four times 7 sign bits and a 4-bit scale.
    pub qs: [[u8; 8]; 8],
}

assert_layout!(IQ2_XXS, 66);
