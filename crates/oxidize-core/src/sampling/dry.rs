//! DRY, "don't repeat yourself" (Weidmann 2024): penalizes tokens that would extend a repetition of
//! earlier text, exponentially in its length. A repetition does not extend across a sequence
//! breaker such as a newline or a colon.

use std::collections::HashMap;

use super::chain::{SamplerVocab, Stage, TokenPieces};
use super::history::History;
use super::{Candidates, DryParams, Rng, SamplingParams};

/// Limit on the length of a repetition; it bounds the exponent of the penalty and the text kept for
/// breakers.
const MAX_MATCH: usize = 4096;

#[derive(Clone)]
struct Dry {
    params: DryParams,
    history: History,
    /// Tokens accepted since the last breaker, which bounds the length of a repetition.
    since_breaker: usize,
    pieces: Option<std::sync::Arc<dyn TokenPieces>>,
    /// End of the text, long enough to detect a breaker that spans tokens.
    tail: Vec<u8>,
    longest_breaker: usize,
    /// Scratch: length of the match that ends before each position, and longest match that a token
    /// would extend.
    matches: Vec<usize>,
    longest: HashMap<u32, usize>,
}

/// Builds the stage, or `None` if it is off.
pub(super) fn build(params: &SamplingParams, vocab: &SamplerVocab) -> Option<Box<dyn Stage>> {
    let dry = &params.dry;
    if dry.multiplier == 0.0 || dry.penalty_last_n == 0 {
        return None;
    }
    Some(Box::new(Dry {
        params: dry.clone(),
        history: History::new(dry.penalty_last_n),
        since_breaker: 0,
        pieces: vocab.pieces.clone(),
        tail: Vec::new(),
        longest_breaker: dry
            .sequence_breakers
            .iter()
            .map(String::len)
            .max()
            .unwrap_or(0),
        matches: Vec::new(),
        longest: HashMap::new(),
    }))
}

impl Dry {
    /// Finds earlier copies of the text's end. For each token that follows one, records the length
    /// of the longest such copy.
    fn find_repetitions(&mut self) {
        let tokens = self.history.as_slice();
        let n = tokens.len();
        let limit = self.since_breaker.min(MAX_MATCH);
        self.longest.clear();
        if n < 2 || limit == 0 {
            return;
        }
        // Z-function of the reversed text: matches[i] is the length of the common suffix of the
        // text and its prefix that ends i tokens ago. Linear time (Gusfield 1997).
        let back = |i: usize| tokens[n - 1 - i];
        self.matches.clear();
        self.matches.resize(n, 0);
        let (mut left, mut right) = (0, 0);
        for i in 1..n {
            let mut length = if i < right {
                self.matches[i - left].min(right - i)
            } else {
                0
            };
            while i + length < n && back(length) == back(i + length) {
                length += 1;
            }
            self.matches[i] = length;
            if i + length > right {
                (left, right) = (i, i + length);
            }
        }
        for i in 1..n {
            let length = self.matches[i].min(limit);
            if length >= self.params.allowed_length.max(1) as usize {
                // The token after the copy is the one that would extend the repetition.
                let longest = self.longest.entry(back(i - 1)).or_insert(0);
                *longest = (*longest).max(length);
            }
        }
    }

    /// True if the text of the token contains or completes a breaker.
    fn breaks(&mut self, token: u32) -> bool {
        let Some(piece) = self.pieces.as_ref().and_then(|pieces| pieces.piece(token)) else {
            return false;
        };
        let old = self.tail.len();
        self.tail.extend_from_slice(&piece);
        let found = self.params.sequence_breakers.iter().any(|breaker| {
            // Only matches that end inside the new piece count.
            let from = (old + 1).saturating_sub(breaker.len());
            self.tail[from..]
                .windows(breaker.len())
                .any(|window| window == breaker.as_bytes())
        });
        let excess = self
            .tail
            .len()
            .saturating_sub(self.longest_breaker.saturating_sub(1));
        self.tail.drain(..excess);
        found
    }
}

impl Stage for Dry {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        self.find_repetitions();
        // The exponent is limited so that the penalty does not overflow f32.
        let max_exponent = if self.params.base > 1.0 {
            f32::MAX.ln() / self.params.base.ln()
        } else {
            0.0
        };
        for (&token, &length) in &self.longest {
            if let Some(logit) = candidates.logit_of_mut(token) {
                let excess = (length as f32 - self.params.allowed_length as f32)
                    .clamp(0.0, (max_exponent - 1.0).max(0.0));
                let penalty = self.params.multiplier * self.params.base.powf(excess);
                *logit -= penalty.min(f32::MAX);
            }
        }
    }

    fn accept(&mut self, token: u32) {
        self.history.push(token);
        self.since_breaker = if self.breaks(token) {
            0
        } else {
            self.since_breaker + 1
        };
    }

    fn boxed_clone(&self) -> Box<dyn Stage> {
        Box::new(self.clone())
    }
}
