//! Q5_K: 8 groups of 32 weights of 5 bits, with a 6-bit scale and minimum each.
//!
//! `w = d · scale · q − dmin · min`. Nibbles and scales lie as in Q4_K, the fifth bits in `qh`.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_K {
    /// Scale of the scales.
    pub d: F16Le,
    /// Scale of the minima.
    pub dmin: F16Le,
    /// Eight packed pairs of 6-bit scale and minimum.
    pub scales: [u8; 12],
    /// Fifth bits: bit `j` of byte `i` belongs to weight `32 j + i`.
    pub qh: [u8; 32],
    /// Low nibbles, two weights a byte.
    pub qs: [u8; 128],
}

assert_layout!(Q5_K, 176);
