//! The integer tile kernel: a panel of 8 rows times up to four tokens, held in registers.

use super::Int8Dot;
use super::panel::{Panel, ROWS};
use super::vector::{F32x4, I8x16};
use crate::ops::matmul::{ActivationFormat, Epilogue, QuantizedRows, grown};
use crate::out::TileMut;

/// Tokens of a tile.
const TOKENS: usize = 4;

/// Activations in the layout of the tiles of an instruction set.
pub(crate) struct TileRows<'a> {
    rows: &'a QuantizedRows,
    /// Quants in that layout, [`Int8Dot::TOKENS_PER_REGISTER`] rows after another; empty if it is that of the
    /// rows.
    registers: &'a [[u8; 16]],
}

impl<'a> TileRows<'a> {
    /// Copies all rows to the buffer in that layout, if it differs.
    pub(crate) fn new<P: Int8Dot>(rows: &'a QuantizedRows, buffer: &'a mut Vec<f32>) -> Self {
        let mut out = TileRows {
            rows,
            registers: &[],
        };
        if rows.format() == ActivationFormat::I16Block64
            || P::WIDTH == 1 && P::TOKENS_PER_REGISTER == 1
        {
            return out;
        }
        let n = rows.rows().next_multiple_of(P::TOKENS_PER_REGISTER) * out.stride::<P>();
        let registers: &mut [[u8; 16]] = bytemuck::cast_slice_mut(grown(buffer, 4 * n));
        let together = P::TOKENS_PER_REGISTER * out.stride::<P>();
        for (i, out) in registers.chunks_exact_mut(together).enumerate() {
            for place in 0..P::TOKENS_PER_REGISTER {
                // The last of an odd number of rows is paired with itself.
                let row = (P::TOKENS_PER_REGISTER * i + place).min(rows.rows() - 1);
                let quants: &[[u8; 16]] = bytemuck::cast_slice(rows.quants(row));
                let widths = out.chunks_exact_mut(P::TOKENS_PER_REGISTER * P::WIDTH);
                for (quants, out) in quants.iter().zip(widths) {
                    let widened = P::widen(I8x16::load(quants));
                    let shared = out.chunks_exact_mut(P::TOKENS_PER_REGISTER);
                    for (x, out) in widened.as_ref().iter().zip(shared) {
                        store_part::<P>(*x, place, out);
                    }
                }
            }
        }
        out.registers = registers;
        out
    }

    /// Registers of a row.
    fn stride<P: Int8Dot>(&self) -> usize {
        self.rows.k() / 16 * P::WIDTH
    }

    /// The registers that hold a row, together with the rows that share them.
    #[inline(always)]
    fn registers<P: Int8Dot>(&self, row: usize) -> &[[u8; 16]] {
        if !self.registers.is_empty() {
            let together = P::TOKENS_PER_REGISTER * self.stride::<P>();
            return &self.registers[row / P::TOKENS_PER_REGISTER * together..][..together];
        }
        match self.rows.format() {
            ActivationFormat::I16Block64 => bytemuck::cast_slice(self.rows.quants_i16(row)),
            _ => bytemuck::cast_slice(self.rows.quants(row)),
        }
    }
}

/// Stores a register of a row in parts, each in its place in a register that the row shares with others.
#[inline(always)]
fn store_part<P: Int8Dot>(x: I8x16, place: usize, out: &mut [[u8; 16]]) {
    let mut bytes = [0; 16];
    x.store(&mut bytes);
    let len = 16 / P::TOKENS_PER_REGISTER;
    for (part, out) in bytes.chunks_exact(len).zip(out) {
        out[place * len..][..len].copy_from_slice(part);
    }
}

const _: () = assert!(
    TOKENS.is_multiple_of(2),
    "rows that share registers are in one tile"
);

/// Multiplies a panel with all tokens. `GROUP` elements share a scale: 16 or 32 of 8 bits, or 64 of 16 bits.
/// `MIN`: true if there are minima.
pub(crate) fn multiply_panel<P: Int8Dot, const GROUP: usize, const MIN: bool>(
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
                for (t, sums) in tile::<P, GROUP, MIN, $t>(products, panel, acts, token)
                    .into_iter()
                    .enumerate()
                {
                    let mut rows = [0.0; ROWS];
                    for (rows, sums) in rows.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
                        *rows = sums.lanes();
                    }
                    epilogue.write_rows(out.row(token + t), first_row, &rows);
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

/// Products of the panel's rows with tokens `first` to `first + T − 1`.
#[inline(always)]
fn tile<P: Int8Dot, const GROUP: usize, const MIN: bool, const T: usize>(
    products: P,
    panel: &Panel<'_>,
    acts: &TileRows<'_>,
    first: usize,
) -> [[F32x4; ROWS / 4]; T] {
    let registers: [&[[u8; 16]]; T] = std::array::from_fn(|t| acts.registers::<P>(first + t));
    let scales: [&[f32]; T] = std::array::from_fn(|t| acts.rows.scales(first + t));
    let act_sums: [&[f32]; T] = std::array::from_fn(|t| match (MIN, GROUP) {
        (false, _) => &[],
        (true, 16) => acts.rows.half_sums(first + t),
        (true, _) => acts.rows.sums(first + t),
    });
    // Registers of a row in a group.
    let width = GROUP / 16 * P::WIDTH;
    let mut sums = [[F32x4::splat(0.0); 2]; T];
    for (g, weights) in panel.weights.chunks_exact(4 * width).enumerate() {
        let together = P::TOKENS_PER_REGISTER * width;
        let acts = registers.map(|registers| &registers[g * together..][..together]);
        let dots = products.multiply(weights.as_chunks().0, acts);
        let scale = halves(&panel.scales[g]);
        for t in 0..T {
            let act_scale = F32x4::splat(scales[t][if GROUP == 16 { g / 2 } else { g }]);
            for h in 0..2 {
                let dot = dots[t][h].to_floats() * scale[h];
                sums[t][h] = sums[t][h].add_product(dot, act_scale);
            }
        }
        if MIN {
            let min = halves(&panel.mins[g]);
            for t in 0..T {
                let act_sum = F32x4::splat(act_sums[t][g]);
                for h in 0..2 {
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
