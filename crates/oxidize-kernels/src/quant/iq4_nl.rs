//! IQ4_NL: 32 weights of 4 bits that choose among 16 uneven levels.
//!
//! `w = d · level[q]`. Nibbles lie as in Q4_0.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct IQ4_NL {
    /// Scale.
    pub d: F16Le,
    /// Two weights a byte.
    pub qs: [u8; 16],
}

assert_layout!(IQ4_NL, 18);
