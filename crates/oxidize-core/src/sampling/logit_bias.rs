//! Logit bias: adds a constant to the logits of given tokens, before all other stages.

use super::chain::SamplerVocab;
use super::{Candidates, SamplingError};

/// Biases whose tokens are in the vocabulary.
#[derive(Debug, Clone, Default)]
pub(super) struct LogitBias(Vec<(u32, f32)>);

impl LogitBias {
    pub(super) fn new(biases: &[(u32, f32)], vocab: &SamplerVocab) -> Result<Self, SamplingError> {
        match biases
            .iter()
            .find(|&&(token, _)| token as usize >= vocab.n_tokens)
        {
            Some(&(token, _)) => Err(SamplingError::TokenOutOfRange {
                field: "logit_bias",
                token,
                n_tokens: vocab.n_tokens,
            }),
            None => Ok(Self(biases.to_vec())),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn apply(&self, candidates: &mut Candidates) {
        for &(token, bias) in &self.0 {
            if let Some(logit) = candidates.logit_of_mut(token) {
                *logit += bias;
            }
        }
    }
}
