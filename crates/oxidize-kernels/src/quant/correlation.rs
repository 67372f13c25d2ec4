//! [`Correlation`]: how the inputs of a matrix vary together, and rounding that makes use of it.
//!
//! A row `w` that is stored with errors `e` changes its product with an input `x` by `e · x`, on
//! average by `√(eᵀCe)`, where `C` holds the mean products of two inputs each. Its diagonal alone, the
//! importance, makes every error count for itself. But inputs of a model lean in a few directions,
//! and errors that cancel in those cost little: a weight is better rounded up where those
//! before it were rounded down. Scales are chosen as without this; only the levels are chosen again.

use std::ops::Range;

use super::{Levelled, QuantError, TensorType, dequantize};

/// Directions that are kept of the inputs of a matrix.
pub const DIRECTIONS: usize = 16;

/// The mean products of the inputs of a matrix: `C = UUᵀ + diag(rest)`.
#[derive(Clone, Debug)]
pub struct Correlation {
    /// The rows of `U`, one for each input.
    directions: Vec<[f32; DIRECTIONS]>,
    /// What the directions leave of each input's mean square.
    rest: Vec<f32>,
    /// One by the diagonal of `C`; 0 for an input that is always 0.
    inverse: Vec<f32>,
}

/// The share of an input's mean square that is its own at least: directions come from samples.
const OWN_SHARE: f32 = 0.3;

impl Correlation {
    /// Rows that are best encoded together.
    pub const ROWS: usize = LANES;

    /// From the directions and the mean squares of the inputs.
    ///
    /// # Panics
    /// If there are not as many of both.
    pub fn new(directions: Vec<[f32; DIRECTIONS]>, squares: &[f32]) -> Correlation {
        assert_eq!(directions.len(), squares.len());
        let shared = directions.iter().map(|u| u.iter().map(|u| u * u).sum());
        let shared: Vec<f32> = shared.collect();
        let rest = squares.iter().zip(&shared);
        let rest: Vec<f32> = rest
            .map(|(square, shared)| (square - shared).max(OWN_SHARE * square))
            .collect();
        let diagonal = rest.iter().zip(&shared).map(|(rest, shared)| rest + shared);
        let inverse = diagonal.map(|c| if c > 0.0 { 1.0 / c } else { 0.0 });
        Correlation {
            inverse: inverse.collect(),
            directions,
            rest,
        }
    }

    /// How many inputs there are.
    pub fn columns(&self) -> usize {
        self.rest.len()
    }

    /// `xᵀCx`: the mean square of the product of a row, or of a row's errors, with an input.
    pub fn mean_square(&self, x: impl Iterator<Item = f32>) -> f64 {
        let (mut own, mut sums) = (0.0, [0.0f64; DIRECTIONS]);
        for ((x, u), rest) in x.zip(&self.directions).zip(&self.rest) {
            own += f64::from(rest * x * x);
            for (sum, u) in sums.iter_mut().zip(u) {
                *sum += f64::from(u * x);
            }
        }
        own + sums.iter().map(|sum| sum * sum).sum::<f64>()
    }

