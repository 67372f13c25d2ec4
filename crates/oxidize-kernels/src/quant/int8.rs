//! INT8: [`Q8_0`] with the same scale in all blocks of a row.
//!
//! With activations that have one scale per token, a dot product adds up integers over the whole row.
//! Files store it as Q8_0, with a metadata key that identifies it.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::q8_0::Q8_0;
use super::search::scale::{inverse_or_zero, level, max_abs};
use super::{Block, Dot, QuantizeRow, ScalarQuantized, TensorType};

/// A block of 32 weights; all blocks of a row have the same scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct INT8(pub Q8_0);

assert_layout!(INT8, 34);

impl Block for INT8 {
    const TYPE: TensorType = TensorType::INT8;
    const LEN: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        self.0.dequantize(out);
    }
}

impl Dot for INT8 {
    type Activation = Q8_0;

    #[inline]
    fn dot(&self, activations: &[Q8_0]) -> f32 {
        self.0.dot(activations)
    }
}

impl ScalarQuantized for INT8 {
    const GROUP: usize = Q8_0::GROUP;
    const SWEEPS: usize = 2;

    fn scale_and_offset(&self, group: usize) -> (f32, f32) {
        self.0.scale_and_offset(group)
    }

    fn read_levels(&self, out: &mut [i8]) {
        self.0.read_levels(out);
    }

    fn write_levels(&mut self, levels: &[i8]) {
        self.0.write_levels(levels);
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        Q8_0::nearest_level(x)
    }
}

/// Clipping thresholds that are tried, as fractions of the largest element. Clipping a few outliers can
/// reduce the error of the other weights by more than it costs.
const CLIP_RATIOS: [f32; 11] = [1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5, 0.4];

impl QuantizeRow for INT8 {
    /// Quantizes the row at the scale with the least weighted squared error.
    #[inline(always)]
    fn quantize_row(row: &[f32], importance: Option<&[f32]>, out: &mut [Self]) {
        let largest = max_abs(row);
        let candidates = CLIP_RATIOS.map(|ratio| F16Le::from_f32(ratio * largest / 127.0));
        let cost = |d: F16Le| -> f64 {
            let (d, inverse) = (d.to_f32(), inverse_or_zero(d.to_f32()));
            let error = |x: f32| f64::from(x - d * level(x, inverse, -127, 127) as f32);
            let errors = row.iter().map(|x| error(*x) * error(*x));
            match importance {
                Some(importance) => errors.zip(importance).map(|(e, i)| e * f64::from(*i)).sum(),
                None => errors.sum(),
            }
        };
        let costs = candidates.map(|d| (cost(d), d));
        // The first of equals: a row of zeros, or one without importance, is not clipped.
        let best = costs.iter().fold(
            costs[0],
            |best, next| {
                if next.0 < best.0 { *next } else { best }
            },
        );
        let inverse = inverse_or_zero(best.1.to_f32());
        for (block, x) in out.iter_mut().zip(row.chunks_exact(32)) {
            block.0.d = best.1;
            for (q, x) in block.0.qs.iter_mut().zip(x) {
                *q = level(*x, inverse, -127, 127) as i8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::Random;

    fn quantized(row: &[f32], importance: Option<&[f32]>) -> (f32, Vec<f32>) {
        let mut blocks = vec![INT8::zeroed(); row.len() / 32];
        INT8::quantize_row(row, importance, &mut blocks);
        let mut floats = vec![0.0; row.len()];
        for (block, out) in blocks.iter().zip(floats.chunks_exact_mut(32)) {
            assert_eq!(block.0.d, blocks[0].0.d);
            block.dequantize(out);
        }
        (blocks[0].0.d.to_f32(), floats)
    }

    #[test]
    fn row_has_one_scale_and_bounded_error() {
        let row = Random::new(3).normals(512);
        let (d, floats) = quantized(&row, None);
        for (x, y) in row.iter().zip(&floats) {
            assert!((x - y).abs() <= 0.51 * d, "{x} {y} {d}");
        }
    }

    #[test]
    fn unimportant_outlier_is_clipped() {
        let mut row = Random::new(4).normals(512);
        row[7] = 100.0;
        let (unclipped, _) = quantized(&row, None);
        let mut importance = vec![1.0; 512];
        importance[7] = 1e-6;
        let (clipped, _) = quantized(&row, Some(&importance));
        assert!(clipped < 0.5 * unclipped, "{clipped} {unclipped}");
    }

    #[test]
    fn zeros_and_nonfinite_rows_do_not_panic() {
        assert!(quantized(&[0.0; 64], None).1.iter().all(|x| *x == 0.0));
        quantized(&[f32::NAN; 32], None);
        quantized(&[f32::INFINITY; 32], None);
    }
}
