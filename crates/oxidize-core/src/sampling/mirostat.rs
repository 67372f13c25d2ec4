//! Mirostat 1 and 2: truncation steered so that the surprise of the text stays at a target
//! (Basu et al. 2020). It draws the token itself, since it learns from what was drawn.

use super::params::MirostatMode;
use super::{Candidates, MirostatParams, Rng};

/// How many of the most likely tokens version 1 estimates the tail from.
const ESTIMATE_FROM: usize = 100;

/// The state of one sequence.
#[derive(Debug, Clone)]
pub(super) struct Mirostat {
    params: MirostatParams,
    /// The surprise, in bits, above which tokens are cut; starts at twice the target.
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

    /// Truncates, draws, and moves the threshold by the surprise of what was drawn.
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
        let total = candidates.weigh();
        if total <= 0.0 {
            return;
        }
        // −log₂(w / Z) ≤ μ  ⇔  logit ≥ max + ln Z − μ ln 2. The most likely token always stays.
        let max = candidates.weighed_max();
        let threshold = max + total.ln() as f32 - self.mu * std::f32::consts::LN_2;
        candidates.retain_at_least(threshold.min(max));
    }

    fn truncate_by_exponent(&self, candidates: &mut Candidates) {
        let mut head = candidates.clone();
        head.retain_top(ESTIMATE_FROM);
        head.sort();
        // Least squares for the exponent s of a Zipf law through the head. ln(p_i / p_j) is a difference of logits.
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
        // A flat head gives no finite k: then nothing is cut.
        if k.is_finite() {
            candidates.retain_top((k as usize).max(1));
        }
    }
}
