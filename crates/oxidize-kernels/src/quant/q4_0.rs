//! Q4_0: 32 weights of 4 bits around zero, one scale.
//!
//! `w = d · (q − 8)`. Byte `i` holds weight `i` in its low nibble and weight `i + 16` in its
//! high one.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_0 {
    /// Scale.
    pub d: F16Le,
    /// Two weights a byte.
    pub qs: [u8; 16],
}

assert_layout!(Q4_0, 18);
