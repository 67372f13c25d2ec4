//! Q6_K: 16 groups of 16 weights of 6 bits, with an 8-bit scale each.
//!
//! `w = d · scale · (q − 32)`. Each half of the block has 64 bytes of low nibbles and 32 bytes
//! of high bits.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q6_K {
    /// Low nibbles, two weights a byte.
    pub ql: [u8; 128],
    /// High two bits, four weights a byte.
    pub qh: [u8; 64],
    /// One scale a group.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: F16Le,
}

assert_layout!(Q6_K, 210);
