//! DRY, "don't repeat yourself": penalises the token that would lengthen a repetition of earlier
//! text, the more the longer the repetition already is (Weidmann 2024). A repetition does not reach across a
//! sequence breaker such as a newline or a colon.

use std::collections::HashMap;

use super::chain::{SamplerVocab, Stage, TokenPieces};
use super::history::History;
use super::{Candidates, DryParams, Rng, SamplingParams};

/// Longer repetitions are not told apart; bounds the exponent of the penalty and the text kept for breakers.
const MAX_MATCH: usize = 4096;

#[derive(Clone)]
struct Dry {
    params: DryParams,
    history: History,
    /// Tokens accepted since the last breaker: no repetition can be longer.
    since_breaker: usize,
    pieces: Option<std::sync::Arc<dyn TokenPieces>>,
    /// The end of the text, as long as a breaker may need to be seen across tokens.
    tail: Vec<u8>,
    longest_breaker: usize,
    /// Scratch: match length ending before each position, and the longest match a token would continue.
    matches: Vec<usize>,
    longest: HashMap<u32, usize>,
}

/// `None` when off.
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
    /// For every earlier token that follows a copy of the text's end: the length of the longest such copy.
    fn find_repetitions(&mut self) {
        let tokens = self.history.as_slice();
        let n = tokens.len();
        let limit = self.since_breaker.min(MAX_MATCH);
        self.longest.clear();
        if n < 2 || limit == 0 {
            return;
        }
        // Z-function of the reversed text: matches[i] is how far the text that ends i tokens ago agrees with
        // the end of the text. Linear time (Gusfield 1997).
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
                // The token after that copy is the one that would lengthen the repetition.
                let longest = self.longest.entry(back(i - 1)).or_insert(0);
                *longest = (*longest).max(length);
            }
        }
    }

    /// True when the token's text ends, holds or completes a breaker.
    fn breaks(&mut self, token: u32) -> bool {
        let Some(piece) = self.pieces.as_ref().and_then(|pieces| pieces.piece(token)) else {
            return false;
        };
        let old = self.tail.len();
        self.tail.extend_from_slice(&piece);
        let broken = self.params.sequence_breakers.iter().any(|breaker| {
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
        broken
    }
}

impl Stage for Dry {
    fn apply(&mut self, candidates: &mut Candidates, _: &mut Rng) {
        self.find_repetitions();
        // Where f32 would overflow, the penalty stays at the largest exponent that fits.
        let most = if self.params.base > 1.0 {
            f32::MAX.ln() / self.params.base.ln()
        } else {
            0.0
        };
        for (&token, &length) in &self.longest {
            if let Some(logit) = candidates.logit_of_mut(token) {
                let excess = (length as f32 - self.params.allowed_length as f32)
                    .clamp(0.0, (most - 1.0).max(0.0));
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
