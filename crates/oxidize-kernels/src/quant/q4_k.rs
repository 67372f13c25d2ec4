//! Q4_K: 8 groups of 32 weights of 4 bits, with a 6-bit scale and minimum each.
//!
//! `w = d · scale · q − dmin · min`. Each 32 bytes of `qs` hold 64 weights, low nibbles first.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_K {
    /// Scale of the scales.
    pub d: F16Le,
    /// Scale of the minima.
    pub dmin: F16Le,
    /// Eight packed pairs of 6-bit scale and minimum.
    pub scales: [u8; 12],
    /// Two weights a byte.
    pub qs: [u8; 128],
}

assert_layout!(Q4_K, 144);