    /// Encodes rows block by block, each block as one that makes up for the errors of those before
    /// it. For formats that choose the levels of several weights at once.
    pub(crate) fn feed_back(
        &self,
        ty: TensorType,
        rows: &[f32],
        out: &mut [u8],
        mut encode: impl FnMut(Range<usize>, &[f32], &mut [u8]) -> Result<(), QuantError>,
    ) -> Result<(), QuantError> {
        let len = ty.block_len();
        let (mut target, mut decoded) = (vec![0.0; len], vec![0.0; len]);
        let row_bytes = self.columns() / len * ty.block_bytes();
        let mut sums = vec![[0.0f32; DIRECTIONS]; rows.len() / self.columns()];
        for first in (0..self.columns()).step_by(len) {
            let columns = first..first + len;
            let directions = &self.directions[columns.clone()];
            let rest = &self.rest[columns.clone()];
            let share = shares(directions, rest);
            let rows = rows.chunks_exact(self.columns());
            let outs = out.chunks_exact_mut(row_bytes);
            for ((row, out), sums) in rows.zip(outs).zip(&mut sums) {
                let row = &row[columns.clone()];
                let out = &mut out[first / len * ty.block_bytes()..][..ty.block_bytes()];
                let pull = share.map(|share| dot(&share, sums));
                for ((target, x), (u, rest)) in
                    target.iter_mut().zip(row).zip(directions.iter().zip(rest))
                {
                    // An input that is always zero cannot make up for anything.
                    let change = if *rest > 0.0 {
                        dot(u, &pull) / rest
                    } else {
                        0.0
                    };
                    *target = x - change;
                }
                encode(columns.clone(), &target, out)?;
                dequantize(ty, out, &mut decoded)?;
                for ((x, y), u) in row.iter().zip(&decoded).zip(directions) {
                    for (sum, u) in sums.iter_mut().zip(u) {
                        *sum += u * (y - x);
                    }
                }
            }
        }
        Ok(())
    }
}

fn dot(a: &[f32; DIRECTIONS], b: &[f32; DIRECTIONS]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `(1 + UᵀD⁻¹U)⁻¹`: how much of what is to be made up for, direction by direction, a block of inputs
/// with directions `U` and own squares `D` is to take upon itself.
fn shares(directions: &[[f32; DIRECTIONS]], rest: &[f32]) -> [[f32; DIRECTIONS]; DIRECTIONS] {
    let mut matrix = [[0.0f64; DIRECTIONS]; DIRECTIONS];
    for (u, rest) in directions.iter().zip(rest).filter(|(_, rest)| **rest > 0.0) {
        for (row, a) in matrix.iter_mut().zip(u) {
            for (sum, b) in row.iter_mut().zip(u) {
                *sum += f64::from(*a) * f64::from(*b) / f64::from(*rest);
            }
        }
    }
    for (i, row) in matrix.iter_mut().enumerate() {
        row[i] += 1.0;
    }
    // Gauss and Jordan in place; without pivots, which such a matrix does not need.
    for k in 0..DIRECTIONS {
        let pivot = 1.0 / matrix[k][k];
        matrix[k][k] = 1.0;
        matrix[k] = matrix[k].map(|x| x * pivot);
        let by = matrix[k];
        for (_, row) in matrix.iter_mut().enumerate().filter(|(i, _)| *i != k) {
            let factor = std::mem::replace(&mut row[k], 0.0);
            for (x, by) in row.iter_mut().zip(by) {
                *x -= factor * by;
            }
        }
    }
    matrix.map(|row| row.map(|x| x as f32))
}

/// Rows that are treated side by side, one to a lane.
const LANES: usize = 32;

type Lane = [f32; LANES];

/// Columns that are transposed together.
const FEW: usize = 32;

/// Chooses the levels of rows of blocks again, one after the other, each as the best one given all
/// others of its row.
#[inline(always)]
pub(super) fn settle<B: Levelled>(rows: &[f32], correlation: &Correlation, out: &mut [u8]) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    let columns = correlation.columns();
    let rows = rows.chunks(LANES * columns);
    for (rows, blocks) in rows.zip(blocks.chunks_mut(LANES * (columns / B::LEN))) {
        let mut lanes = Lanes::new(rows, blocks, columns);
        lanes.settle::<B>(correlation);
        lanes.write(blocks);
    }
}

