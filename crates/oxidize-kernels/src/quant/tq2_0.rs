//! TQ2_0: 256 ternary weights, four to a byte.
//!
//! `w = d · (q − 1)`. Each 32 bytes of `qs` hold 128 weights, 2 bits at a time.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TQ2_0 {
    /// Four weights a byte.
    pub qs: [u8; 64],
    /// Scale.
    pub d: F16Le,
}

assert_layout!(TQ2_0, 66);
