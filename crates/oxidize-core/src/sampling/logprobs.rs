//! Log probabilities reported to clients: those of the model, before penalties, truncation and
//! temperature.

use oxidize_kernels::select;

use super::Candidates;
use super::candidates::max_of;

/// Logarithm of the sum of exponentials: a logit minus this is a log probability.
pub(super) fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = max_of(logits);
    if max == f32::NEG_INFINITY {
        return max;
    }
    let mut weights = [0.0f32; 1024];
    let mut sum = 0.0;
    for chunk in logits.chunks(weights.len()) {
        sum += select().exp_sum(chunk, max, &mut weights[..chunk.len()]);
    }
    max + sum.ln() as f32
}

/// The `n` most likely tokens with log probabilities, most likely first.
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
