//! Log probabilities for the client: those of the model itself, before penalties, truncation and temperature.

use oxidize_kernels::select;

use super::Candidates;
use super::candidates::max_of;

/// The logarithm of the sum of the exponentials, by which a logit becomes a log probability.
pub(super) fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = max_of(logits);
    if max == f32::NEG_INFINITY {
        return max;
    }
    let mut weights = [0.0f32; 1024];
    let mut sum = 0.0;
    for chunk in logits.chunks(weights.len()) {
        sum += select().weigh(chunk, max, &mut weights[..chunk.len()]);
    }
    max + sum.ln() as f32
}

/// The `n` most likely tokens with their log probabilities, the most likely first.
pub(super) fn most_likely(
    candidates: &mut Candidates,
    n: usize,
    log_sum_exp: f32,
) -> Vec<(u32, f32)> {
    if n == 0 {
        return Vec::new();
    }
    candidates.retain_top(n);
    candidates.sort();
    candidates
        .logits()
        .iter()
        .enumerate()
        .map(|(position, &logit)| (candidates.id(position), logit - log_sum_exp))
        .collect()
}
