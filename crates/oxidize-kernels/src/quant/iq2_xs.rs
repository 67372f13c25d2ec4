//! IQ2_XS: groups of 8 magnitudes from a table of 512, a scale for 16 weights.
//!
//! `w = d · (½ + scale) / 4 · ±grid`. The eighth sign of a group makes the number of minuses
//! even.

use bytemuck::{Pod, Zeroable};

use super::fields::{F16Le, U16Le};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2_XS {
    /// Scale of the scales.
    pub d: F16Le,
    /// A 9-bit table index and 7 sign bits for 8 weights.
    pub qs: [U16Le; 32],
    /// Two 4-bit scales a byte.
    pub scales: [u8; 8],
}

assert_layout!(IQ2_XS, 74);
