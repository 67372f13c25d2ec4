//! IQ2_S: groups of 8 magnitudes from a table of 1024, with all their signs.
//!
//! `w = d · (½ + scale) / 4 · ±grid`.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

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
