//! IQ1_S: groups of 8 ternary weights from a table, shifted by an eighth.
//!
//! `w = d · (2 · scale + 1) · (grid ± ⅛)`. An index has 8 bits in `qs` and 3 in `qh`.

use bytemuck::{Pod, Zeroable};

use super::fields::{F16Le, U16Le};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ1_S {
    /// Scale of the scales.
    pub d: F16Le,
    /// Low bits of the table indices.
    pub qs: [u8; 32],
    /// For 32 weights: four times 3 high bits of indices, a 3-bit scale, the sign of the shift.
    pub qh: [U16Le; 8],
}

assert_layout!(IQ1_S, 50);
