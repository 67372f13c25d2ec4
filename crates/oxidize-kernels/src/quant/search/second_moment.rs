//! [`SecondMoment`] of the inputs of a matrix, and error compensation that uses it.
//!
//! Quantizing a row with errors `e` changes its product with an input `x` by `e · x`, whose mean square is
//! `eᵀCe` with the second-moment matrix `C = E[xxᵀ]`. The diagonal of `C`, the importance, treats errors as
//! independent. The inputs of a model, however, are dominated by a few directions, and errors that cancel in
//! these cost little. As in GPTQ, the rounding of a weight therefore compensates the errors of the others.
//! For scalar formats the scales stay unchanged and only the levels are refined ([`refine_codes`]); codebook
//! formats are quantized again block by block ([`SecondMoment::compensate`]).

use std::ops::Range;

use crate::quant::{QuantError, ScalarQuantized, TensorType, dequantize};

/// Rank of the low-rank part of a [`SecondMoment`].
pub const RANK: usize = 16;

/// Second-moment matrix of the inputs of a weight matrix, as low rank plus diagonal: `C = UUᵀ + D`.
#[derive(Clone, Debug)]
pub struct SecondMoment {
    /// Rows of `U`, one per input.
    factors: Vec<[f32; RANK]>,
    /// Diagonal of `D`: the mean square of each input that the factors do not explain.
    diagonal: Vec<f32>,
    /// Inverse of the diagonal of `C`; 0 for an input that is always 0.
    inverse_square: Vec<f32>,
}

/// Least part of an input's mean square that is left to the diagonal, because the factors are estimated from
/// samples.
const MIN_DIAGONAL: f32 = 0.3;

impl SecondMoment {
    /// Number of rows that are quantized together most efficiently.
    pub const ROWS: usize = LANES;

    /// Creates the matrix from the low-rank factors and the mean squares of the inputs.
    ///
    /// # Panics
    /// If their numbers differ.
    pub fn new(factors: Vec<[f32; RANK]>, squares: &[f32]) -> SecondMoment {
        assert_eq!(factors.len(), squares.len());
        let explained = factors.iter().map(|u| u.iter().map(|u| u * u).sum());
        let explained: Vec<f32> = explained.collect();
        let diagonal = squares.iter().zip(&explained);
        let diagonal: Vec<f32> = diagonal
            .map(|(square, explained)| (square - explained).max(MIN_DIAGONAL * square))
            .collect();
        let total = diagonal.iter().zip(&explained).map(|(d, e)| d + e);
        let inverse_square = total.map(|c| if c > 0.0 { 1.0 / c } else { 0.0 });
        SecondMoment {
            inverse_square: inverse_square.collect(),
            factors,
            diagonal,
        }
    }

    /// Number of inputs.
    pub fn columns(&self) -> usize {
        self.diagonal.len()
    }

    /// Returns `xᵀCx`: the mean square of the product of an input with the row, or the row of errors, `x`.
    pub fn mean_square(&self, x: impl Iterator<Item = f32>) -> f64 {
        let (mut square, mut projected) = (0.0, [0.0f64; RANK]);
        for ((x, u), d) in x.zip(&self.factors).zip(&self.diagonal) {
            square += f64::from(d * x * x);
            for (sum, u) in projected.iter_mut().zip(u) {
                *sum += f64::from(u * x);
            }
        }
        square + projected.iter().map(|sum| sum * sum).sum::<f64>()
    }

