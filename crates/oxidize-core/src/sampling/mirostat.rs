//! Mirostat 1 and 2: adapts the truncation so that the surprise of the text stays near a target
//! (Basu et al. 2020). It draws the token itself because it learns from the draw.

use super::params::MirostatMode;
use super::{Candidates, MirostatParams, Rng};

/// Number of most likely tokens from which version 1 estimates the tail.
const N_ESTIMATE: usize = 100;

/// State of one sequence.
#[derive(Debug, Clone)]
pub(super) struct Mirostat {
    params: MirostatParams,
    /// Surprise in bits above which tokens are cut. Starts at twice the target.
    mu: f32,
    n_tokens: usize,
}

impl Mirostat {
    pub(super) fn new(params: MirostatParams, n_tokens: usize) -> Self {
        Self {
            params,
            mu: 2.0 * params.tau,
            n_tokens,
        }
    }

    /// Truncates, draws, and adapts the threshold to the surprise of the drawn token.
    pub(super) fn draw(&mut self, candidates: &mut Candidates, rng: &mut Rng) -> Option<u32> {
        match self.params.mode {
            MirostatMode::V1 => self.truncate_by_exponent(candidates),
            MirostatMode::V2 | MirostatMode::Off => self.truncate_by_surprise(candidates),
        }
        let token = candidates.draw(rng)?;
        let position = (0..candidates.len()).find(|&position| candidates.id(position) == token)?;
        let total: f64 = candidates
            .weights()
            .iter()
            .map(|&weight| f64::from(weight))
            .sum();
        let surprise = -(f64::from(candidates.weights()[position]) / total).log2() as f32;
        self.mu -= self.params.eta * (surprise - self.params.tau);
        Some(token)
    }

    fn truncate_by_surprise(&self, candidates: &mut Candidates) {
        let total = candidates.exp_sum();
        if total <= 0.0 {
            return;
        }
        // −log₂(w / Z) ≤ μ  ⇔  logit ≥ max + ln Z − μ ln 2. The most likely token is always kept.
        let max = candidates.exp_max();
        let threshold = max + total.ln() as f32 - self.mu * std::f32::consts::LN_2;
        candidates.retain_at_least(threshold.min(max));
    }

    fn truncate_by_exponent(&self, candidates: &mut Candidates) {
        let mut head = candidates.clone();
        head.retain_top(N_ESTIMATE);
        head.sort();
        // Least squares fit of the exponent s of Zipf's law to the head. ln(p_i / p_j) is a
        // difference of logits.
        let (mut products, mut squares) = (0.0f64, 0.0f64);
        for (i, pair) in head.logits().windows(2).enumerate() {
            if let &[upper, lower] = pair
                && lower > f32::NEG_INFINITY
            {
                let t = ((i + 2) as f64 / (i + 1) as f64).ln();
                products += t * f64::from(upper - lower);
                squares += t * t;
            }
        }
        if squares == 0.0 {
            return;
        }
        let s = products / squares;
        let epsilon = s - 1.0;
        let n = self.n_tokens as f64;
        let k = ((epsilon * f64::from(self.mu).exp2()) / (1.0 - n.powf(-epsilon))).powf(1.0 / s);
        // k is not finite for a flat head: nothing is cut.
        if k.is_finite() {
            candidates.retain_top((k as usize).max(1));
        }
    }
}
