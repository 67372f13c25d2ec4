//! The integer tile kernel: a panel of 8 rows times up to four tokens, held in registers.

use super::Products;
use super::panel::{Panel, ROWS};
use super::token::Token;
use super::vector::{F32x4, I8x16, I32x4};
use crate::ops::matmul::{Epilogue, QuantizedRows, grown};
use crate::out::TileMut;

/// Tokens of a tile.
const TOKENS: usize = 4;

/// Activations as the panels of an instruction set want them.
pub(crate) struct Stretched<'a> {
    rows: &'a QuantizedRows,
    /// The quants of all rows, of [`Stretched::stride`] registers each.
    registers: &'a [[u8; 16]],
    stride: usize,
}

impl<'a> Stretched<'a> {
    /// Stretches all rows into the buffer.
    pub(crate) fn new<P: Products>(rows: &'a QuantizedRows, buffer: &'a mut Vec<f32>) -> Self {
        let stride = rows.k() / 16 * P::WIDTH;
        let registers: &mut [[u8; 16]] =
            bytemuck::cast_slice_mut(grown(buffer, 4 * stride * rows.rows()));
        for (row, out) in registers.chunks_exact_mut(stride).enumerate() {
            let quants: &[[u8; 16]] = bytemuck::cast_slice(rows.quants(row));
            for (quants, out) in quants.iter().zip(out.chunks_exact_mut(P::WIDTH)) {
                let stretched = P::stretch(I8x16::load(quants));
                for (x, out) in stretched.as_ref().iter().zip(out) {
                    x.store(out);
                }
            }
        }
        Stretched {
            rows,
            registers,
            stride,
        }
    }
}

/// Multiplies a panel with all tokens. `HALVES` says that there is a scale for each 16 elements, not
/// 32, and `MIN` that there are minima.
pub(crate) fn multiply_panel<P: Products, const HALVES: bool, const MIN: bool>(
    products: P,
    panel: &Panel<'_>,
    acts: &Stretched<'_>,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    let m = acts.rows.rows();
    for token in (0..m).step_by(TOKENS) {
        macro_rules! run {
            ($t:literal) => {
                for (t, sums) in tile::<P, HALVES, MIN, $t>(products, panel, acts, token)
                    .into_iter()
                    .enumerate()
                {
                    let rows = sums.map(F32x4::lanes);
                    epilogue.write_rows(out.row(token + t), first_row, rows.as_flattened());
                }
            };
        }
        match m - token {
            1 => run!(1),
            2 => run!(2),
            3 => run!(3),
            _ => run!(4),
        }
    }
}

/// The products of the panel's rows with tokens `first` to `first + T − 1`.
#[inline(always)]
fn tile<P: Products, const HALVES: bool, const MIN: bool, const T: usize>(
    products: P,
    panel: &Panel<'_>,
    acts: &Stretched<'_>,
    first: usize,
) -> [[F32x4; ROWS / 4]; T] {
    let tokens: [Token<'_>; T] = std::array::from_fn(|t| Token::new(acts.rows, first + t));
    let registers: [&[[u8; 16]]; T] =
        std::array::from_fn(|t| &acts.registers[(first + t) * acts.stride..][..acts.stride]);
    let scales: [&[f32]; T] = std::array::from_fn(|t| tokens[t].scales.as_flattened());
    let act_sums: [&[f32]; T] = std::array::from_fn(|t| match HALVES {
        true => tokens[t].half_sums.as_flattened(),
        false => tokens[t].sums.as_flattened(),
    });
    // Registers of a token in a group.
    let width = if HALVES { P::WIDTH } else { 2 * P::WIDTH };
    let mut sums = [[F32x4::splat(0.0); 2]; T];
    for (g, weights) in panel.weights.chunks_exact(4 * width).enumerate() {
        let acts = registers.map(|registers| &registers[g * width..][..width]);
        let dots = group(products, weights.as_chunks().0, acts);
        let (scale, min) = (halves(&panel.scales[g]), halves(&panel.mins[g]));
        for t in 0..T {
            let act_scale = F32x4::splat(scales[t][if HALVES { g / 2 } else { g }]);
            let act_sum = F32x4::splat(act_sums[t][g]);
            for h in 0..2 {
                let dot = dots[t][h].to_floats() * scale[h];
                sums[t][h] = sums[t][h].add_product(dot, act_scale);
                if MIN {
                    sums[t][h] = sums[t][h].add_product(min[h], act_sum);
                }
            }
        }
    }
    sums
}

/// Integer products over a group: the panel's rows in two halves, for each token.
#[inline(always)]
fn group<P: Products, const T: usize>(
    products: P,
    weights: &[[[[u8; 16]; 2]; 4]],
    acts: [&[[u8; 16]]; T],
) -> [[I32x4; 2]; T] {
    let mut dots = [[I32x4::splat(0); 2]; T];
    for (i, weights) in weights.iter().enumerate() {
        let acts = acts.map(|acts| &acts[i]);
        macro_rules! lane {
            ($lane:literal) => {
                let weights = weights[$lane].each_ref().map(I8x16::load);
                for t in 0..T {
                    for h in 0..2 {
                        dots[t][h] = products.add_lane::<$lane>(dots[t][h], weights[h], acts[t]);
                    }
                }
            };
        }
        lane!(0);
        lane!(1);
        lane!(2);
        lane!(3);
    }
    dots
}

/// Eight floats in two vectors.
#[inline(always)]
fn halves(x: &[f32; ROWS]) -> [F32x4; 2] {
    let (halves, _) = x.as_chunks();
    [F32x4::load(&halves[0]), F32x4::load(&halves[1])]
}
