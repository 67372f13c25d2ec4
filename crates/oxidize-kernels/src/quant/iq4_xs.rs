//! IQ4_XS: IQ4_NL in 8 groups of 32 weights, with a signed 6-bit scale each.
//!
//! `w = d · (scale − 32) · level[q]`.

use bytemuck::{Pod, Zeroable};

use super::fields::{F16Le, U16Le};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ4_XS {
    /// Scale of the scales.
    pub d: F16Le,
    /// High 2 bits of the scales.
    pub scales_h: U16Le,
    /// Low 4 bits of the scales, two a byte.
    pub scales_l: [u8; 4],
    /// Two weights a byte, 16 bytes a group.
    pub qs: [u8; 128],
}

assert_layout!(IQ4_XS, 136);
