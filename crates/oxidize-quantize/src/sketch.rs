//! [`Sketch`]: a low-rank sketch of the second moment of a matrix's inputs.
//!
//! The second moment `C = E[x xᵀ]` of inputs of width n has n² elements. The sketch keeps `Y = CΩ` for a
//! fixed matrix `Ω` of [`RANK`] columns of random signs. `Y` is a sum over inputs, like the sums of squares,
//! and the Nyström approximation recovers the leading directions of `C` from it (Tropp, Yurtsever, Udell and
//! Cevher, "Fixed-Rank Approximation of a Positive-Semidefinite Matrix from Streaming Data", 2017).

use oxidize_kernels::quant::{RANK, SecondMoment};

/// After [`DENSE_INPUTS`] inputs, one of this many is used.
const STRIDE: usize = 8;
/// Number of inputs that are all used.
const DENSE_INPUTS: u64 = 4096;

/// A randomized Nyström sketch of a second moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketch {
    /// `Σ x (xᵀΩ)` over the inputs `x`.
    pub sums: Vec<[f32; RANK]>,
    /// Number of inputs.
    pub count: u64,
}

impl Sketch {
    /// An empty sketch for inputs of this width.
    pub fn new(width: usize) -> Sketch {
        Sketch {
            sums: vec![[0.0; RANK]; width],
            count: 0,
        }
    }

    /// Adds inputs; `rows` contains whole inputs.
    pub fn update(&mut self, rows: &[f32]) {
        let stride = if self.count < DENSE_INPUTS { 1 } else { STRIDE };
        let width = self.sums.len();
        let n = rows.len() / width.max(1);
        self.count += n as u64;
        // Each used input is weighted by the inputs that it represents.
        let weight = n as f32 / n.div_ceil(stride).max(1) as f32;
        let signs: Vec<[f32; RANK]> = (0..width).map(signs).collect();
        let rows = || rows.chunks_exact(width.max(1)).step_by(stride);
        let median_square = median(rows().map(square).collect());
        for row in rows() {
            // Some inputs, often those of the first token, are 100× as long as most and nearly equal.
            // Clipping their weight keeps them from dominating the second moment.
            let weight = weight * (median_square / square(row)).min(1.0);
            let mut products = [0.0f32; RANK];
            for (x, signs) in row.iter().zip(&signs) {
                for (product, sign) in products.iter_mut().zip(signs) {
                    *product += sign * x;
                }
            }
            for (sums, x) in self.sums.iter_mut().zip(row) {
                for (sum, product) in sums.iter_mut().zip(&products) {
                    *sum += weight * x * product;
                }
            }
        }
    }

    /// Adds another sketch; `None` if its width differs.
    #[must_use]
    pub fn add(&mut self, other: &Sketch) -> Option<()> {
        if self.sums.len() != other.sums.len() {
            return None;
        }
        let more = other.sums.as_flattened();
        for (sum, more) in self.sums.as_flattened_mut().iter_mut().zip(more) {
            *sum += more;
        }
        self.count += other.count;
        Some(())
    }

    /// Returns the approximated second moment of inputs with these mean squares, which may cover more inputs
    /// than the sketch. `None` if the sketch is empty, of another width, or not positive definite.
    pub fn second_moment(&self, squares: &[f32]) -> Option<SecondMoment> {
        if squares.len() != self.sums.len() || self.count == 0 {
            return None;
        }
        // C ≈ Y (ΩᵀY)⁻¹ Yᵀ = UUᵀ, with U = Y L⁻ᵀ and the Cholesky factor LLᵀ = ΩᵀY.
        let scale = 1.0 / self.count as f64;
        let mut core = [[0.0f64; RANK]; RANK];
        for (column, sums) in self.sums.iter().enumerate() {
            for (row, sign) in core.iter_mut().zip(signs(column)) {
                for (core, sum) in row.iter_mut().zip(sums) {
                    *core += f64::from(sign * sum) * scale;
                }
            }
        }
        let lower = cholesky(&core)?;
        let directions = self.sums.iter().map(|sums| {
            let mut u = sums.map(|sum| f64::from(sum) * scale);
            for k in 0..RANK {
                let known: f64 = (0..k).map(|j| lower[k][j] * u[j]).sum();
                u[k] = (u[k] - known) / lower[k][k];
            }
            u.map(|u| u as f32)
        });
        let directions: Vec<[f32; RANK]> = directions.collect();
        let finite = directions.iter().flatten().all(|u| u.is_finite());
        finite.then(|| SecondMoment::new(directions, squares))
    }
}

fn square(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum()
}

/// Median; 0 for an empty list.
fn median(mut numbers: Vec<f32>) -> f32 {
    let middle = numbers.len() / 2;
    if numbers.is_empty() {
        return 0.0;
    }
    *numbers.select_nth_unstable_by(middle, f32::total_cmp).1
}