    /// Quantizes rows block by block; each block compensates the errors of the blocks before it. For codebook
    /// formats, which choose the levels of several weights at once.
    pub(crate) fn compensate(
        &self,
        ty: TensorType,
        rows: &[f32],
        out: &mut [u8],
        mut quantize_weights: impl FnMut(Range<usize>, &[f32], &mut [u8]) -> Result<(), QuantError>,
    ) -> Result<(), QuantError> {
        let len = ty.block_len();
        let (mut target, mut decoded) = (vec![0.0; len], vec![0.0; len]);
        let row_bytes = self.columns() / len * ty.block_bytes();
        // Uᵀe of each row over the blocks so far.
        let mut projected_errors = vec![[0.0f32; RANK]; rows.len() / self.columns()];
        for first in (0..self.columns()).step_by(len) {
            let columns = first..first + len;
            let factors = &self.factors[columns.clone()];
            let diagonal = &self.diagonal[columns.clone()];
            let gain = compensation_gain(factors, diagonal);
            let rows = rows.chunks_exact(self.columns());
            let outs = out.chunks_exact_mut(row_bytes);
            for ((row, out), projected) in rows.zip(outs).zip(&mut projected_errors) {
                let row = &row[columns.clone()];
                let out = &mut out[first / len * ty.block_bytes()..][..ty.block_bytes()];
                let assigned = gain.map(|gain| dot(&gain, projected));
                for ((target, x), (u, d)) in
                    target.iter_mut().zip(row).zip(factors.iter().zip(diagonal))
                {
                    // The weight of an input that is always zero cannot compensate anything.
                    let change = if *d > 0.0 { dot(u, &assigned) / d } else { 0.0 };
                    *target = x - change;
                }
                quantize_weights(columns.clone(), &target, out)?;
                dequantize(ty, out, &mut decoded)?;
                for ((x, y), u) in row.iter().zip(&decoded).zip(factors) {
                    for (sum, u) in projected.iter_mut().zip(u) {
                        *sum += u * (y - x);
                    }
                }
            }
        }
        Ok(())
    }
}

fn dot(a: &[f32; RANK], b: &[f32; RANK]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns `(1 + UᵀD⁻¹U)⁻¹` for the factors `U` and the diagonal `D` of a block of inputs. By the Woodbury
/// identity, the least-squares compensation of a projected error `Uᵀe` is `D⁻¹U` times this matrix times
/// `Uᵀe`.
fn compensation_gain(factors: &[[f32; RANK]], diagonal: &[f32]) -> [[f32; RANK]; RANK] {
    let mut matrix = [[0.0f64; RANK]; RANK];
    for (u, d) in factors.iter().zip(diagonal).filter(|(_, d)| **d > 0.0) {
        for (row, a) in matrix.iter_mut().zip(u) {
            for (sum, b) in row.iter_mut().zip(u) {
                *sum += f64::from(*a) * f64::from(*b) / f64::from(*d);
            }
        }
    }
    for (i, row) in matrix.iter_mut().enumerate() {
        row[i] += 1.0;
    }
    // In-place Gauss–Jordan inversion. A symmetric positive definite matrix needs no pivoting.
    for k in 0..RANK {
        let pivot = 1.0 / matrix[k][k];
        matrix[k][k] = 1.0;
        matrix[k] = matrix[k].map(|x| x * pivot);
        let pivot_row = matrix[k];
        for (_, row) in matrix.iter_mut().enumerate().filter(|(i, _)| *i != k) {
            let factor = std::mem::replace(&mut row[k], 0.0);
            for (x, p) in row.iter_mut().zip(pivot_row) {
                *x -= factor * p;
            }
        }
    }
    matrix.map(|row| row.map(|x| x as f32))
}

/// Rows per vector.
const LANES: usize = 32;

/// One number per row.
type PerRow = [f32; LANES];

/// Columns that are transposed together.
const TILE: usize = 32;

/// Refines the levels of quantized rows by coordinate descent: each level in turn becomes the best one given
/// all others of its row.
#[inline(always)]
pub(crate) fn refine_codes<B: ScalarQuantized>(
    rows: &[f32],
    second_moment: &SecondMoment,
    out: &mut [u8],
) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    let columns = second_moment.columns();
    let rows = rows.chunks(LANES * columns);
    for (rows, blocks) in rows.zip(blocks.chunks_mut(LANES * (columns / B::LEN))) {
        let mut transposed = Transposed::new(rows, blocks, columns);
        transposed.refine_codes::<B>(second_moment);
        transposed.write(blocks);
    }
}

/// Up to [`LANES`] rows, transposed.
struct Transposed {
    /// Unquantized weights.
    target: Vec<PerRow>,
    /// Levels of the weights.
    levels: Vec<PerRow>,
    /// Scales and offsets of the groups.
    affine: Vec<Affine>,
}

