//! IQ1_M: IQ1_S with a scale for 16 weights and a shift for 8.
//!
//! `w = d · (2 · scale + 1) · (grid ± ⅛)`. The half-precision `d` is spread over the top
//! nibbles of `scales`.

use bytemuck::{Pod, Zeroable};

use super::fields::U16Le;

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ1_M {
    /// Low bits of the table indices.
    pub qs: [u8; 32],
    /// A nibble for 8 weights: 3 high bits of the index, the sign of the shift.
    pub qh: [u8; 16],
    /// Four 3-bit scales and a quarter of `d` each.
    pub scales: [U16Le; 4],
}

assert_layout!(IQ1_M, 56);
