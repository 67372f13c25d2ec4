//! Top-nσ: keeps logits within n standard deviations of the largest (Tang et al. 2024).

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

#[derive(Debug, Clone, Copy)]
struct TopNSigma(f64);

/// Builds the stage, or `None` if it is off.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.top_n_sigma > 0.0).then(|| Box::new(TopNSigma(f64::from(params.top_n_sigma))) as _)
}

impl Stage for TopNSigma {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        let max = candidates.max();
        if max == f32::NEG_INFINITY {
            return;
        }
        // Excluded tokens do not count. Distances from the maximum keep the sums small.
        let (mut n, mut sum, mut squares) = (0.0f64, 0.0f64, 0.0f64);
        for &logit in candidates.logits() {
            if logit > f32::NEG_INFINITY {
                let distance = f64::from(logit - max);
                n += 1.0;
                sum += distance;
                squares += distance * distance;
            }
        }
        let mean = sum / n;
        let sigma = (squares / n - mean * mean).max(0.0).sqrt();
        candidates.retain_at_least((f64::from(max) - self.0 * sigma) as f32);
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}