#[derive(Clone, Copy)]
struct Affine {
    scale: PerRow,
    inverse: PerRow,
    offset: PerRow,
}

impl Transposed {
    /// Transposes rows and the blocks that they were quantized to.
    #[inline(always)]
    fn new<B: ScalarQuantized>(rows: &[f32], blocks: &[B], columns: usize) -> Transposed {
        let zeros = [0.0; LANES];
        let affine = Affine {
            scale: zeros,
            inverse: zeros,
            offset: zeros,
        };
        let mut transposed = Transposed {
            target: vec![zeros; columns],
            levels: vec![zeros; columns],
            affine: vec![affine; columns / B::GROUP],
        };
        // A tile of columns of all rows at a time, so that the written cache lines stay in the L1 cache.
        for (n, target) in transposed.target.chunks_mut(TILE).enumerate() {
            for (lane, row) in rows.chunks_exact(columns).enumerate() {
                for (target, x) in target.iter_mut().zip(&row[n * TILE..]) {
                    target[lane] = *x;
                }
            }
        }
        let per_row = columns / B::LEN;
        let mut levels = vec![0; B::LEN];
        let affine = transposed.affine.chunks_exact_mut(B::LEN / B::GROUP);
        let per_block = transposed.levels.chunks_exact_mut(B::LEN).zip(affine);
        for (n, (out, affine)) in per_block.enumerate() {
            for (lane, block) in blocks.iter().skip(n).step_by(per_row).enumerate() {
                for (group, affine) in affine.iter_mut().enumerate() {
                    let (scale, offset) = block.scale_and_offset(group);
                    (affine.scale[lane], affine.offset[lane]) = (scale, offset);
                    affine.inverse[lane] = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                }
                block.read_levels(&mut levels);
                for (out, level) in out.iter_mut().zip(&levels) {
                    out[lane] = f32::from(*level);
                }
            }
        }
        transposed
    }

    #[inline(always)]
    fn refine_codes<B: ScalarQuantized>(&mut self, second_moment: &SecondMoment) {
        let factors = &second_moment.factors;
        // Uᵀe, and the low-rank part of (Ce) at the current column.
        let mut projected = [[0.0; LANES]; RANK];
        let mut gradient = [0.0; LANES];
        // The first sweep starts without errors: each weight compensates those before it. In further sweeps
        // it also compensates those after it.
        for sweep in 0..B::SWEEPS {
            for (column, u) in factors.iter().enumerate() {
                let changes = self.choose_levels::<B>(second_moment, column, &gradient, sweep == 0);
                let next = factors.get(column + 1).unwrap_or(&factors[0]);
                gradient = apply_changes(&mut projected, u, &changes, next);
            }
        }
    }

    /// Chooses the best levels of a column given the low-rank `gradient` at it. Returns the changes of the
    /// weights, relative to the unquantized weights in the first sweep.
    #[inline(always)]
    fn choose_levels<B: ScalarQuantized>(
        &mut self,
        second_moment: &SecondMoment,
        column: usize,
        gradient: &PerRow,
        first: bool,
    ) -> PerRow {
        let diagonal = second_moment.diagonal[column];
        let inverse = second_moment.inverse_square[column];
        let affine = &self.affine[column / B::GROUP];
        let (target, levels) = (&self.target[column], &mut self.levels[column]);
        let mut changes = [0.0; LANES];
        for lane in 0..LANES {
            let (scale, offset) = (affine.scale[lane], affine.offset[lane]);
            let stored = scale * levels[lane] + offset;
            let value = if first { target[lane] } else { stored };
            // The minimum of the row's cost as a function of this weight alone: a Newton step.
            let best = value - (diagonal * (value - target[lane]) + gradient[lane]) * inverse;
            let level = B::nearest_level((best - offset) * affine.inverse[lane]);
            changes[lane] = scale * level + offset - value;
            levels[lane] = level;
        }
        changes
    }

