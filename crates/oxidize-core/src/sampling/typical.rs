//! Locally typical sampling: keeps the tokens whose surprise is nearest to the entropy, up to a
//! total probability (Meister et al. 2022).

use super::chain::{SamplerVocab, Stage};
use super::temperature::entropy;
use super::{Candidates, Rng, SamplingParams};

#[derive(Debug, Clone, Copy)]
struct Typical(f64);

/// Builds the stage, or `None` if it is off.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.typical_p < 1.0).then(|| Box::new(Typical(f64::from(params.typical_p))) as _)
}

impl Stage for Typical {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        let total = candidates.exp_sum();
        if total <= 0.0 {
            return;
        }
        // Surprise is ln Z − (logit − max), so the distance needs no logarithm per token.
        let expected = (total.ln() - entropy(candidates, total)) as f32 + candidates.exp_max();
        candidates.retain_nearest_mass(self.0, total, |logit| (expected - logit).abs());
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}
