//! TQ1_0: 256 ternary weights, five to a byte.
//!
//! `w = d · (q − 1)`. A byte is a fraction of 256 whose base-3 digits are the weights: times 3,
//! the carry is the next.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TQ1_0 {
    /// Five weights a byte: 32 bytes for the first 160, 16 bytes for the next 80.
    pub qs: [u8; 48],
    /// Four weights a byte.
    pub qh: [u8; 4],
    /// Scale.
    pub d: F16Le,
}

assert_layout!(TQ1_0, 54);
