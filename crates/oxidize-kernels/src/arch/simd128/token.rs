//! [`Token`]: a row of quantized activations, split as kernels read it.

use super::vector::I8x16;
use crate::ops::matmul::{GROUP, QuantizedRows};

/// Activations of a token. Scales and sums come in runs of eight groups of 32, padded with zeros.
#[derive(Clone, Copy)]
pub(crate) struct Token<'a> {
    pub(crate) quants: &'a [[i8; GROUP]],
    pub(crate) scales: &'a [[f32; 8]],
    pub(crate) sums: &'a [[f32; 8]],
    pub(crate) half_sums: &'a [[f32; 16]],
}

impl<'a> Token<'a> {
    /// The activations of a row.
    #[inline(always)]
    pub(crate) fn new(rows: &'a QuantizedRows, row: usize) -> Self {
        let raw = rows.raw();
        let quants = rows.quants(row).as_chunks().0;
        let at = row * raw.group_stride;
        // SAFETY: `quants` has asserted that `row` is a row of 8-bit integers; the buffers of scales, sums
        // and half sums then have a whole stride of it, and are borrowed for `'a`.
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
