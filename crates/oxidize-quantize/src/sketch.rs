//! [`Sketch`]: how the inputs of a matrix vary together, in a few numbers for each input.
//!
//! The mean products of all pairs of inputs would be a square of numbers. What is kept is its product
//! with a few vectors of random signs, the same for everyone: it adds up like the sums of squares do,
//! input by input, and most of the square can be had back from it (Nyström's approximation).

use oxidize_kernels::quant::{Correlation, DIRECTIONS};

/// Of so many inputs one is looked at, once [`ENOUGH`] were.
const EVERY: usize = 8;
/// Inputs that are all looked at.
const ENOUGH: u64 = 4096;

/// What is kept of the inputs that were seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketch {
    /// `Σ x (xᵀΩ)` over the inputs `x`, with signs `Ω`.
    pub sums: Vec<[f32; DIRECTIONS]>,
    /// How many they were.
    pub count: u64,
}

impl Sketch {
    /// A sketch of nothing, for inputs of this width.
    pub fn new(width: usize) -> Sketch {
        Sketch {
            sums: vec![[0.0; DIRECTIONS]; width],
            count: 0,
        }
    }

    /// Adds inputs; `rows` holds whole ones.
    pub fn see(&mut self, rows: &[f32]) {
        let every = if self.count < ENOUGH { 1 } else { EVERY };
        let width = self.sums.len();
        let n = rows.len() / width.max(1);
        self.count += n as u64;
        // Each stands for those that are passed over.
        let weight = n as f32 / n.div_ceil(every).max(1) as f32;
        let signs: Vec<[f32; DIRECTIONS]> = (0..width).map(signs).collect();
        let rows = || rows.chunks_exact(width.max(1)).step_by(every);
        let usual = median(rows().map(square).collect());
        for row in rows() {
            // Some inputs, often those of a text's first token, are a hundred times as long as most
            // and all alike: making errors cancel for them alone would be a bad bargain.
            let weight = weight * (usual / square(row)).min(1.0);
            let mut products = [0.0f32; DIRECTIONS];
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

    /// Adds what another sketch has seen; `None` if it is of another width.
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

    /// What it says of the mean products of inputs whose mean squares are `squares`. These may be of more
    /// inputs than it has seen. `None` where it says nothing, as of inputs that were all zero.
    pub fn correlation(&self, squares: &[f32]) -> Option<Correlation> {
        if squares.len() != self.sums.len() || self.count == 0 {
            return None;
        }
        // With Y = CΩ, C is about Y (ΩᵀY)⁻¹ Yᵀ = UUᵀ, with U = Y L⁻ᵀ and LLᵀ = ΩᵀY.
        let scale = 1.0 / self.count as f64;
        let mut core = [[0.0f64; DIRECTIONS]; DIRECTIONS];
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
            for k in 0..DIRECTIONS {
                let known: f64 = (0..k).map(|j| lower[k][j] * u[j]).sum();
                u[k] = (u[k] - known) / lower[k][k];
            }
            u.map(|u| u as f32)
        });
        let directions: Vec<[f32; DIRECTIONS]> = directions.collect();
        let finite = directions.iter().flatten().all(|u| u.is_finite());
        finite.then(|| Correlation::new(directions, squares))
    }
}

fn square(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum()
}

/// The middle of some numbers; 0 where there are none.
fn median(mut numbers: Vec<f32>) -> f32 {
    let middle = numbers.len() / 2;
    if numbers.is_empty() {
        return 0.0;
    }
    *numbers.select_nth_unstable_by(middle, f32::total_cmp).1
}

/// The signs that an input is multiplied with: bits of its number, well mixed.
fn signs(column: usize) -> [f32; DIRECTIONS] {
    let mut bits = (column as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    std::array::from_fn(|k| if bits >> k & 1 == 0 { 1.0 } else { -1.0 })
}

/// `L` with `LLᵀ` the symmetric part of `a`, and a little more on the diagonal, without which
/// rounding could make it none; `None` if `a` is zero or not finite.
fn cholesky(a: &[[f64; DIRECTIONS]; DIRECTIONS]) -> Option<[[f64; DIRECTIONS]; DIRECTIONS]> {
    let trace: f64 = (0..DIRECTIONS).map(|i| a[i][i]).sum();
    let more = 1e-5 * trace / DIRECTIONS as f64;
    let mut lower = [[0.0; DIRECTIONS]; DIRECTIONS];
    for i in 0..DIRECTIONS {
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

    /// Inputs of length 1 along three directions, of very different strengths.
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
    fn a_long_input_counts_as_one_of_the_usual_length() {
        let rows = inputs(9, 24);
        let mut long = rows.clone();
        long[..24].iter_mut().for_each(|x| *x *= 100.0);
        let (mut usual, mut clipped) = (Sketch::new(24), Sketch::new(24));
        usual.see(&rows);
        clipped.see(&long);
        for (a, b) in usual
            .sums
            .iter()
            .flatten()
            .zip(clipped.sums.iter().flatten())
        {
            assert!((a - b).abs() < 1e-3, "{a} {b}");
        }
    }

    #[test]
    fn few_directions_come_back_whole() {
        let (n, width) = (64 * EVERY, 96);
        let rows = inputs(n, width);
        let mut sketch = Sketch::new(width);
        // So many were seen before, all of them zero.
        sketch.count = ENOUGH;
        sketch.see(&rows);
        sketch.count -= ENOUGH;
        let seen: Vec<&[f32]> = rows.chunks(width).step_by(EVERY).collect();
        let mut squares = vec![0.0f32; width];
        for row in &seen {
            for (square, x) in squares.iter_mut().zip(*row) {
                *square += x * x / seen.len() as f32;
            }
        }
        let correlation = sketch.correlation(&squares).unwrap();
        for seed in 0..5usize {
            let weights: Vec<f32> = (0..width).map(|j| ((j * j + seed) as f32).cos()).collect();
            let product = |row: &&[f32]| -> f64 {
                let sum: f32 = row.iter().zip(&weights).map(|(x, w)| x * w).sum();
                f64::from(sum * sum)
            };
            let expected = seen.iter().map(product).sum::<f64>() / seen.len() as f64;
            let found = correlation.mean_square(weights.iter().copied());
            // An input's own share, which these have none of, is never thought to be less than this.
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
    fn parts_add_up() {
        let width = 40;
        let rows = inputs(8 * EVERY, width);
        let (first, second) = rows.split_at(4 * EVERY * width);
        let (mut whole, mut half, mut other) =
            (Sketch::new(width), Sketch::new(width), Sketch::new(width));
        whole.see(&rows);
        half.see(first);
        other.see(second);
        half.add(&other).unwrap();
        assert_eq!(half.count, whole.count);
        for (a, b) in whole.sums.iter().flatten().zip(half.sums.iter().flatten()) {
            assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "{a} {b}");
        }
        assert!(half.add(&Sketch::new(3)).is_none());
    }

    #[test]
    fn nothing_says_nothing() {
        let of = |rows: &[f32]| {
            let mut sketch = Sketch::new(2);
            sketch.see(rows);
            sketch
        };
        assert!(of(&[1.0, 1.0]).correlation(&[1.0; 2]).is_some());
        assert!(of(&[1.0, 1.0]).correlation(&[1.0; 3]).is_none());
        assert!(of(&[0.0, 0.0]).correlation(&[0.0; 2]).is_none());
        assert!(of(&[f32::NAN, 1.0]).correlation(&[1.0; 2]).is_none());
        assert!(of(&[]).correlation(&[1.0; 2]).is_none());
    }
}
