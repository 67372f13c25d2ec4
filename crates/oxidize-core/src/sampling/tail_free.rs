//! Tail-free sampling: cuts where the sorted probabilities stop curving (Phénix and Egan 2019).
//! Its rule needs the whole order, but the tail can only matter so much: where the cut is certain from
//! the most likely tokens alone, the others are not sorted.

use super::chain::{SamplerVocab, Stage};
use super::exp::exp;
use super::{Candidates, Rng, SamplingParams};

#[derive(Debug, Clone, Copy)]
struct TailFree(f64);

/// `None` when off.
pub(super) fn build(params: &SamplingParams, _: &SamplerVocab) -> Option<Box<dyn Stage>> {
    (params.tfs_z < 1.0).then(|| Box::new(TailFree(f64::from(params.tfs_z))) as _)
}

/// So many of the most likely tokens usually decide.
const HEAD: usize = 1000;

/// How much three neighbours bend. The common factor 1 / Z of the probabilities drops out of shares.
fn curvature(window: &[f32]) -> f64 {
    match *window {
        [a, b, c] => (f64::from(a) - 2.0 * f64::from(b) + f64::from(c)).abs(),
        _ => 0.0,
    }
}

impl TailFree {
    /// How many tokens stay, if that is the same for the least and the most that the tail can bend.
    fn cut_in_head(&self, candidates: &mut Candidates) -> Option<usize> {
        let max = candidates.max();
        let head: Vec<f32> = candidates.largest(HEAD).map(|x| exp(x - max)).collect();
        let bends: Vec<f64> = head.windows(3).map(curvature).collect();
        // The differences between neighbours fall to 0 from one below the last weight of the head, so
        // theirs add up to twice that weight at most.
        let least: f64 = bends.iter().sum();
        let most = least + 2.0 * f64::from(*head.get(head.len().checked_sub(2)?)?);
        let cut = |total: f64| {
            let mut seen = 0.0;
            bends.iter().position(|bend| {
                seen += bend;
                seen > self.0 * total
            })
        };
        let (first, last) = (cut(least)?, cut(most)?);
        // Sums in another order differ in their last digits: near a tie the whole order decides.
        let clear = cut(least * (1.0 - 1e-9))? == first && cut(most * (1.0 + 1e-9))? == last;
        (first == last && clear).then_some(first.max(1))
    }
}

impl Stage for TailFree {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        if candidates.len() < 3 {
            return;
        }
        if candidates.len() > HEAD
            && let Some(keep) = self.cut_in_head(candidates)
        {
            return candidates.retain_top(keep);
        }
        candidates.sort();
        candidates.weigh();
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