/// A few rows, transposed.
struct Lanes {
    /// The weights as they should be.
    wanted: Vec<Lane>,
    /// Their levels.
    levels: Vec<Lane>,
    /// What levels stand for, group by group.
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
struct Line {
    scale: Lane,
    inverse: Lane,
    offset: Lane,
}

impl Lanes {
    /// From rows and the blocks they were encoded as.
    #[inline(always)]
    fn new<B: Levelled>(rows: &[f32], blocks: &[B], columns: usize) -> Lanes {
        let zeros = [0.0; LANES];
        let line = Line {
            scale: zeros,
            inverse: zeros,
            offset: zeros,
        };
        let mut lanes = Lanes {
            wanted: vec![zeros; columns],
            levels: vec![zeros; columns],
            lines: vec![line; columns / B::GROUP],
        };
        // A few columns of all rows before the next: what is written to in turns stays at hand.
        for (n, wanted) in lanes.wanted.chunks_mut(FEW).enumerate() {
            for (lane, row) in rows.chunks_exact(columns).enumerate() {
                for (wanted, x) in wanted.iter_mut().zip(&row[n * FEW..]) {
                    wanted[lane] = *x;
                }
            }
        }
        let per_row = columns / B::LEN;
        let mut levels = vec![0; B::LEN];
        let lines = lanes.lines.chunks_exact_mut(B::LEN / B::GROUP);
        let of_blocks = lanes.levels.chunks_exact_mut(B::LEN).zip(lines);
        for (n, (out, lines)) in of_blocks.enumerate() {
            for (lane, block) in blocks.iter().skip(n).step_by(per_row).enumerate() {
                for (group, line) in lines.iter_mut().enumerate() {
                    let (scale, offset) = block.line(group);
                    (line.scale[lane], line.offset[lane]) = (scale, offset);
                    line.inverse[lane] = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                }
                block.read_levels(&mut levels);
                for (out, level) in out.iter_mut().zip(&levels) {
                    out[lane] = f32::from(*level);
                }
            }
        }
        lanes
    }

    #[inline(always)]
    fn settle<B: Levelled>(&mut self, correlation: &Correlation) {
        let directions = &correlation.directions;
        let mut sums = [[0.0; LANES]; DIRECTIONS];
        let mut pull = [0.0; LANES];
        // At first no weight has an error: each makes up for those before it. Then, also for those
        // after it.
        for sweep in 0..B::SWEEPS {
            for (column, u) in directions.iter().enumerate() {
                let changes = self.choose::<B>(correlation, column, &pull, sweep == 0);
                let next = directions.get(column + 1).unwrap_or(&directions[0]);
                pull = change(&mut sums, u, &changes, next);
            }
        }
    }

    /// Chooses the levels of a column again, at which the errors of the others `pull`, and returns
    /// how the weights change; the first time, from what is wanted.
    #[inline(always)]
    fn choose<B: Levelled>(
        &mut self,
        correlation: &Correlation,
        column: usize,
        pull: &Lane,
        first: bool,
    ) -> Lane {
        let (rest, inverse) = (correlation.rest[column], correlation.inverse[column]);
        let line = &self.lines[column / B::GROUP];
        let (wanted, levels) = (&self.wanted[column], &mut self.levels[column]);
        let mut changes = [0.0; LANES];
        for lane in 0..LANES {
            let (scale, offset) = (line.scale[lane], line.offset[lane]);
            let stored = scale * levels[lane] + offset;
            let value = if first { wanted[lane] } else { stored };
            // Where the cost of the row, as a function of this weight alone, is least.
            let best = value - (rest * (value - wanted[lane]) + pull[lane]) * inverse;
            let level = B::nearest_level((best - offset) * line.inverse[lane]);
            changes[lane] = scale * level + offset - value;
            levels[lane] = level;
        }
        changes
    }

