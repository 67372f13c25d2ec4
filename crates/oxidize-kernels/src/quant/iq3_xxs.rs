//! IQ3_XXS: groups of 4 magnitudes from a table of 256, with packed signs.
//!
//! `w = d · (½ + scale) / 2 · ±grid`. The eighth sign of 8 weights makes the number of minuses
//! even.

use bytemuck::{Pod, Zeroable};

use super::fields::{F16Le, U32Le};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ3_XXS {
    /// Scale of the scales.
    pub d: F16Le,
    /// Table indices.
    pub qs: [u8; 64],
    /// For 32 weights: four times 7 sign bits and a 4-bit scale.
    pub scales: [U32Le; 8],
}

assert_layout!(IQ3_XXS, 98);
