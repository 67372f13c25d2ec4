//! The integer tile kernel: a panel of 8 rows times up to four tokens, held in registers.

use super::Products;
use super::panel::{Panel, ROWS};
use super::token::Token;
use super::vector::{F32x4, I8x16};
use crate::ops::matmul::{Epilogue, QuantizedRows, grown};
use crate::out::TileMut;

/// Tokens of a tile.
const TOKENS: usize = 4;

/// Activations as the tiles of an instruction set want them.
pub(crate) struct TileRows<'a> {
    rows: &'a QuantizedRows,
    /// The quants of [`Products::ABREAST`] rows after another, if they are not used as they are.
    registers: &'a [[u8; 16]],
}

impl<'a> TileRows<'a> {
    /// Whether quants are used as they are.
    const fn as_they_are<P: Products>() -> bool {
        P::WIDTH == 1 && P::ABREAST == 1
    }

    /// Brings all rows into order, in the buffer.
    pub(crate) fn new<P: Products>(rows: &'a QuantizedRows, buffer: &'a mut Vec<f32>) -> Self {
        let mut out = TileRows {
            rows,
            registers: &[],
        };
        if Self::as_they_are::<P>() {
            return out;
        }
        let n = rows.rows().next_multiple_of(P::ABREAST) * out.stride::<P>();
        let registers: &mut [[u8; 16]] = bytemuck::cast_slice_mut(grown(buffer, 4 * n));
        let together = P::ABREAST * out.stride::<P>();
        for (i, out) in registers.chunks_exact_mut(together).enumerate() {
            for place in 0..P::ABREAST {
                // Of an odd number, the last is its own neighbour.
                let row = (P::ABREAST * i + place).min(rows.rows() - 1);
                let quants: &[[u8; 16]] = bytemuck::cast_slice(rows.quants(row));
                let widths = out.chunks_exact_mut(P::ABREAST * P::WIDTH);
                for (quants, out) in quants.iter().zip(widths) {
                    let stretched = P::stretch(I8x16::load(quants));
                    let shared = out.chunks_exact_mut(P::ABREAST);
                    for (x, out) in stretched.as_ref().iter().zip(shared) {
                        place_part::<P>(*x, place, out);
                    }
                }
            }
        }
        out.registers = registers;
        out
    }

    /// Registers of a row.
    fn stride<P: Products>(&self) -> usize {
        self.rows.k() / 16 * P::WIDTH
    }

    /// The registers that a row is in, [`Products::ABREAST`] times its own number.
    #[inline(always)]
    fn registers<P: Products>(&self, row: usize) -> &[[u8; 16]] {
        if Self::as_they_are::<P>() {
            return bytemuck::cast_slice(self.rows.quants(row));
        }
        let together = P::ABREAST * self.stride::<P>();
        &self.registers[row / P::ABREAST * together..][..together]
    }
}

/// Shares a register of a row out over those that it has with others, in each of which it has its place.
#[inline(always)]
fn place_part<P: Products>(x: I8x16, place: usize, out: &mut [[u8; 16]]) {
    let mut bytes = [0; 16];
    x.store(&mut bytes);
    let len = 16 / P::ABREAST;
    for (part, out) in bytes.chunks_exact(len).zip(out) {
        out[place * len..][..len].copy_from_slice(part);
    }
}

const _: () = assert!(TOKENS.is_multiple_of(2), "neighbours are in one tile");

/// Multiplies a panel with all tokens. `HALVES` says that there is a scale for each 16 elements, not
/// 32, and `MIN` that there are minima.
pub(crate) fn multiply_panel<P: Products, const HALVES: bool, const MIN: bool>(
    products: P,
    panel: &Panel<'_>,
    acts: &TileRows<'_>,
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
    acts: &TileRows<'_>,
    first: usize,
) -> [[F32x4; ROWS / 4]; T] {
    let tokens: [Token<'_>; T] = std::array::from_fn(|t| Token::new(acts.rows, first + t));
    let registers: [&[[u8; 16]]; T] = std::array::from_fn(|t| acts.registers::<P>(first + t));
    let scales: [&[f32]; T] = std::array::from_fn(|t| tokens[t].scales.as_flattened());
    let act_sums: [&[f32]; T] = std::array::from_fn(|t| match HALVES {
        true => tokens[t].half_sums.as_flattened(),
        false => tokens[t].sums.as_flattened(),
    });
    // Registers of a row in a group.
    let width = if HALVES { P::WIDTH } else { 2 * P::WIDTH };
    let mut sums = [[F32x4::splat(0.0); 2]; T];
    for (g, weights) in panel.weights.chunks_exact(4 * width).enumerate() {
        let together = P::ABREAST * width;
        let acts = registers.map(|registers| &registers[g * together..][..together]);
        let dots = products.multiply(weights.as_chunks().0, acts);
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

/// Eight floats in two vectors.
#[inline(always)]
fn halves(x: &[f32; ROWS]) -> [F32x4; 2] {
    let (halves, _) = x.as_chunks();
    [F32x4::load(&halves[0]), F32x4::load(&halves[1])]
}
