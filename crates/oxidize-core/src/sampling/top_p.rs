//! Top-p, or nucleus sampling: keeps the fewest most likely tokens with total probability p
//! (Holtzman et al. 2019).

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

#[derive(Debug, Clone, Copy)]
struct TopP(f64);

/// Builds the stage, or `None` if it is off.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.top_p < 1.0).then(|| Box::new(TopP(f64::from(params.top_p))) as _)
}

impl Stage for TopP {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        candidates.retain_likely_mass(self.0);
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}
