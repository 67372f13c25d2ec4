//! [`Token`]: a row of quantised activations in the pieces that kernels walk through.

use super::vector::I8x16;
use crate::ops::matmul::{GROUP, QuantizedRows};

/// A token's activations. Scales and sums belong to eight groups of 32 at a time, ending in zeros.
#[derive(Clone, Copy)]
pub(crate) struct Token<'a> {
    pub(crate) quants: &'a [[i8; GROUP]],
    pub(crate) scales: &'a [[f32; 8]],
    pub(crate) sums: &'a [[f32; 8]],
    pub(crate) half_sums: &'a [[f32; 16]],
}

impl<'a> Token<'a> {
    /// One of the rows.
    #[inline(always)]
    pub(crate) fn new(rows: &'a QuantizedRows, row: usize) -> Self {
        let raw = rows.raw();
        let quants = rows.quants(row).as_chunks().0;
        let at = row * raw.group_stride;
        // SAFETY: `quants` has found that there is such a row of bytes; the buffers have a whole stride
        // of each row.
        let (scales, sums, half_sums) = unsafe {
            use std::slice::from_raw_parts as slice;
            (
                slice(raw.scales.add(at), raw.group_stride),
                slice(raw.sums.add(at), raw.group_stride),
                slice(raw.half_sums.add(2 * at), 2 * raw.group_stride),
            )
        };
        Token {
            quants,
            scales: scales.as_chunks().0,
            sums: sums.as_chunks().0,
            half_sums: half_sums.as_chunks().0,
        }
    }

    /// A group of 32.
    #[inline(always)]
    pub(crate) fn group(&self, group: usize) -> [I8x16; 2] {
        super::format::bytes32(bytemuck::cast_ref(&self.quants[group]))
    }
}
