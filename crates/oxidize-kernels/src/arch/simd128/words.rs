//! The product of weights of 16-bit floats with many tokens, in integers of 16 bits, for instruction sets
//! whose tiles are of words ([`Products::WORDS`]).
//!
//! 64 weights of a row share a scale, as 64 elements of a token do
//! ([`Precision::Words`](crate::Precision::Words)), and their products add up in 32 bits.

use std::cmp::Ordering;

use super::float::{FloatFormat, fours};
use super::panel::{Panel, ROWS, put_rows};
use super::tile::{TileRows, multiply_panel};
use super::vector::{F32x4, I8x16};
use super::{Products, Registers};
use crate::ops::matmul::{
    Epilogue, QuantizedRows, Scratch, WORD_GROUP, WeightRows, WordRow, grown,
};
use crate::out::TileMut;

/// A group of words.
type Words = [[u8; 16]; WORD_GROUP / 8];

/// Panel by panel. The weight is of the format.
pub(crate) fn matmul<F: FloatFormat, P: Products>(
    products: P,
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    let acts = TileRows::new::<P>(acts, &mut scratch.floats);
    for first_row in (0..weight.rows()).step_by(ROWS) {
        let panel = round::<F, P>(&weight, first_row, &mut scratch.bytes, &mut scratch.scales);
        multiply_panel::<P, WORD_GROUP, false>(
            products, &panel, &acts, first_row, &epilogue, &mut out,
        );
    }
}

/// Rounds a row of activations.
pub(crate) fn quantize(x: &[f32], out: WordRow<'_>) {
    let groups = out.words.as_chunks_mut::<WORD_GROUP>().0.iter_mut();
    for ((x, words), scale) in x.chunks(WORD_GROUP).zip(groups).zip(out.scales) {
        let mut filled = [0.0; WORD_GROUP];
        let group: &[f32; WORD_GROUP] = x.try_into().unwrap_or_else(|_| {
            filled[..x.len()].copy_from_slice(x);
            &filled
        });
        let (vectors, _) = group.as_chunks();
        let words = bytemuck::cast_mut(words);
        *scale = round_group(|i| F32x4::load(&vectors[i]), words);
    }
}

/// Rounds rows from `first` on; past the last row, the last row again.
fn round<'a, F: FloatFormat, P: Products>(
    weight: &WeightRows<'_>,
    first: usize,
    bytes: &'a mut Vec<u8>,
    floats: &'a mut Vec<f32>,
) -> Panel<'a> {
    let last = weight.rows() - 1;
    let groups = weight.k().div_ceil(WORD_GROUP);
    let weights = grown(bytes, 2 * ROWS * groups * WORD_GROUP);
    let weights: &mut [Registers] = bytemuck::cast_slice_mut(weights);
    let scales: &mut [[f32; ROWS]] = bytemuck::cast_slice_mut(grown(floats, ROWS * groups));
    for half in 0..2 {
        let rows: [&[u8]; 4] =
            std::array::from_fn(|r| weight.row((first + 4 * half + r).min(last)));
        let places = weights.chunks_exact_mut(WORD_GROUP / 2).zip(&mut *scales);
        for (g, (out, scales)) in places.enumerate() {
            let mut rounded: [Words; 4] = Default::default();
            for (r, words) in rounded.iter_mut().enumerate() {
                scales[4 * half + r] = round_row::<F>(rows[r], g, words);
            }
            for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let lanes = rounded
                    .each_ref()
                    .map(|words| I8x16::load(&words[i]).as_ints());
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

/// Rounds group `g` of a row, with zeros after the row's end.
#[inline(always)]
fn round_row<F: FloatFormat>(row: &[u8], g: usize, out: &mut Words) -> f32 {
    let (whole, last) = fours::<F>(row);
    let (groups, rest) = whole.as_chunks::<{ WORD_GROUP / 4 }>();
    if let Some(group) = groups.get(g) {
        return round_group(|i| F::load(&group[i]), out);
    }
    let load = |i: usize| match i.cmp(&rest.len()) {
        Ordering::Less => F::load(&rest[i]),
        Ordering::Equal => F::load(&last),
        Ordering::Greater => F32x4::splat(0.0),
    };
    round_group(load, out)
}

/// Rounds a group of four floats a number, and returns its scale, which is not finite if some element is not.
#[inline(always)]
fn round_group(load: impl Fn(usize) -> F32x4, out: &mut Words) -> f32 {
    let mut max = F32x4::splat(0.0);
    for i in 0..WORD_GROUP / 4 {
        // As integers, the bits of magnitudes are in their order, and NaN is above all.
        let x = load(i).abs();
        max = x.bits().greater(max.bits()).select(x, max);
    }
    let max = max.lanes().map(f32::to_bits).into_iter().max().unwrap_or(0);
    let (scale, inverse) = WordRow::scale_of(f32::from_bits(max));
    // A sum with this has no bits left for a fraction, and its last 16 are the rounded number.
    const ROUNDING: f32 = 12_582_912.0;
    let rounded = |x: F32x4| {
        F32x4::splat(ROUNDING)
            .add_product(x, F32x4::splat(inverse))
            .bits()
    };
    for (i, out) in out.iter_mut().enumerate() {
        let [low, high] = [2 * i, 2 * i + 1].map(|i| rounded(load(i)));
        low.low_words(high).store(out);
    }
    scale
}
