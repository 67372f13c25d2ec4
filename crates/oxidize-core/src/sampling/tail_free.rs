//! Tail-free sampling: cuts where the sorted probabilities stop curving (Phénix and Egan 2019).
//! Its rule needs the whole order: place it after top-k when the vocabulary is large.

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

#[derive(Debug, Clone, Copy)]
struct TailFree(f64);

/// `None` when off.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.tfs_z < 1.0).then(|| Box::new(TailFree(f64::from(params.tfs_z))) as _)
}

impl Stage for TailFree {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        if candidates.len() < 3 {
            return;
        }
        candidates.sort();
        candidates.weigh();
        // The common factor 1 / Z of the probabilities drops out of the share.
        let curvature = |window: &[f32]| match *window {
            [a, b, c] => (f64::from(a) - 2.0 * f64::from(b) + f64::from(c)).abs(),
            _ => 0.0,
        };
        let total: f64 = candidates.weights().windows(3).map(curvature).sum();
        let mut seen = 0.0;
        let past = candidates.weights().windows(3).position(|window| {
            seen += curvature(window);
            seen > self.0 * total
        });
        if let Some(position) = past {
            candidates.truncate(position.max(1));
        }
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}
