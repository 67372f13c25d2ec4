//! Banned strings: a token that would complete one is ruled out, so the answer never contains any.
//!
//! Tokens that hold a banned string whole are ruled out always. For one that began in earlier tokens,
//! a Knuth–Morris–Pratt automaton knows how much of it is there, and the tokens that begin with the
//! rest are neighbours in the sorted vocabulary.

use std::sync::Arc;

use super::chain::{SamplerVocab, TokenPieces};
use super::stop::Automaton;
use super::{Candidates, SamplingError};

/// Follows the text of an answer and rules tokens out.
#[derive(Clone, Default)]
pub(super) struct BannedStrings {
    strings: Vec<Automaton>,
    pieces: Option<Arc<dyn TokenPieces>>,
    /// All tokens with a text, by their text.
    sorted: Arc<[u32]>,
    /// Tokens that hold a banned string whole.
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
        let holds_one = |piece: &[u8]| {
            let holds = |banned: &Automaton| {
                let banned = banned.string();
                piece.len() >= banned.len() && piece.windows(banned.len()).any(|w| w == banned)
            };
            strings.iter().any(holds)
        };
        let always = sorted
            .iter()
            .copied()
            .filter(|&token| pieces.piece(token).is_some_and(|piece| holds_one(&piece)))
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

    /// Rules out what would complete a banned string. `candidates` are the whole vocabulary.
    pub(super) fn apply(&self, candidates: &mut Candidates) {
        let Some(pieces) = &self.pieces else { return };
        let logits = candidates.logits_mut();
        let mut forbid = |token: u32| {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        self.always.iter().copied().for_each(&mut forbid);
        for rest in self.strings.iter().flat_map(Automaton::open_endings) {
            let piece = |token: u32| pieces.piece(token).unwrap_or_default();
            let first = self.sorted.partition_point(|&token| &*piece(token) < rest);
            let from = self.sorted.get(first..).unwrap_or_default();
            let begin = from.iter().copied();
            begin
                .take_while(|&token| piece(token).starts_with(rest))
                .for_each(&mut forbid);
        }
    }

    /// Learns of a token of the answer.
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

    /// Tokens are all strings of one to three of the letters `a`, `b` and `é`'s two bytes.
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

    /// At every step exactly those tokens are ruled out that would complete a banned string.
    #[test]
    fn rules_out_what_would_complete_a_banned_string_and_nothing_else() {
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
            // A prompt may contain anything: only the answer counts.
            sampler.accept_prompt(&[0, 1, 0]);
            let mut text: Vec<u8> = Vec::new();
            for _ in 0..300 {
                let logits = vec![0.0; words.len()];
                let candidates = sampler.narrowed(&logits);
                let ruled_out: Vec<u32> = (0..candidates.len())
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
                assert_eq!(ruled_out, want, "{banned:?} after {text:?}");
                let token = sampler.sample(&logits, None).unwrap().token;
                sampler.accept(token);
                text.extend(&words[token as usize]);
            }
            assert!(banned.iter().all(|string| !contains(&text, string)));
        }
    }
}
