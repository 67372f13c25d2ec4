//! Tail-free sampling: cuts where the sorted probabilities stop curving (Phénix and Egan 2019).
//! Its rule needs the whole order, but the tail can only matter so much: where the most likely tokens decide the
//! cut whatever the others do, or nearly so, the others are not sorted.

use oxidize_kernels::select;

use super::chain::{SamplerVocab, Stage};
use super::{Candidates, Rng, SamplingParams};

/// So many of the most likely tokens usually decide.
const HEAD: usize = 1000;
/// In a longer list the bends of tokens less likely than this share of the most likely one are estimated, …
const FAINT: f32 = 0.005;
/// … whose logit is so far below the largest.
const FAINT_DISTANCE: f32 = 5.298_317_4;
const LONG: usize = 1 << 16;

#[derive(Debug, Clone)]
struct TailFree {
    share: f64,
    /// Scratch: the weights of the tokens, from the most likely down.
    weights: Vec<f32>,
}

/// `None` when off.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.tfs_z < 1.0).then(|| {
        Box::new(TailFree {
            share: f64::from(params.tfs_z),
            weights: Vec::new(),
        }) as _
    })
}

impl Stage for TailFree {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        if candidates.len() < 3 {
            return;
        }
        let floor = candidates.max() - FAINT_DISTANCE;
        let is_long = candidates.len() > LONG;
        // Where many tokens are likely, the head will not decide.
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
        let bends = self.bends(candidates.descending(f32::NEG_INFINITY));
        if let Some(past) = past(&bends, self.share * bends.iter().sum::<f64>()) {
            candidates.retain_first(past.max(1));
        }
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(self.clone())
    }
}

impl TailFree {
    /// How many tokens stay, if that is the same for the least and the most that the tail can bend.
    fn cut_in_head(&mut self, candidates: &mut Candidates) -> Option<usize> {
        let head: Vec<f32> = candidates.largest(HEAD).collect();
        let bends = self.bends(&head);
        let least: f64 = bends.iter().sum();
        let most = least + self.most_below();
        let cut = |total: f64| past(&bends, self.share * total);
        let (first, last) = (cut(least)?, cut(most)?);
        // Sums in another order differ in their last digits: near a tie the whole order decides.
        let clear = cut(least * (1.0 - 1e-9))? == first && cut(most * (1.0 + 1e-9))? == last;
        (first == last && clear).then_some(first.max(1))
    }

    /// How many tokens stay of a flat distribution, if the cut lies among those that are not faint. What the faint ones
    /// bend is between nothing and twice their largest weight; chance bends them by half as much, which is what is
    /// taken here. So the share is met to half a percent at worst.
    fn cut_above(&mut self, floor: f32, candidates: &mut Candidates) -> Option<usize> {
        let bends = self.bends(candidates.descending(floor));
        if bends.len() > LONG {
            return None;
        }
        let total = bends.iter().sum::<f64>() + f64::from(FAINT);
        past(&bends, self.share * total).map(|past| past.max(1))
    }

    /// How much each three neighbours of a sorted list bend. The common factor 1 / Z of the probabilities
    /// drops out of shares.
    fn bends(&mut self, logits: &[f32]) -> Vec<f64> {
        let max = logits.first().copied().unwrap_or(f32::NEG_INFINITY);
        self.weights.resize(logits.len(), 0.0);
        select().weigh(logits, max, &mut self.weights);
        let bend =
            |a: f32, b: f32, c: f32| (f64::from(a) - 2.0 * f64::from(b) + f64::from(c)).abs();
        let neighbours = self.weights.iter().zip(self.weights.iter().skip(1));
        let neighbours = neighbours.zip(self.weights.iter().skip(2));
        neighbours.map(|((&a, &b), &c)| bend(a, b, c)).collect()
    }

    /// The most that whatever comes after the last [`TailFree::bends`] can bend: the differences between neighbours
    /// fall to 0 from one below the last weight but one, so theirs add up to twice that weight at most.
    fn most_below(&self) -> f64 {
        let last = self.weights.iter().rev().nth(1);
        2.0 * last.copied().map_or(0.0, f64::from)
    }
}

/// The first place at which the bends add up to more than `limit`.
fn past(bends: &[f64], limit: f64) -> Option<usize> {
    let mut seen = 0.0;
    bends.iter().position(|bend| {
        seen += bend;
        seen > limit
    })
}
