//! Panels: 8 weight rows unpacked, in the order in which the tile kernel reads them.
//!
//! Whatever the format, a panel holds the same few elements of every row, then the following ones, in the
//! order of [`Int8Dot::transpose`]. For each group it has 8 scales and 8 minima. A panel is unpacked once and
//! serves every token.

use super::format::{CHUNK, Format, Scales};
use super::vector::{I8x16, I32x4};
use super::{Int8Dot, Registers};
use crate::ops::matmul::{WeightRows, grown};

/// Rows of a panel: two registers of four.
pub(crate) const ROWS: usize = 8;

/// A panel in a thread's scratch memory.
pub(crate) struct Panel<'a> {
    /// Four pairs of registers for each 16 elements of `k`, or for each 8 if they are widened.
    pub(crate) weights: &'a [Registers],
    /// Scales of each group.
    pub(crate) scales: &'a [[f32; ROWS]],
    /// Minima of each group, if the format has any.
    pub(crate) mins: &'a [[f32; ROWS]],
}

impl<'a> Panel<'a> {
    /// Unpacks rows from `first` on, repeating the last row past the end.
    pub(crate) fn unpack<F: Format, P: Int8Dot>(
        weight: &WeightRows<'_>,
        first: usize,
        bytes: &'a mut Vec<u8>,
        floats: &'a mut Vec<f32>,
    ) -> Panel<'a> {
        let (k, last) = (weight.k(), weight.rows() - 1);
        let chunks = k.div_ceil(CHUNK);
        let chunk_groups = CHUNK / F::GROUP;
        let weights = grown(bytes, ROWS * P::WIDTH * chunks * CHUNK);
        let weights: &mut [Registers] = bytemuck::cast_slice_mut(weights);
        let floats = grown(floats, 2 * ROWS * chunks * chunk_groups);
        let floats: &mut [[f32; ROWS]] = bytemuck::cast_slice_mut(floats);
        let (scales, mins) = floats.split_at_mut(chunks * chunk_groups);
        for half in 0..2 {
            let rows: [&[F::Block]; 4] = std::array::from_fn(|r| {
                bytemuck::cast_slice(weight.row((first + 4 * half + r).min(last)))
            });
            for c in 0..chunks {
                let rows = rows.map(|row| {
                    let rest = &row[c * F::BLOCKS..];
                    &rest[..rest.len().min(F::BLOCKS)]
                });
                let row_scales = rows.map(|row| {
                    let mut scales = Scales::ZERO;
                    F::scales(row, &mut scales);
                    scales
                });
                let groups = c * chunk_groups..(c + 1) * chunk_groups;
                transpose_scales(
                    row_scales.each_ref().map(|x| &x.scale),
                    &mut scales[groups.clone()],
                    half,
                );
                if F::MIN {
                    transpose_scales(
                        row_scales.each_ref().map(|x| &x.min),
                        &mut mins[groups],
                        half,
                    );
                }
                let registers = CHUNK / 4 * P::WIDTH;
                transpose_weights::<F, P>(rows, &mut weights[c * registers..][..registers], half);
            }
        }
        Panel {
            weights: &weights[..k / 4 * P::WIDTH],
            scales: &scales[..k / F::GROUP],
            mins: &mins[..k / F::GROUP],
        }
    }
}

/// Writes the scales or minima of four rows to half of the columns.
#[inline(always)]
fn transpose_scales(rows: [&[f32; 16]; 4], out: &mut [[f32; ROWS]], half: usize) {
    let rows: [&[[i32; 4]; 4]; 4] = rows.map(bytemuck::cast_ref);
    for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let columns = I32x4::transpose(rows.map(|row| I32x4::load(&row[i])));
        for (column, out) in columns.into_iter().zip(out) {
            column.as_floats().store(&mut out.as_chunks_mut().0[half]);
        }
    }
}

/// Unpacks a chunk of four rows and writes it to half of a panel's registers.
#[inline(always)]
fn transpose_weights<F: Format, P: Int8Dot>(
    rows: [&[F::Block]; 4],
    out: &mut [Registers],
    half: usize,
) {
    let mut bytes = [[I8x16::splat(0); CHUNK / 16]; 4];
    for (row, bytes) in rows.into_iter().zip(&mut bytes) {
        let (groups, _) = bytes.as_chunks_mut::<2>();
        for (b, block) in row.iter().enumerate() {
            F::unpack(block, |group, x| {
                let x = x.map(|x| x - I8x16::splat(F::OFFSET));
                groups[b * (8 / F::BLOCKS) + group] = x;
            });
        }
    }
    let (out, _) = out.as_chunks_mut::<4>();
    for (i, out) in out.chunks_exact_mut(P::WIDTH).enumerate() {
        let rows = bytes.each_ref().map(|row| P::widen(row[i]));
        for (w, out) in out.iter_mut().enumerate() {
            let lanes = rows.each_ref().map(|row| row.as_ref()[w].as_ints());
            put_rows::<P>(lanes, out, half);
        }
    }
}

/// Writes a widened register of each of four rows to half of a panel's registers.
#[inline(always)]
pub(crate) fn put_rows<P: Int8Dot>(rows: [I32x4; 4], out: &mut [Registers; 4], half: usize) {
    for (x, out) in P::transpose(rows).into_iter().zip(out) {
        x.as_bytes().store(&mut out[half]);
    }
}
