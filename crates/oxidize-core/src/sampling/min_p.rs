//! Min-p: tokens at least as likely as a share of the most likely one (Nguyen et al. 2024).

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

/// The logarithm of the share: p ≥ share · p_max means logit ≥ max + ln share.
#[derive(Debug, Clone, Copy)]
struct MinP(f32);

/// `None` when off.
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
