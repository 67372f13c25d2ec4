//! Banned strings: excludes tokens that would complete one, so that an answer never contains any.
//!
//! Tokens that contain a whole banned string are always excluded. For a string that started in
//! earlier tokens, a Knuth–Morris–Pratt automaton tracks the matched prefix; the tokens that start
//! with the rest are adjacent in the sorted vocabulary.

use std::sync::Arc;

use super::chain::{SamplerVocab, TokenPieces};
use super::stop::Automaton;
use super::{Candidates, SamplingError};

/// Tracks the text of an answer and excludes tokens.
#[derive(Clone, Default)]
pub(super) struct BannedStrings {
    strings: Vec<Automaton>,
    pieces: Option<Arc<dyn TokenPieces>>,
    /// All tokens with text, sorted by text.
    sorted: Arc<[u32]>,
    /// Tokens that contain a whole banned string.
    always: Vec<u32>,
}

impl BannedStrings {
    pub(super) fn new(strings: &[String], vocab: &SamplerVocab) -> Result<Self, SamplingError> {
        if strings.is_empty() {
            return Ok(Self::default());
        }
        let Some(pieces) = vocab.pieces.clone() else {
            let problem = "a vocabulary with text";
            return Err(SamplingError::parameter("banned_strings", "given", problem));
        };
        let strings: Vec<Automaton> = strings
            .iter()
            .map(|string| Automaton::new(string.as_bytes()))
            .collect();
        let sorted = pieces.sorted(vocab.n_tokens);
        let contains_banned = |piece: &[u8]| {
            let contains = |banned: &Automaton| {
                let banned = banned.string();
                piece.len() >= banned.len() && piece.windows(banned.len()).any(|w| w == banned)
            };
            strings.iter().any(contains)
        };
        let always = sorted
            .iter()
            .copied()
            .filter(|&token| {
                pieces
                    .piece(token)
                    .is_some_and(|piece| contains_banned(&piece))
            })
            .collect();
        Ok(Self {
            strings,
            pieces: Some(pieces),
            sorted,
            always,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// Excludes tokens that would complete a banned string. `candidates` must be the whole
    /// vocabulary.
    pub(super) fn apply(&self, candidates: &mut Candidates) {
        let Some(pieces) = &self.pieces else { return };
        let logits = candidates.logits_mut();
        let mut forbid = |token: u32| {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        self.always.iter().copied().for_each(&mut forbid);
        for rest in self.strings.iter().flat_map(Automaton::missing_suffixes) {
            let piece = |token: u32| pieces.piece(token).unwrap_or_default();
            let first = self.sorted.partition_point(|&token| &*piece(token) < rest);
            let from = self.sorted.get(first..).unwrap_or_default();
            let matching = from.iter().copied();
            matching
                .take_while(|&token| piece(token).starts_with(rest))
                .for_each(&mut forbid);
        }
    }

    /// Advances by a token of the answer.
    pub(super) fn accept(&mut self, token: u32) {
        let Some(piece) = self.pieces.as_ref().and_then(|pieces| pieces.piece(token)) else {
            return;
        };
        for banned in &mut self.strings {
            for &byte in piece.iter() {
                banned.step(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Rng, Sampler, SamplingParams};
    use std::borrow::Cow;

    /// All strings of one to three of `a`, `b` and the two bytes of `é`.
    struct Words(Vec<Vec<u8>>);

    impl TokenPieces for Words {
        fn piece(&self, token: u32) -> Option<Cow<'_, [u8]>> {
            self.0
                .get(token as usize)
                .map(|word| Cow::Borrowed(&**word))
        }
    }

    fn vocab() -> (SamplerVocab, Vec<Vec<u8>>) {
        let letters = [b'a', b'b', 0xC3, 0xA9];
        let mut words: Vec<Vec<u8>> = letters.iter().map(|&letter| vec![letter]).collect();
        for length in 2..=3 {
            let shorter: Vec<_> = words
                .iter()
                .filter(|w| w.len() == length - 1)
                .cloned()
                .collect();
            for word in shorter {
                words.extend(letters.iter().map(|&letter| [&*word, &[letter]].concat()));
            }
        }
        let vocab = SamplerVocab {
            n_tokens: words.len(),
            pieces: Some(Arc::new(Words(words.clone()))),
            ..SamplerVocab::default()
        };
        (vocab, words)
    }

    fn contains(text: &[u8], string: &str) -> bool {
        text.windows(string.len()).any(|w| w == string.as_bytes())
    }

    /// At each step, exactly the tokens that would complete a banned string are excluded.
    #[test]
    fn excludes_exactly_the_tokens_that_complete_a_banned_string() {
        let (vocab, words) = vocab();
        let mut rng = Rng::new(3);
        for banned in [
            vec!["abab"],
            vec!["a"],
            vec!["aab", "éb", "bbbb"],
            vec!["é"],
            vec!["abaababaab", "bab"],
        ] {
            let params = SamplingParams {
                banned_strings: banned.iter().map(|&s| s.to_owned()).collect(),
                temperature: 1.0,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.0,
                seed: Some(rng.next_u64()),
                ..SamplingParams::default()
            };
            let mut sampler = Sampler::new(&params, &vocab).unwrap();
            // Bans apply to the answer only, not to the prompt.
            sampler.accept_prompt(&[0, 1, 0]);
            let mut text: Vec<u8> = Vec::new();
            for _ in 0..300 {
                let logits = vec![0.0; words.len()];
                let candidates = sampler.filtered(&logits);
                let excluded: Vec<u32> = (0..candidates.len())
                    .filter(|&i| candidates.logits()[i] == f32::NEG_INFINITY)
                    .map(|i| candidates.id(i))
                    .collect();
                let completes = |word: &Vec<u8>| {
                    let longer = [&*text, word].concat();
                    banned.iter().any(|string| contains(&longer, string))
                };
                let want: Vec<u32> = (0..)
                    .zip(&words)
                    .filter(|(_, word)| completes(word))
                    .map(|(token, _)| token)
                    .collect();
                assert_eq!(excluded, want, "{banned:?} after {text:?}");
                let token = sampler.sample(&logits, None).unwrap().token;
                sampler.accept(token);
                text.extend(&words[token as usize]);
            }
            assert!(banned.iter().all(|string| !contains(&text, string)));
        }
    }
}
