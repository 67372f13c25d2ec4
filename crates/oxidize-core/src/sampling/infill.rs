//! Infill: fills a gap in code, where ending in time matters more than variety. Generation ends if
//! an end token is nearly as likely as any text. Tokens with a common prefix count as one.
//!
//! Rules and constants are those of llama.cpp's sampler of the same name; in addition, a token that
//! represents several has their total probability.

use std::sync::Arc;

use super::chain::{SamplerVocab, Stage, TokenPieces};
use super::{Candidates, Rng, SamplingParams};

/// Limit on the tokens considered; the others are too unlikely to be kept.
const MAX_CANDIDATES: usize = 256;
/// Weight of the end tokens relative to the average text token.
const END_WEIGHT: f32 = 3.0;
/// Text tokens below this probability are dropped.
const MIN_PROBABILITY: f32 = 0.2;

#[derive(Clone)]
struct Infill {
    pieces: Arc<dyn TokenPieces>,
    probabilities: Vec<f32>,
}

/// Builds the stage, or `None` without a vocabulary. The stage is on if it is in the list of
/// samplers.
pub(super) fn build(_: &SamplingParams, vocab: &SamplerVocab) -> Option<Box<dyn Stage>> {
    let pieces = vocab.pieces.clone()?;
    Some(Box::new(Infill {
        pieces,
        probabilities: Vec::new(),
    }))
}

impl Stage for Infill {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        candidates.retain_top(MAX_CANDIDATES);
        candidates.sort();
        let total = candidates.exp_sum();
        if total <= 0.0 {
            return;
        }
        let n = candidates.len();
        let p = &mut self.probabilities;
        p.clear();
        let weights = candidates.weights().iter();
        p.extend(weights.map(|&weight| (f64::from(weight) / total) as f32));
        let is_end: Vec<bool> = (0..n)
            .map(|i| self.pieces.is_end(candidates.id(i)))
            .collect();
        let ends: f32 = (0..n).filter(|&i| is_end[i]).map(|i| p[i]).sum();
        if END_WEIGHT * ends * n as f32 > 1.0 - ends {
            return candidates.remove_where(|i, _| !is_end[i]);
        }
        self.merge_prefixes(candidates);
        let p = &mut self.probabilities;
        for i in 0..n {
            if !is_end[i] && p[i] < MIN_PROBABILITY {
                p[i] = 0.0;
            }
        }
        let n_text = (0..n).filter(|&i| !is_end[i] && p[i] > 0.0).count();
        if n_text == 0 {
            // No text is likely enough: end if an end token is possible, else continue with the
            // best token.
            if ends > 0.0 {
                candidates.remove_where(|i, _| !is_end[i]);
            } else {
                candidates.truncate(1);
            }
            return;
        }
        let kept: f32 = p.iter().sum();
        let average = kept / (n_text + 1) as f32;
        for (i, logit) in candidates.logits_mut().iter_mut().enumerate() {
            let keep = is_end[i] || p[i] >= average;
            *logit = if keep && p[i] > 0.0 {
                p[i].ln()
            } else {
                f32::NEG_INFINITY
            };
        }
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(self.clone())
    }
}

impl Infill {
    /// Merges tokens of which one is a prefix of the other: the likelier one gets the probability
    /// of both.
    fn merge_prefixes(&mut self, candidates: &Candidates) {
        let p = &mut self.probabilities;
        let texts: Vec<_> = (0..candidates.len())
            .map(|i| self.pieces.piece(candidates.id(i)).unwrap_or_default())
            .collect();
        for short in 0..texts.len() {
            if texts[short].is_empty() {
                continue;
            }
            for long in 0..texts.len() {
                if short == long || p[short] == 0.0 || p[long] == 0.0 {
                    continue;
                }
                if texts[long].starts_with(&texts[short]) {
                    let (to, from) = if p[long] > p[short] {
                        (long, short)
                    } else {
                        (short, long)
                    };
                    p[to] += std::mem::take(&mut p[from]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Sampler, SamplerKind};
    use std::borrow::Cow;

    const WORDS: [&str; 8] = ["ret", "return", "x", "y", "", "z", "u", "v"];
    const END: u32 = 4;

    struct Words;

    impl TokenPieces for Words {
        fn piece(&self, token: u32) -> Option<Cow<'_, [u8]>> {
            let word = WORDS.get(token as usize).filter(|word| !word.is_empty())?;
            Some(Cow::Borrowed(word.as_bytes()))
        }

        fn is_end(&self, token: u32) -> bool {
            token == END
        }
    }

    /// Remaining tokens and probabilities.
    fn left(probabilities: [f32; 8]) -> Vec<(u32, f32)> {
        let params = SamplingParams {
            samplers: vec![SamplerKind::Infill],
            temperature: 1.0,
            ..SamplingParams::default()
        };
        let vocab = SamplerVocab {
            n_tokens: WORDS.len(),
            pieces: Some(Arc::new(Words)),
            ..SamplerVocab::default()
        };
        let mut sampler = Sampler::new(&params, &vocab).unwrap();
        let candidates = sampler.filtered(&probabilities.map(f32::ln));
        let total = candidates.exp_sum();
        let probability = |i: usize| (f64::from(candidates.weights()[i]) / total) as f32;
        let mut left: Vec<(u32, f32)> = (0..candidates.len())
            .map(|i| (candidates.id(i), probability(i)))
            .filter(|&(_, p)| p > 0.0)
            .collect();
        left.sort_by(|a, b| b.1.total_cmp(&a.1));
        left
    }

    #[test]
    fn ends_if_an_end_token_is_about_as_likely_as_text() {
        let likely = left([0.3, 0.2, 0.2, 0.1, 0.15, 0.03, 0.01, 0.01]);
        assert_eq!(likely, [(END, 1.0)]);
        // No text token stands out, and an end is possible.
        let nothing = left([0.09, 0.10, 0.19, 0.19, 0.001, 0.19, 0.12, 0.119]);
        assert_eq!(nothing, [(END, 1.0)]);
        let something = left([0.05, 0.05, 0.1, 0.1, 0.001, 0.599, 0.05, 0.05]);
        assert_eq!(something[0].0, 5);
    }

    #[test]
    fn tokens_with_a_common_prefix_count_as_one() {
        // `ret` and `return` total 0.45; `x` stays, `y` and `z` are too unlikely.
        let left = left([0.25, 0.20, 0.35, 0.1, 0.001, 0.05, 0.03, 0.019]);
        assert_eq!(
            left.iter().map(|&(id, _)| id).collect::<Vec<_>>(),
            [0, 2, END]
        );
        assert!((left[0].1 - 0.45 / 0.801).abs() < 1e-3, "{left:?}");
    }
}
