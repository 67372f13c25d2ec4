//! Log probabilities for the client: those of the model itself, before penalties, truncation and temperature.

use super::Candidates;
use super::candidates::max_of;
use super::exp::exp;

/// The logarithm of the sum of the exponentials, by which a logit becomes a log probability.
pub(super) fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = max_of(logits);
    if max == f32::NEG_INFINITY {
        return max;
    }
    let sum: f64 = logits
        .chunks(1024)
        .map(|chunk| f64::from(chunk.iter().map(|&logit| exp(logit - max)).sum::<f32>()))
        .sum();
    max + sum.ln() as f32
}

/// The `n` most likely tokens with their log probabilities, the most likely first.
pub(super) fn most_likely(
    candidates: &mut Candidates,
    n: usize,
    log_sum_exp: f32,
) -> Vec<(u32, f32)> {
    candidates.retain_top(n);
    candidates.sort();
    candidates
        .logits()
        .iter()
        .enumerate()
        .map(|(position, &logit)| (candidates.id(position), logit - log_sum_exp))
        .collect()
}