    fn write<B: ScalarQuantized>(&self, blocks: &mut [B]) {
        let per_row = self.target.len() / B::LEN;
        let mut levels = vec![0; B::LEN];
        for (n, refined) in self.levels.chunks_exact(B::LEN).enumerate() {
            for (lane, block) in blocks.iter_mut().skip(n).step_by(per_row).enumerate() {
                for (level, refined) in levels.iter_mut().zip(refined) {
                    *level = refined[lane] as i8;
                }
                block.write_levels(&levels);
            }
        }
    }
}

/// Adds the changes of the weights of a column to the projected errors `Uᵀe`. Returns the low-rank gradient
/// at the next column.
#[inline(always)]
fn apply_changes(
    projected: &mut [PerRow; RANK],
    u: &[f32; RANK],
    changes: &PerRow,
    next: &[f32; RANK],
) -> PerRow {
    let mut gradient = [0.0; LANES];
    // One loop for both, whose order over the rank is fixed: LLVM would vectorize two loops over the rank,
    // with lanes far apart.
    for ((sum, u), next) in projected.iter_mut().zip(u).zip(next) {
        for lane in 0..LANES {
            sum[lane] += u * changes[lane];
            gradient[lane] += next * sum[lane];
        }
    }
    gradient
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::Random;
    use crate::{Isa, Kernels};

    /// Second moment of inputs with a dominant low-rank part, like those of models.
    fn second_moment(columns: usize, random: &mut Random) -> SecondMoment {
        let factors: Vec<[f32; RANK]> = (0..columns)
            .map(|_| std::array::from_fn(|k| random.normal() / (1 + k) as f32))
            .collect();
        let squares: Vec<f32> = factors
            .iter()
            .map(|u| 0.5 + u.iter().map(|u| u * u).sum::<f32>())
            .collect();
        SecondMoment::new(factors, &squares)
    }

    #[test]
    fn compensation_reduces_mean_square_error() {
        let mut random = Random::new(7);
        let (rows, columns) = (19, 512);
        let c = second_moment(columns, &mut random);
        let importance: Vec<f32> = c.inverse_square.iter().map(|x| 1.0 / x).collect();
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
        // Formats of activations only.
        let activations = [TensorType::Q8_1, TensorType::Q8_K];
        let quantized =
            TensorType::all().filter(|ty| ty.is_quantized() && !activations.contains(ty));
        for ty in quantized.filter(|ty| crate::quant::can_quantize(*ty)) {
            let bytes = ty.bytes_for(x.len() as u64).unwrap() as usize;
            let (mut plain, mut compensated) = (vec![0; bytes], vec![0; bytes]);
            let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
            let row_bytes = bytes / rows;
            for (row, out) in x.chunks(columns).zip(plain.chunks_mut(row_bytes)) {
                kernels
                    .quantize_weights(ty, row, Some(&importance), out)
                    .unwrap();
            }
            kernels
                .quantize_weights_compensated(ty, &x, &importance, &c, &mut compensated)
                .unwrap();
            let ratio = cost(ty, &compensated) / cost(ty, &plain);
            let scalar = crate::quant::is_scalar_quantized(ty);
            assert!(ratio < if scalar { 0.8 } else { 0.95 }, "{ty}: {ratio}");
            for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
                let mut again = vec![0; bytes];
                kernels
                    .quantize_weights_compensated(ty, &x, &importance, &c, &mut again)
                    .unwrap();
                assert!(again == compensated, "{ty} by {:?}", kernels.isa());
            }
        }
    }

    #[test]
    fn all_zero_inputs_leave_levels_unchanged() {
        let c = SecondMoment::new(vec![[0.0; RANK]; 32], &[0.0; 32]);
        let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
        let (mut plain, mut compensated) = ([0; 18], [0; 18]);
        let ty = TensorType::Q4_0;
        kernels
            .quantize_weights(ty, &x, Some(&[0.0; 32]), &mut plain)
            .unwrap();
        kernels
            .quantize_weights_compensated(ty, &x, &[0.0; 32], &c, &mut compensated)
            .unwrap();
        assert_eq!(plain, compensated);
    }
}
