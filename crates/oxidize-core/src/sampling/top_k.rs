//! Top-k: keeps the k most likely tokens.

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

#[derive(Debug, Clone, Copy)]
struct TopK(usize);

/// Builds the stage, or `None` if it is off.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.top_k > 0).then(|| Box::new(TopK(params.top_k as usize)) as _)
}

impl Stage for TopK {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        candidates.retain_top(self.0);
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}
