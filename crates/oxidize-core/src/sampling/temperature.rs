//! Temperature, fixed or dynamic. The dynamic form (Ford 2023) maps the entropy of the step to a
//! temperature range.

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

/// Lower bound that avoids a division by zero.
const MIN_TEMPERATURE: f32 = 1e-4;

#[derive(Debug, Clone, Copy)]
struct Fixed {
    factor: f32,
}

#[derive(Debug, Clone, Copy)]
struct Dynamic {
    low: f32,
    high: f32,
    exponent: f32,
}

/// Builds the stage, or `None` if the temperature is fixed at 1.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    let temperature = params.temperature.max(MIN_TEMPERATURE);
    if params.dynatemp_range > 0.0 {
        return Some(Box::new(Dynamic {
            low: (temperature - params.dynatemp_range).max(MIN_TEMPERATURE),
            high: temperature + params.dynatemp_range,
            exponent: params.dynatemp_exponent,
        }));
    }
    (temperature != 1.0).then(|| {
        Box::new(Fixed {
            factor: 1.0 / temperature,
        }) as _
    })
}

impl Stage for Fixed {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        candidates.scale(self.factor);
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}

impl Stage for Dynamic {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        if candidates.len() < 2 {
            return;
        }
        let total = candidates.exp_sum();
        let n_possible = candidates
            .logits()
            .iter()
            .filter(|&&x| x > f32::NEG_INFINITY)
            .count();
        let max_entropy = (n_possible.max(2) as f64).ln();
        let normalized = (entropy(candidates, total) / max_entropy).clamp(0.0, 1.0) as f32;
        let temperature = self.low + (self.high - self.low) * normalized.powf(self.exponent);
        candidates.scale(1.0 / temperature.max(MIN_TEMPERATURE));
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}

/// Entropy in nats. Uses the weights of the step, whose sum is `total`.
pub(super) fn entropy(candidates: &Candidates, total: f64) -> f64 {
    let max = candidates.exp_max();
    // With p = w / Z and ln w = logit − max: −Σ p ln p = ln Z − Σ w · ln w / Z. Sums 256 tokens at
    // a time in f32, in eight lanes, and the results in f64.
    let chunks = candidates.weights().chunks(256);
    let sums = chunks.zip(candidates.logits().chunks(256)).map(|(w, l)| {
        // An excluded token has weight 0, which must not be multiplied by −∞.
        let term = |weight: f32, logit: f32| {
            let log = logit - max;
            weight * if log > -1e4 { log } else { -1e4 }
        };
        let ((w, w_rest), (l, l_rest)) = (w.as_chunks::<8>(), l.as_chunks::<8>());
        let mut lanes = [0.0f32; 8];
        for (w, l) in w.iter().zip(l) {
            lanes = std::array::from_fn(|i| lanes[i] + term(w[i], l[i]));
        }
        let rest = w_rest.iter().zip(l_rest).map(|(&w, &l)| term(w, l));
        lanes.into_iter().chain(rest).map(f64::from).sum::<f64>()
    });
    total.ln() - sums.sum::<f64>() / total
}
