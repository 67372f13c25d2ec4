//! Q8_1: Q8_0 with the sum of its values, the activations of formats that have a minimum.
//!
//! `w = d · q`. `s` spares a dot product with `q + m` the sum over the activations.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;

/// A block of 32 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_1 {
    /// Scale.
    pub d: F16Le,
    /// `d` times the sum of `qs`.
    pub s: F16Le,
    /// Values.
    pub qs: [i8; 32],
}

assert_layout!(Q8_1, 36);
