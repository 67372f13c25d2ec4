//! [`TokenMask`]: the tokens that may come next, as a bit set filled by a grammar.

/// Bit set with one bit per token; a set bit allows the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    n_tokens: usize,
}

impl TokenMask {
    /// Creates a mask that allows no token.
    pub fn none(n_tokens: usize) -> Self {
        Self {
            words: vec![0; n_tokens.div_ceil(32)],
            n_tokens,
        }
    }

    /// Creates a mask that allows every token.
    pub fn all(n_tokens: usize) -> Self {
        Self {
            words: vec![u32::MAX; n_tokens.div_ceil(32)],
            n_tokens,
        }
    }

    /// Number of tokens that the mask covers.
    pub fn len(&self) -> usize {
        self.n_tokens
    }

    /// True if the mask covers no tokens.
    pub fn is_empty(&self) -> bool {
        self.n_tokens == 0
    }

    /// Allows a token. A token outside the mask is ignored.
    pub fn allow(&mut self, token: u32) {
        if (token as usize) < self.n_tokens {
            self.words[token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Forbids a token.
    pub fn forbid(&mut self, token: u32) {
        if (token as usize) < self.n_tokens {
            self.words[token as usize / 32] &= !(1 << (token % 32));
        }
    }

    /// True if the token is allowed.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.n_tokens && self.words[token as usize / 32] >> (token % 32) & 1 == 1
    }

    /// Bits for in-place changes: 32 tokens per word, lowest bit first.
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// Sets the logits of forbidden tokens to −∞.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for (chunk, &word) in logits.chunks_mut(32).zip(&self.words) {
            if word == u32::MAX {
                continue;
            }
            if word == 0 {
                chunk.fill(f32::NEG_INFINITY);
                continue;
            }
            for (bit, logit) in chunk.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_tokens_keep_their_logit() {
        let mut mask = TokenMask::none(100);
        for token in [0, 31, 32, 99] {
            mask.allow(token);
        }
        mask.allow(100);
        mask.forbid(31);
        let mut logits = vec![1.0; 100];
        mask.apply(&mut logits);
        let left: Vec<usize> = (0..100).filter(|&i| logits[i] == 1.0).collect();
        assert_eq!(left, [0, 32, 99]);
        assert!(mask.allows(99) && !mask.allows(31) && !mask.allows(100));
    }
}
