//! Tail-free sampling: cuts where the sorted probabilities stop curving (Phénix and Egan 2019). The
//! rule needs the full order, but the tail has a bounded influence: if the most likely tokens
//! determine the cut regardless of the others, or nearly so, the others are not sorted.

use oxidize_kernels::select;

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

/// Number of most likely tokens that usually determine the cut.
const HEAD: usize = 1000;
/// In a longer list, the curvature of tokens below this fraction of the largest probability is
/// estimated.
const MIN_RELATIVE_PROBABILITY: f32 = 0.005;
/// Logit distance from the maximum that corresponds to `MIN_RELATIVE_PROBABILITY`: −ln 0.005.
const MAX_LOGIT_DISTANCE: f32 = 5.298_317_4;
const LONG: usize = 1 << 16;

#[derive(Debug, Clone)]
struct TailFree {
    fraction: f64,
    /// Scratch: weights of the tokens, most likely first.
    weights: Vec<f32>,
}

/// Builds the stage, or `None` if it is off.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.tfs_z < 1.0).then(|| {
        Box::new(TailFree {
            fraction: f64::from(params.tfs_z),
            weights: Vec::new(),
        }) as _
    })
}

impl Stage for TailFree {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        if candidates.len() < 3 {
            return;
        }
        let floor = candidates.max() - MAX_LOGIT_DISTANCE;
        let is_long = candidates.len() > LONG;
        // If many tokens are likely, the head does not determine the cut.
        let is_flat = is_long && candidates.count_above(floor) > 4 * HEAD;
        if candidates.len() > HEAD
            && !is_flat
            && let Some(keep) = self.cut_in_head(candidates)
        {
            return candidates.retain_top(keep);
        }
        if is_long && let Some(keep) = self.cut_above(floor, candidates) {
            return candidates.retain_first(keep);
        }
        let curvature = self.curvature(candidates.descending(f32::NEG_INFINITY));
        if let Some(first_above) =
            first_above(&curvature, self.fraction * curvature.iter().sum::<f64>())
        {
            candidates.retain_first(first_above.max(1));
        }
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(self.clone())
    }
}

impl TailFree {
    /// Number of tokens kept, if it is the same for the smallest and the largest possible curvature
    /// of the tail.
    fn cut_in_head(&mut self, candidates: &mut Candidates) -> Option<usize> {
        let head: Vec<f32> = candidates.largest(HEAD).collect();
        let curvature = self.curvature(&head);
        let least: f64 = curvature.iter().sum();
        let most = least + self.max_tail();
        let cut = |total: f64| first_above(&curvature, self.fraction * total);
        let (first, last) = (cut(least)?, cut(most)?);
        // Sums in another order differ in the last digits: near a tie, the full order decides.
        let clear = cut(least * (1.0 - 1e-9))? == first && cut(most * (1.0 + 1e-9))? == last;
        (first == last && clear).then_some(first.max(1))
    }

    /// Number of tokens kept of a flat distribution, if the cut is among those above `floor`. The
    /// curvature of the others is between 0 and twice their largest weight, half of that on
    /// average, which is the estimate used here. The error is at most 0.5% of the total.
    fn cut_above(&mut self, floor: f32, candidates: &mut Candidates) -> Option<usize> {
        let curvature = self.curvature(candidates.descending(floor));
        if curvature.len() > LONG {
            return None;
        }
        let total = curvature.iter().sum::<f64>() + f64::from(MIN_RELATIVE_PROBABILITY);
        first_above(&curvature, self.fraction * total).map(|first_above| first_above.max(1))
    }

    /// Absolute second differences of the weights of a sorted list. The normalization 1 / Z cancels
    /// in fractions.
    fn curvature(&mut self, logits: &[f32]) -> Vec<f64> {
        let max = logits.first().copied().unwrap_or(f32::NEG_INFINITY);
        self.weights.resize(logits.len(), 0.0);
        select().exp_sum(logits, max, &mut self.weights);
        let second_difference =
            |a: f32, b: f32, c: f32| (f64::from(a) - 2.0 * f64::from(b) + f64::from(c)).abs();
        let neighbors = self.weights.iter().zip(self.weights.iter().skip(1));
        let neighbors = neighbors.zip(self.weights.iter().skip(2));
        neighbors
            .map(|((&a, &b), &c)| second_difference(a, b, c))
            .collect()
    }

    /// Upper bound on the curvature after the last second difference: the first differences fall to
    /// 0 from at most the last weight but one, so their changes add up to at most twice that
    /// weight.
    fn max_tail(&self) -> f64 {
        let last = self.weights.iter().rev().nth(1);
        2.0 * last.copied().map_or(0.0, f64::from)
    }
}

/// First index at which the sum of the curvature exceeds `limit`.
fn first_above(curvature: &[f64], limit: f64) -> Option<usize> {
    let mut seen = 0.0;
    curvature.iter().position(|second_difference| {
        seen += second_difference;
        seen > limit
    })
}
