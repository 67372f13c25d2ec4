//! Log probabilities reported to clients: those of the model, before penalties, truncation and
//! temperature.

use oxidize_kernels::select;

use super::candidates::{check_logits, max_of};
use super::{Candidates, SamplingError};

/// The score of a given token under a model.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScore {
    /// Log probability.
    pub logprob: f32,
    /// Place among all tokens by probability, from 1.
    pub rank: usize,
    /// The most likely tokens with log probabilities.
    pub top: Vec<(u32, f32)>,
}

impl TokenScore {
    /// Scores `token` under the logits of the whole vocabulary, beside the `n` most likely tokens.
    pub fn new(logits: &[f32], token: u32, n: usize) -> Result<TokenScore, SamplingError> {
        check_logits(logits)?;
        let Some(&logit) = logits.get(token as usize) else {
            return Err(SamplingError::TokenOutOfRange {
                field: "prompt",
                token,
                n_tokens: logits.len(),
            });
        };
        let log_sum_exp = log_sum_exp(logits);
        let mut candidates = Candidates::default();
        let top = match n {
            0 => Vec::new(),
            n => {
                candidates.load(logits)?;
                most_likely(&mut candidates, n, log_sum_exp)
            }
        };
        Ok(TokenScore {
            logprob: logit - log_sum_exp,
            rank: 1 + logits.iter().filter(|&&other| other > logit).count(),
            top,
        })
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_the_softmax() {
        let probabilities = [0.1f32, 0.5, 0.15, 0.25];
        let logits = probabilities.map(|p| p.ln() + 3.0);
        let score = TokenScore::new(&logits, 3, 2).unwrap();
        assert!((score.logprob - 0.25f32.ln()).abs() < 1e-5);
        assert_eq!(score.rank, 2);
        let ids: Vec<u32> = score.top.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, [1, 3]);
        assert!(TokenScore::new(&logits, 4, 0).is_err());
        assert!(TokenScore::new(&[f32::NAN, 0.0], 1, 0).is_err());
    }
}