    fn write<B: Levelled>(&self, blocks: &mut [B]) {
        let per_row = self.wanted.len() / B::LEN;
        let mut levels = vec![0; B::LEN];
        for (n, settled) in self.levels.chunks_exact(B::LEN).enumerate() {
            for (lane, block) in blocks.iter_mut().skip(n).step_by(per_row).enumerate() {
                for (level, settled) in levels.iter_mut().zip(settled) {
                    *level = settled[lane] as i8;
                }
                block.write_levels(&levels);
            }
        }
    }
}

/// Adds the changes of the weights of a column to the errors' products with the directions, and returns
/// how these pull at the next column.
#[inline(always)]
fn change(
    sums: &mut [Lane; DIRECTIONS],
    u: &[f32; DIRECTIONS],
    changes: &Lane,
    next: &[f32; DIRECTIONS],
) -> Lane {
    let mut pull = [0.0; LANES];
    // Both in one loop, which must go through the directions in order: two of them would be
    // vectorised over directions, with lanes far apart.
    for ((sum, u), next) in sums.iter_mut().zip(u).zip(next) {
        for lane in 0..LANES {
            sum[lane] += u * changes[lane];
            pull[lane] += next * sum[lane];
        }
    }
    pull
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::Random;
    use crate::{Isa, Kernels};

    /// Inputs that lean in a few directions, as those of models do.
    fn correlation(columns: usize, random: &mut Random) -> Correlation {
        let directions: Vec<[f32; DIRECTIONS]> = (0..columns)
            .map(|_| std::array::from_fn(|k| random.normal() / (1 + k) as f32))
            .collect();
        let squares: Vec<f32> = directions
            .iter()
            .map(|u| 0.5 + u.iter().map(|u| u * u).sum::<f32>())
            .collect();
        Correlation::new(directions, &squares)
    }

    #[test]
    fn errors_cancel() {
        let mut random = Random::new(7);
        let (rows, columns) = (19, 512);
        let c = correlation(columns, &mut random);
        let importance: Vec<f32> = c.inverse.iter().map(|inverse| 1.0 / inverse).collect();
        let x: Vec<f32> = (0..rows * columns).map(|_| random.normal()).collect();
        let cost = |ty, bytes: &[u8]| {
            let mut decoded = vec![0.0; x.len()];
            dequantize(ty, bytes, &mut decoded).unwrap();
            let errors: Vec<f32> = decoded.iter().zip(&x).map(|(y, x)| y - x).collect();
            errors
                .chunks(columns)
                .map(|row| c.mean_square(row.iter().copied()))
                .sum::<f64>()
        };
        // Those of activations are no weights.
        let activations = [TensorType::Q8_1, TensorType::Q8_K];
        let quantized =
            TensorType::all().filter(|ty| ty.is_quantized() && !activations.contains(ty));
        for ty in quantized.filter(|ty| crate::quant::can_quantize(*ty)) {
            let bytes = ty.bytes_for(x.len() as u64).unwrap() as usize;
            let (mut plain, mut fed) = (vec![0; bytes], vec![0; bytes]);
            let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
            let row_bytes = bytes / rows;
            for (row, out) in x.chunks(columns).zip(plain.chunks_mut(row_bytes)) {
                kernels.encode(ty, row, Some(&importance), out).unwrap();
            }
            kernels
                .encode_correlated(ty, &x, &importance, &c, &mut fed)
                .unwrap();
            let ratio = cost(ty, &fed) / cost(ty, &plain);
            let levelled = crate::quant::is_levelled(ty);
            assert!(ratio < if levelled { 0.8 } else { 0.95 }, "{ty}: {ratio}");
            for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
                let mut again = vec![0; bytes];
                kernels
                    .encode_correlated(ty, &x, &importance, &c, &mut again)
                    .unwrap();
                assert!(again == fed, "{ty} by {:?}", kernels.isa());
            }
        }
    }

    #[test]
    fn inputs_that_are_always_zero_change_nothing() {
        let c = Correlation::new(vec![[0.0; DIRECTIONS]; 32], &[0.0; 32]);
        let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
        let (mut plain, mut fed) = ([0; 18], [0; 18]);
        let ty = TensorType::Q4_0;
        kernels
            .encode(ty, &x, Some(&[0.0; 32]), &mut plain)
            .unwrap();
        kernels
            .encode_correlated(ty, &x, &[0.0; 32], &c, &mut fed)
            .unwrap();
        assert_eq!(plain, fed);
    }
}
