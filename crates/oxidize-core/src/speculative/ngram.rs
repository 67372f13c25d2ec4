//! Guesses without a model: what followed the last few tokens where they came up before.
//!
//! Answers quote their prompts (a summary, a change to a program) and repeat themselves; there, the
//! text itself is the best draft model (prompt lookup decoding).

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Lengths of the runs of tokens that are looked for, the most telling first.
const LENGTHS: [usize; 3] = [8, 5, 3];

/// Where runs of tokens ended last in a text that grows at its end.
#[derive(Default)]
pub(crate) struct NgramIndex {
    /// By the hash of a run: the position after it.
    ends: HashMap<u64, u32, BuildHasherDefault<DefaultHasher>>,
    /// Runs that end at or before this position are in the index.
    indexed: usize,
}

impl NgramIndex {
    /// Up to `most` tokens that may follow `tokens`: what followed their longest known ending.
    ///
    /// Called again with more tokens it looks at the new ones only; they go on from those before.
    pub(crate) fn guess(&mut self, tokens: &[u32], most: usize) -> Vec<u32> {
        self.index(tokens);
        let followed = LENGTHS.iter().find_map(|&length| {
            let ending = tokens.get(tokens.len().checked_sub(length)?..)?;
            let &end = self.ends.get(&self.hash(ending))?;
            let end = end as usize;
            // Different runs may share a hash.
            (tokens.get(end - length..end) == Some(ending)).then_some(end)
        });
        let Some(end) = followed else {
            return Vec::new();
        };
        // A text that repeats itself goes on repeating: past its end comes what was just guessed.
        let mut guess: Vec<u32> = Vec::with_capacity(most);
        for place in (end..).take(most) {
            let known = tokens.get(place).copied();
            let guessed = || guess.get(place - tokens.len()).copied();
            match known.or_else(guessed) {
                Some(token) => guess.push(token),
                None => break,
            }
        }
        guess
    }

    /// Takes in the runs that something follows.
    fn index(&mut self, tokens: &[u32]) {
        for end in self.indexed + 1..tokens.len() {
            for length in LENGTHS {
                if let Some(run) = end.checked_sub(length).and_then(|at| tokens.get(at..end)) {
                    self.ends.insert(self.hash(run), end as u32);
                }
            }
        }
        self.indexed = self.indexed.max(tokens.len().saturating_sub(1));
    }

    fn hash(&self, run: &[u32]) -> u64 {
        self.ends.hasher().hash_one(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What followed the longest ending, found by looking everywhere.
    fn by_search(tokens: &[u32], most: usize) -> Vec<u32> {
        for length in LENGTHS {
            let Some(start) = tokens.len().checked_sub(length) else {
                continue;
            };
            let ending = &tokens[start..];
            let found = (length..tokens.len())
                .rev()
                .find(|&end| &tokens[end - length..end] == ending);
            if let Some(end) = found {
                let mut text = tokens.to_vec();
                for i in 0..most {
                    text.push(text[end + i]);
                }
                return text.split_off(tokens.len());
            }
        }
        Vec::new()
    }

    #[test]
    fn guesses_what_a_search_finds() {
        let mut rng = crate::sampling::Rng::new(9);
        for round in 0..50 {
            let mut index = NgramIndex::default();
            let mut tokens = Vec::new();
            let n_tokens = [2, 5, 40][round % 3];
            for _ in 0..300 {
                tokens.push((rng.next_u64() % n_tokens) as u32);
                assert_eq!(index.guess(&tokens, 7), by_search(&tokens, 7), "{tokens:?}");
            }
        }
    }

    #[test]
    fn nothing_is_guessed_from_nothing() {
        let mut index = NgramIndex::default();
        assert!(index.guess(&[], 5).is_empty());
        assert!(index.guess(&[1, 2, 3, 4], 5).is_empty());
        assert!(index.guess(&[1, 2, 3, 4, 1, 2, 3], 0).is_empty());
        assert_eq!(index.guess(&[1, 2, 3, 4, 1, 2, 3], 2), [4, 1]);
    }
}
