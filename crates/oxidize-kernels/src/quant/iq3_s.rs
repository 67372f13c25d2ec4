//! IQ3_S: groups of 4 magnitudes from a table of 512, with all their signs.
//!
//! `w = d · (1 + 2 · scale) · ±grid`.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

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
