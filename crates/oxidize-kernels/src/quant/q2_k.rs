//! Q2_K: 16 groups of 16 weights of 2 bits, with a 4-bit scale and minimum each.
//!
//! `w = d · scale · q − dmin · min`. Each 32 bytes of `qs` hold 128 weights, 2 bits at a time.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q2_K {
    /// A scale in the low nibble, a minimum in the high one.
    pub scales: [u8; 16],
    /// Four weights a byte.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: F16Le,
    /// Scale of the minima.
    pub dmin: F16Le,
}

assert_layout!(Q2_K, 84);
