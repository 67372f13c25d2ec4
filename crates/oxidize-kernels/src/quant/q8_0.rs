//! Q8_0: 32 weights of 8 bits, one scale.
//!
//! `w = d · q`. Also the activations of the 32-weight formats that have no minimum.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_0 {
    /// Scale.
    pub d: F16Le,
    /// Weights.
    pub qs: [i8; 32],
}

assert_layout!(Q8_0, 34);
