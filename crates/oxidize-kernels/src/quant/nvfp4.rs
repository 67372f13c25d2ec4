//! NVFP4: 4 groups of 16 weights of 4-bit float (E2M1), with an E4M3 scale each.
//!
//! `w = d · E2M1`. In each 8 bytes, low nibbles are the first 8 weights of the group.

use bytemuck::{Pod, Zeroable};

/// A block of 64 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct NVFP4 {
    /// Scales, as unsigned E4M3.
    pub d: [u8; 4],
    /// Two weights a byte, 8 bytes a group.
    pub qs: [u8; 32],
}

assert_layout!(NVFP4, 36);
