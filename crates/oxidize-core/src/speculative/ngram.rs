//! [`NgramIndex`]: drafts without a model by prompt lookup decoding, which proposes the tokens that
//! followed earlier occurrences of the last few tokens. It works well because answers quote their
//! prompts (summaries, code edits) and repeat themselves. A predicted answer is searched as well.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Lengths of the n-grams that are looked up, longest first.
const LENGTHS: [usize; 3] = [8, 5, 3];

/// Index of the last occurrence of n-grams in a growing text.
#[derive(Default)]
pub(crate) struct NgramIndex {
    /// The predicted answer, then the text.
    tokens: Vec<u32>,
    n_predicted: usize,
    /// Position after an n-gram, by the hash of the n-gram.
    ends: HashMap<u64, u32, BuildHasherDefault<DefaultHasher>>,
    /// N-grams that end at or before this position are indexed.
    indexed: usize,
}

impl NgramIndex {
    /// Creates an index for a text whose answer is predicted.
    pub(crate) fn with_prediction(prediction: &[u32]) -> NgramIndex {
        NgramIndex {
            tokens: prediction.to_vec(),
            n_predicted: prediction.len(),
            ..NgramIndex::default()
        }
    }

    /// Returns up to `max_tokens` that may follow `text`, of which the tokens from `n_prompt` on are the
    /// answer: those of the prediction if the answer is its beginning, otherwise those after the last
    /// occurrence of the longest known suffix. Each call must extend the text of the previous one; only the
    /// new tokens are indexed.
    pub(crate) fn draft(&mut self, text: &[u32], n_prompt: usize, max_tokens: usize) -> Vec<u32> {
        let n_known = self.tokens.len() - self.n_predicted;
        self.tokens
            .extend_from_slice(text.get(n_known..).unwrap_or_default());
        self.index();
        let tokens = &*self.tokens;
        let predicted = tokens.get(..self.n_predicted).unwrap_or_default();
        let answer = text.get(n_prompt..).unwrap_or_default();
        if let Some(rest) = predicted.strip_prefix(answer)
            && !rest.is_empty()
        {
            return rest.iter().take(max_tokens).copied().collect();
        }
        let found = LENGTHS.iter().find_map(|&length| {
            let suffix = tokens.get(tokens.len().checked_sub(length)?..)?;
            let &end = self.ends.get(&self.hash(suffix))?;
            let end = end as usize;
            // Different n-grams may have the same hash.
            (tokens.get(end - length..end) == Some(suffix)).then_some(end)
        });
        let Some(end) = found else {
            return Vec::new();
        };
        // Repetitive text continues to repeat: past its end, the draft continues itself.
        let mut draft: Vec<u32> = Vec::with_capacity(max_tokens);
        for position in (end..).take(max_tokens) {
            let known = tokens.get(position).copied();
            let drafted = || draft.get(position - tokens.len()).copied();
            match known.or_else(drafted) {
                Some(token) => draft.push(token),
                None => break,
            }
        }
        draft
    }

    /// Indexes n-grams that are followed by a token.
    fn index(&mut self) {
        for end in self.indexed + 1..self.tokens.len() {
            for length in LENGTHS {
                let start = end.checked_sub(length);
                if let Some(ngram) = start.and_then(|start| self.tokens.get(start..end)) {
                    self.ends.insert(self.hash(ngram), end as u32);
                }
            }
        }
        self.indexed = self.indexed.max(self.tokens.len().saturating_sub(1));
    }

    fn hash(&self, ngram: &[u32]) -> u64 {
        self.ends.hasher().hash_one(ngram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draft after the longest suffix, by linear search.
    fn by_search(tokens: &[u32], max_tokens: usize) -> Vec<u32> {
        for length in LENGTHS {
            let Some(start) = tokens.len().checked_sub(length) else {
                continue;
            };
            let suffix = &tokens[start..];
            let found = (length..tokens.len())
                .rev()
                .find(|&end| &tokens[end - length..end] == suffix);
            if let Some(end) = found {
                let mut text = tokens.to_vec();
                for i in 0..max_tokens {
                    text.push(text[end + i]);
                }
                return text.split_off(tokens.len());
            }
        }
        Vec::new()
    }

    #[test]
    fn drafts_match_a_linear_search() {
        let mut rng = crate::sampling::Rng::new(9);
        for round in 0..50 {
            let mut index = NgramIndex::default();
            let mut tokens = Vec::new();
            let n_tokens = [2, 5, 40][round % 3];
            for _ in 0..300 {
                tokens.push((rng.next_u64() % n_tokens) as u32);
                let drafts = index.draft(&tokens, 0, 7);
                assert_eq!(drafts, by_search(&tokens, 7), "{tokens:?}");
            }
        }
    }

    #[test]
    fn no_draft_without_a_known_suffix() {
        let mut index = NgramIndex::default();
        assert!(index.draft(&[], 0, 5).is_empty());
        assert!(index.draft(&[1, 2, 3, 4], 0, 5).is_empty());
        assert!(index.draft(&[1, 2, 3, 4, 1, 2, 3], 0, 0).is_empty());
        assert_eq!(index.draft(&[1, 2, 3, 4, 1, 2, 3], 0, 2), [4, 1]);
    }

    #[test]
    fn a_predicted_answer_is_drafted_from_its_start_and_after_a_change() {
        let mut index = NgramIndex::with_prediction(&[10, 11, 12, 13, 14, 15, 16, 17]);
        let mut text = vec![1, 2];
        assert_eq!(index.draft(&text, 2, 3), [10, 11, 12]);
        text.push(10);
        assert_eq!(index.draft(&text, 2, 3), [11, 12, 13]);
        // The answer leaves the prediction and comes back to it.
        text.extend([99, 98]);
        assert!(index.draft(&text, 2, 3).is_empty());
        text.extend([12, 13, 14]);
        assert_eq!(index.draft(&text, 2, 2), [15, 16]);
        let mut whole = NgramIndex::with_prediction(&[5, 6]);
        assert!(whole.draft(&[1, 5, 6], 1, 4).is_empty());
    }
}
