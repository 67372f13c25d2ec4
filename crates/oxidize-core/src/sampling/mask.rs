//! Which tokens may come next: a bit set that a grammar fills and the sampler obeys.

/// One bit a token; a set bit allows the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    n_tokens: usize,
}

impl TokenMask {
    /// A mask that allows nothing yet.
    pub fn none(n_tokens: usize) -> Self {
        Self {
            words: vec![0; n_tokens.div_ceil(32)],
            n_tokens,
        }
    }

    /// A mask that allows every token.
    pub fn all(n_tokens: usize) -> Self {
        Self {
            words: vec![u32::MAX; n_tokens.div_ceil(32)],
            n_tokens,
        }
    }

    /// How many tokens the mask covers.
    pub fn len(&self) -> usize {
        self.n_tokens
    }

    /// True when the mask covers no token at all.
    pub fn is_empty(&self) -> bool {
        self.n_tokens == 0
    }

    /// Allows a token; one outside the mask is ignored.
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

    /// True when the token is allowed.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.n_tokens && self.words[token as usize / 32] >> (token % 32) & 1 == 1
    }

    /// The bits, 32 tokens a word from the lowest bit up, for a grammar engine to fill in place.
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
