//! GEMM of weights of 16-bit floats with many tokens, in 16-bit integers, for instruction sets whose tiles
//! are of 16-bit integers ([`Int8Dot::HAS_I16`]).
//!
//! 64 weights of a row share a scale, as 64 elements of a token do
//! ([`ActivationFormat::I16Block64`](crate::ActivationFormat::I16Block64)), and their products are added in
//! 32 bits.

use std::cmp::Ordering;

use super::float::{FloatFormat, quads};
use super::panel::{Panel, ROWS, put_rows};
use super::tile::{TileRows, multiply_panel};
use super::vector::{F32x4, I8x16};
use super::{Int8Dot, Registers};
use crate::ops::matmul::{Epilogue, I16_GROUP, I16Row, QuantizedRows, Scratch, WeightRows, grown};
use crate::out::TileMut;

/// A group of 16-bit integers.
type I16Group = [[u8; 16]; I16_GROUP / 8];

/// Products panel by panel. The weight is of format `F`.
pub(crate) fn matmul<F: FloatFormat, P: Int8Dot>(
    products: P,
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    let acts = TileRows::new::<P>(acts, &mut scratch.floats);
    for first_row in (0..weight.rows()).step_by(ROWS) {
        let panel = unpack::<F, P>(&weight, first_row, &mut scratch.bytes, &mut scratch.scales);
        multiply_panel::<P, I16_GROUP, false>(
            products, &panel, &acts, first_row, &epilogue, &mut out,
        );
    }
}

/// Quantizes a row of activations.
pub(crate) fn quantize(x: &[f32], out: I16Row<'_>) {
    let groups = out.quants.as_chunks_mut::<I16_GROUP>().0.iter_mut();
    for ((x, quants), scale) in x.chunks(I16_GROUP).zip(groups).zip(out.scales) {
        let mut filled = [0.0; I16_GROUP];
        let group: &[f32; I16_GROUP] = x.try_into().unwrap_or_else(|_| {
            filled[..x.len()].copy_from_slice(x);
            &filled
        });
        let (vectors, _) = group.as_chunks();
        let quants = bytemuck::cast_mut(quants);
        *scale = quantize_group(|i| F32x4::load(&vectors[i]), quants);
    }
}

/// Quantizes rows from `first` on, repeating the last row past the end.
fn unpack<'a, F: FloatFormat, P: Int8Dot>(
    weight: &WeightRows<'_>,
    first: usize,
    bytes: &'a mut Vec<u8>,
    floats: &'a mut Vec<f32>,
) -> Panel<'a> {
    let last = weight.rows() - 1;
    let groups = weight.k().div_ceil(I16_GROUP);
    let weights = grown(bytes, 2 * ROWS * groups * I16_GROUP);
    let weights: &mut [Registers] = bytemuck::cast_slice_mut(weights);
    let scales: &mut [[f32; ROWS]] = bytemuck::cast_slice_mut(grown(floats, ROWS * groups));
    for half in 0..2 {
        let rows: [&[u8]; 4] =
            std::array::from_fn(|r| weight.row((first + 4 * half + r).min(last)));
        let places = weights.chunks_exact_mut(I16_GROUP / 2).zip(&mut *scales);
        for (g, (out, scales)) in places.enumerate() {
            let mut rounded: [I16Group; 4] = Default::default();
            for (r, quants) in rounded.iter_mut().enumerate() {
                scales[4 * half + r] = quantize_row_group::<F>(rows[r], g, quants);
            }
            for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let lanes = rounded
                    .each_ref()
                    .map(|quants| I8x16::load(&quants[i]).as_ints());
                put_rows::<P>(lanes, out, half);
            }
        }
    }
    Panel {
        weights,
        scales,
        mins: &[],
    }
}

/// Quantizes group `g` of a row, padded with zeros past the end of the row.
#[inline(always)]
fn quantize_row_group<F: FloatFormat>(row: &[u8], g: usize, out: &mut I16Group) -> f32 {
    let (whole, last) = quads::<F>(row);
    let (groups, rest) = whole.as_chunks::<{ I16_GROUP / 4 }>();
    if let Some(group) = groups.get(g) {
        return quantize_group(|i| F::load(&group[i]), out);
    }
    let load = |i: usize| match i.cmp(&rest.len()) {
        Ordering::Less => F::load(&rest[i]),
        Ordering::Equal => F::load(&last),
        Ordering::Greater => F32x4::splat(0.0),
    };
    quantize_group(load, out)
}

/// Quantizes a group, of which `load(i)` returns four floats, and returns its scale, which is not finite if
/// some element is not.
#[inline(always)]
fn quantize_group(load: impl Fn(usize) -> F32x4, out: &mut I16Group) -> f32 {
    let mut max = F32x4::splat(0.0);
    for i in 0..I16_GROUP / 4 {
        // Compared as integers, bits are in the order of the magnitudes, and NaN is above all.
        let x = load(i).abs();
        max = x.bits().greater(max.bits()).select(x, max);
    }
    let max = max.lanes().map(f32::to_bits).into_iter().max().unwrap_or(0);
    let (scale, inverse) = I16Row::scale_of(f32::from_bits(max));
    // Adding 1.5 · 2²³ leaves no bits for a fraction; the low 16 bits of the sum are the rounded number.
    const ROUNDING: f32 = 12_582_912.0;
    let rounded = |x: F32x4| {
        F32x4::splat(ROUNDING)
            .add_product(x, F32x4::splat(inverse))
            .bits()
    };
    for (i, out) in out.iter_mut().enumerate() {
        let [low, high] = [2 * i, 2 * i + 1].map(|i| rounded(load(i)));
        low.low_i16(high).store(out);
    }
    scale
}
