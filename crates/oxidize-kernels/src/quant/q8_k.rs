//! Q8_K: 256 values of 8 bits, the activations of every 256-weight format.
//!
//! `w = d · q`. `bsums` spares dot products with minima the sums over the activations.

use bytemuck::{Pod, Zeroable};

use super::fields::{F32Le, I16Le};

/// A block of 256 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_K {
    /// Scale.
    pub d: F32Le,
    /// Values.
    pub qs: [i8; 256],
    /// Sums of `qs` by groups of 16.
    pub bsums: [I16Le; 16],
}

assert_layout!(Q8_K, 292);
