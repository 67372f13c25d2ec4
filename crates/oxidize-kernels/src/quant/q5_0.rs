//! Q5_0: 32 weights of 5 bits around zero, one scale.
//!
//! `w = d · (q − 16)`. Nibbles as in Q4_0; bit `i` of `qh` is the fifth bit of weight `i`.

use bytemuck::{Pod, Zeroable};

use super::fields::{F16Le, U32Le};

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_0 {
    /// Scale.
    pub d: F16Le,
    /// Fifth bits.
    pub qh: U32Le,
    /// Low nibbles, two weights a byte.
    pub qs: [u8; 16],
}

assert_layout!(Q5_0, 22);
