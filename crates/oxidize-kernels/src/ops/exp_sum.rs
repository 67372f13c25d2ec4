//! Softmax weights of logits, `exp(logit − max)`, for sampling. The code is branch-free, so that it
//! vectorizes over a vocabulary, and uses only multiplications and additions in a fixed order, so that a seed
//! gives the same tokens on every machine. Instruction sets compile this same code.

/// Weights whose sum is computed in f32 before it is added to one in f64.
const CHUNK: usize = 256;
/// Independent sums of a chunk.
const LANES: usize = 8;

/// Writes `exp(logit − max)` for every logit, none of which is above `max`, and returns the sum.
#[inline(always)]
pub(crate) fn exp_sum(logits: &[f32], max: f32, weights: &mut [f32]) -> f64 {
    if max == f32::NEG_INFINITY {
        weights.fill(0.0);
        return 0.0;
    }
    let mut total = 0.0;
    for (logits, weights) in logits.chunks(CHUNK).zip(weights.chunks_mut(CHUNK)) {
        for (weight, &logit) in weights.iter_mut().zip(logits) {
            *weight = exp(logit - max);
        }
        total += sum_of_chunk(weights);
    }
    total
}

/// Sum of values: [`CHUNK`] at a time in f32 over eight lanes, whose sums are added in f64.
#[inline(always)]
pub(crate) fn sum(values: &[f32]) -> f64 {
    let mut total = 0.0;
    for chunk in values.chunks(CHUNK) {
        total += sum_of_chunk(chunk);
    }
    total
}

#[inline(always)]
fn sum_of_chunk(values: &[f32]) -> f64 {
    let (vectors, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for vector in vectors {
        lanes = std::array::from_fn(|lane| lanes[lane] + vector[lane]);
    }
    lanes
        .iter()
        .chain(rest)
        .map(|&value| f64::from(value))
        .sum()
}

/// `e^x` for `x ≤ 0` to about 2 units in the last place; 0 below −87, where f32 ends.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to an integer, which is left in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts: the first has few bits, so that n · LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;

    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    // Minimax polynomial of e^r on |r| ≤ ln 2 / 2 (Cephes, expf).
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let power = f32::from_bits((exponent.wrapping_add(127) as u32) << 23);
    if x > -87.0 { p * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_matches_the_standard_library() {
        let mut worst = 0.0f64;
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 3e-7, "relative error {worst}");
        assert_eq!(
            [exp(0.0), exp(-1000.0), exp(f32::NEG_INFINITY)],
            [1.0, 0.0, 0.0]
        );
    }

    #[test]
    fn masked_logits_have_weight_zero() {
        let mut weights = [1.0; 3];
        let total = exp_sum(&[2.0, f32::NEG_INFINITY, 2.0], 2.0, &mut weights);
        assert_eq!((weights, total), ([1.0, 0.0, 1.0], 2.0));
        assert_eq!(
            exp_sum(&[f32::NEG_INFINITY; 3], f32::NEG_INFINITY, &mut weights),
            0.0
        );
        assert_eq!(weights, [0.0; 3]);
        assert_eq!(sum(&[0.5; 1000]), 500.0);
    }
}
