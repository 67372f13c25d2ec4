//! XTC, exclude top choices: now and then removes all tokens above a threshold but the least likely of
//! them, so that the text takes a road less travelled without losing sense (Weidmann 2024).

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

#[derive(Debug, Clone, Copy)]
struct Xtc {
    probability: f64,
    threshold: f64,
}

/// `None` when off; two tokens cannot both be likelier than one half.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5).then(|| {
        Box::new(Xtc {
            probability: f64::from(params.xtc_probability),
            threshold: f64::from(params.xtc_threshold),
        }) as _
    })
}

impl Stage for Xtc {
    fn apply(&mut self, candidates: &mut Candidates, rng: &mut Rng) {
        // Drawn in every step, so that the numbers of later stages do not depend on this step's logits.
        let chance = rng.next_f64();
        if candidates.len() < 2 || chance >= self.probability {
            return;
        }
        let threshold = self.threshold * candidates.weigh();
        let above = |weight: f32| f64::from(weight) >= threshold;
        let weights = candidates.weights();
        let n_above = weights.iter().filter(|&&weight| above(weight)).count();
        if n_above < 2 {
            return;
        }
        let least = weights
            .iter()
            .map(|&weight| if above(weight) { weight } else { f32::INFINITY })
            .fold(
                f32::INFINITY,
                |least, weight| if weight < least { weight } else { least },
            );
        // Among equals the one with the higher id counts as less likely, as in a stable sort.
        let survivor = weights.iter().rposition(|&weight| weight == least);
        candidates.remove_where(|position, weight| Some(position) != survivor && above(weight));
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}
