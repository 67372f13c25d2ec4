//! XTC, exclude top choices (Weidmann 2024): with some probability, removes all tokens above a
//! threshold except the least likely of them, which makes the text less predictable but still
//! coherent.

use super::candidates::max_of;
use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

/// Weights examined together.
const CHUNK: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Xtc {
    probability: f64,
    threshold: f64,
}

/// Builds the stage, or `None` if it is off. At most one token can have a probability above 0.5.
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
        // Drawn in every step, so that later draws do not depend on the logits of this step.
        let chance = rng.next_f64();
        if candidates.len() < 2 || chance >= self.probability {
            return;
        }
        let threshold = self.threshold * candidates.exp_sum();
        // Smallest f32 that is not below the threshold, so that f32 values can be compared.
        let nearest = threshold as f32;
        let threshold = match f64::from(nearest) < threshold {
            true => nearest.next_up(),
            false => nearest,
        };
        // Few tokens reach the threshold: chunks without one are skipped.
        let weights = candidates.weights();
        let mut above: Vec<usize> = Vec::new();
        for (first, chunk) in (0..).step_by(CHUNK).zip(weights.chunks(CHUNK)) {
            if max_of(chunk) >= threshold {
                let here = (first..)
                    .zip(chunk)
                    .filter(|(_, weight)| **weight >= threshold);
                above.extend(here.map(|(position, _)| position));
            }
        }
        // Among ties, the higher id counts as less likely, as in a stable sort.
        let survivor = above
            .iter()
            .copied()
            .min_by(|&a, &b| weights[a].total_cmp(&weights[b]).then(b.cmp(&a)));
        if above.len() >= 2
            && let Some(survivor) = survivor
        {
            above.retain(|&position| position != survivor);
            candidates.remove(&above);
        }
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(*self)
    }
}
