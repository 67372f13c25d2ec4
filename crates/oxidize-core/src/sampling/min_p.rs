//! Min-p: keeps tokens whose probability is at least `min_p` times that of the most likely token
//! (Nguyen et al. 2024).

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

/// Holds ln min_p: p ≥ min_p · p_max is equivalent to logit ≥ max + ln min_p.
#[derive(Debug, Clone, Copy)]
struct MinP(f32);

/// Builds the stage, or `None` if it is off.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.min_p > 0.0).then(|| Box::new(MinP(params.min_p.ln())) as _)
}

impl Stage for MinP {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        let threshold = candidates.max() + self.0;
        candidates.retain_at_least(threshold);
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}
