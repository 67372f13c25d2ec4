//! Tokens that end an answer besides the model's own, and its minimum length: until it has enough tokens, those
//! that end it are excluded.

use std::sync::Arc;

use super::chain::SamplerVocab;
use super::{Candidates, SamplingError, SamplingParams};

/// The tokens that end an answer, and the number of tokens that it still needs.
#[derive(Debug, Clone, Default)]
pub(super) struct EndTokens {
    missing: u32,
    /// Tokens of the request that end the answer.
    stop: Arc<[u32]>,
    /// Tokens that are excluded while tokens are missing.
    ends: Arc<[u32]>,
}

impl EndTokens {
    pub(super) fn new(
        params: &SamplingParams,
        vocab: &SamplerVocab,
    ) -> Result<Self, SamplingError> {
        let is_outside = |&&token: &&u32| token as usize >= vocab.n_tokens;
        if let Some(&token) = params.stop_tokens.iter().find(is_outside) {
            return Err(SamplingError::TokenOutOfRange {
                field: "stop_tokens",
                token,
                n_tokens: vocab.n_tokens,
            });
        }
        let stop: Arc<[u32]> = params.stop_tokens.as_slice().into();
        if params.min_tokens == 0 {
            return Ok(Self {
                stop,
                ..Self::default()
            });
        }
        let own = vocab.pieces.as_ref().map(|pieces| {
            let all = 0..u32::try_from(vocab.n_tokens).unwrap_or(u32::MAX);
            all.filter(|&token| pieces.is_end(token)).collect()
        });
        let own: Vec<u32> = own.unwrap_or_default();
        Ok(Self {
            missing: params.min_tokens,
            stop,
            ends: own.iter().chain(&params.stop_tokens).copied().collect(),
        })
    }

    /// True if the request ends the answer at this token.
    pub(super) fn is_stop(&self, token: u32) -> bool {
        self.stop.contains(&token)
    }

    /// True if the answer is long enough.
    pub(super) fn is_reached(&self) -> bool {
        self.missing == 0
    }

    /// Excludes the tokens that end the answer. `candidates` must be the whole vocabulary. If nothing else is
    /// left, as after a complete grammar, they stay.
    pub(super) fn apply(&self, candidates: &mut Candidates) {
        if self.is_reached() {
            return;
        }
        let logits = candidates.logits_mut();
        let mut excluded = Vec::with_capacity(self.ends.len());
        for &token in self.ends.iter() {
            if let Some(logit) = logits.get_mut(token as usize) {
                excluded.push((token, std::mem::replace(logit, f32::NEG_INFINITY)));
            }
        }
        if logits.iter().any(|&logit| logit > f32::NEG_INFINITY) {
            return;
        }
        for (token, value) in excluded.into_iter().rev() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = value;
            }
        }
    }

    /// Counts a token of the answer.
    pub(super) fn accept(&mut self) {
        self.missing = self.missing.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Sampler, TokenPieces};
    use std::borrow::Cow;

    /// Four tokens, of which the last one ends an answer.
    struct Four;

    impl TokenPieces for Four {
        fn piece(&self, token: u32) -> Option<Cow<'_, [u8]>> {
            (token < 3).then(|| Cow::Owned(vec![b'a' + token as u8]))
        }

        fn is_end(&self, token: u32) -> bool {
            token == 3
        }
    }

    fn sampler(params: SamplingParams) -> Result<Sampler, SamplingError> {
        let vocab = SamplerVocab {
            n_tokens: 4,
            pieces: Some(Arc::new(Four)),
            ..SamplerVocab::default()
        };
        Sampler::new(&params, &vocab)
    }

    #[test]
    fn ends_are_excluded_until_the_minimum() {
        let mut sampler = sampler(SamplingParams {
            min_tokens: 2,
            stop_tokens: vec![2],
            ..SamplingParams::greedy()
        })
        .unwrap();
        let logits = [1.0, 2.0, 3.0, 4.0];
        sampler.accept_prompt(&[0, 0, 0, 0]);
        let mut tokens = Vec::new();
        for _ in 0..4 {
            let token = sampler.sample(&logits, None).unwrap().token;
            sampler.accept(token);
            tokens.push(token);
        }
        assert_eq!(tokens, [1, 1, 3, 3]);
        // After a complete grammar, nothing but the end is allowed.
        let only_end = [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, 4.0];
        let mut sampler = self::sampler(SamplingParams {
            min_tokens: 2,
            ..SamplingParams::greedy()
        })
        .unwrap();
        assert_eq!(sampler.sample(&only_end, None).unwrap().token, 3);
    }

    #[test]
    fn stop_tokens_are_in_the_vocabulary() {
        let params = SamplingParams {
            stop_tokens: vec![4],
            ..SamplingParams::default()
        };
        let error = sampler(params).unwrap_err();
        assert!(matches!(
            error,
            SamplingError::TokenOutOfRange { token: 4, .. }
        ));
    }
}
