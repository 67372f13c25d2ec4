//! Q3_K: 16 groups of 16 weights of 3 bits, with a signed 6-bit scale each.
//!
//! `w = d · (scale − 32) · (q − 4)`. The low 2 bits lie as in Q2_K, the third bits in `hmask`.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q3_K {
    /// Third bits: bit `j` of byte `i` belongs to weight `32 j + i`.
    pub hmask: [u8; 32],
    /// Low bits, four weights a byte.
    pub qs: [u8; 64],
    /// Sixteen packed 6-bit scales.
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: F16Le,
}

assert_layout!(Q3_K, 110);
