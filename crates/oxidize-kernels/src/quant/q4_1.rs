//! Q4_1: 32 weights of 4 bits above a minimum.
//!
//! `w = d · q + m`. Byte `i` holds weight `i` in its low nibble and weight `i + 16` in its high
//! one.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_1 {
    /// Scale.
    pub d: F16Le,
    /// Minimum.
    pub m: F16Le,
    /// Two weights a byte.
    pub qs: [u8; 16],
}

assert_layout!(Q4_1, 20);
