//! MXFP4: 32 weights of 4-bit float (E2M1) with a power of two as their scale.
//!
//! `w = 2^(e − 127) · E2M1`, from the OCP Microscaling Formats specification, version 1.0.
//! Nibbles lie as in Q4_0.

use bytemuck::{Pod, Zeroable};

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct MXFP4 {
    /// Exponent of the scale (E8M0).
    pub e: u8,
    /// Two weights a byte.
    pub qs: [u8; 16],
}

assert_layout!(MXFP4, 17);