/// Row of `Ω`: bits of the SplitMix64 hash of the column index.
fn signs(column: usize) -> [f32; RANK] {
    let mut bits = (column as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    std::array::from_fn(|k| if bits >> k & 1 == 0 { 1.0 } else { -1.0 })
}

/// Cholesky factor of the symmetric part of `a`, with a small shift of the diagonal against rounding errors;
/// `None` if `a` is zero or not finite.
fn cholesky(a: &[[f64; RANK]; RANK]) -> Option<[[f64; RANK]; RANK]> {
    let trace: f64 = (0..RANK).map(|i| a[i][i]).sum();
    let more = 1e-5 * trace / RANK as f64;
    let mut lower = [[0.0; RANK]; RANK];
    for i in 0..RANK {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let left = 0.5 * (a[i][j] + a[j][i]) - known;
            if i != j {
                lower[i][j] = left / lower[j][j];
            } else if left + more > 0.0 && (left + more).is_finite() {
                lower[i][i] = (left.max(0.0) + more).sqrt();
            } else {
                return None;
            }
        }
    }
    Some(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs of length 1 in a three-dimensional subspace, with very different scales per direction.
    fn inputs(n: usize, width: usize) -> Vec<f32> {
        let wave = |i: usize, j: usize, k: usize| ((i * (k + 2) + j * (3 * k + 1)) as f32).sin();
        let input = |i: usize| {
            let strength: [f32; 3] = std::array::from_fn(|k| wave(i, 0, k) * [4.0, 1.0, 0.3][k]);
            let one = |j: usize| (0..3).map(|k| strength[k] * wave(0, j, k)).sum::<f32>();
            let row: Vec<f32> = (0..width).map(one).collect();
            let length = square(&row).sqrt().max(1e-3);
            row.into_iter().map(move |x| x / length)
        };
        (0..n).flat_map(input).collect()
    }

    #[test]
    fn long_inputs_are_clipped_to_the_median() {
        let rows = inputs(9, 24);
        let mut long = rows.clone();
        long[..24].iter_mut().for_each(|x| *x *= 100.0);
        let (mut normal, mut clipped) = (Sketch::new(24), Sketch::new(24));
        normal.update(&rows);
        clipped.update(&long);
        for (a, b) in normal
            .sums
            .iter()
            .flatten()
            .zip(clipped.sums.iter().flatten())
        {
            assert!((a - b).abs() < 1e-3, "{a} {b}");
        }
    }

    #[test]
    fn low_rank_second_moment_is_recovered() {
        let (n, width) = (64 * STRIDE, 96);
        let rows = inputs(n, width);
        let mut sketch = Sketch::new(width);
        // Pretend that DENSE_INPUTS zero inputs were added before.
        sketch.count = DENSE_INPUTS;
        sketch.update(&rows);
        sketch.count -= DENSE_INPUTS;
        let used: Vec<&[f32]> = rows.chunks(width).step_by(STRIDE).collect();
        let mut squares = vec![0.0f32; width];
        for row in &used {
            for (square, x) in squares.iter_mut().zip(*row) {
                *square += x * x / used.len() as f32;
            }
        }
        let second_moment = sketch.second_moment(&squares).unwrap();
        for seed in 0..5usize {
            let weights: Vec<f32> = (0..width).map(|j| ((j * j + seed) as f32).cos()).collect();
            let product = |row: &&[f32]| -> f64 {
                let sum: f32 = row.iter().zip(&weights).map(|(x, w)| x * w).sum();
                f64::from(sum * sum)
            };
            let expected = used.iter().map(product).sum::<f64>() / used.len() as f64;
            let found = second_moment.mean_square(weights.iter().copied());
            // SecondMoment assumes a minimum of independent variance per input, which these inputs lack.
            let own: f32 = squares
                .iter()
                .zip(&weights)
                .map(|(s, w)| 0.3 * s * w * w)
                .sum();
            let slack = f64::from(own) + 0.01 * expected;
            assert!(
                (found - expected).abs() < slack,
                "{found} {expected} {slack}"
            );
        }
    }

    #[test]
    fn sketches_of_parts_add_up() {
        let width = 40;
        let rows = inputs(8 * STRIDE, width);
        let (first, second) = rows.split_at(4 * STRIDE * width);
        let (mut whole, mut half, mut other) =
            (Sketch::new(width), Sketch::new(width), Sketch::new(width));
        whole.update(&rows);
        half.update(first);
        other.update(second);
        half.add(&other).unwrap();
        assert_eq!(half.count, whole.count);
        for (a, b) in whole.sums.iter().flatten().zip(half.sums.iter().flatten()) {
            assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "{a} {b}");
        }
        assert!(half.add(&Sketch::new(3)).is_none());
    }

    #[test]
    fn degenerate_sketches_give_no_second_moment() {
        let of = |rows: &[f32]| {
            let mut sketch = Sketch::new(2);
            sketch.update(rows);
            sketch
        };
        assert!(of(&[1.0, 1.0]).second_moment(&[1.0; 2]).is_some());
        assert!(of(&[1.0, 1.0]).second_moment(&[1.0; 3]).is_none());
        assert!(of(&[0.0, 0.0]).second_moment(&[0.0; 2]).is_none());
        assert!(of(&[f32::NAN, 1.0]).second_moment(&[1.0; 2]).is_none());
        assert!(of(&[]).second_moment(&[1.0; 2]).is_none());
    }
}
