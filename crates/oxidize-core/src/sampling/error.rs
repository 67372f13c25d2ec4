//! What can go wrong between a request's sampling parameters and its next token.

use thiserror::Error;

/// An error of the samplers. It ends one request and no other.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A parameter is outside its limits.
    #[error("{field} is {value}; it must be {limit}")]
    Parameter {
        /// The parameter, as the request spells it.
        field: &'static str,
        /// What was asked.
        value: String,
        /// What is allowed, in words.
        limit: &'static str,
    },
    /// A list is longer than its limit.
    #[error("{field} has {asked} entries; the limit is {limit}")]
    TooMany {
        /// The parameter, as the request spells it.
        field: &'static str,
        /// Entries in the request.
        asked: usize,
        /// Entries allowed.
        limit: usize,
    },
    /// A sampler name that does not exist.
    #[error("unknown sampler {name:?}; known are {known}")]
    UnknownSampler {
        /// The name as given.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// A token id the vocabulary does not have.
    #[error("{field}: token {token} is outside the vocabulary of {n_tokens}")]
    TokenOutOfRange {
        /// Where the token was named.
        field: &'static str,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        n_tokens: usize,
    },
    /// The model computed a logit that is not a number, or +∞.
    #[error("the logit of token {token} is {value}: the model's output is not usable")]
    BadLogit {
        /// First such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// The logits or the mask do not have one entry a token.
    #[error("{what} cover {got} tokens, the vocabulary has {n_tokens}")]
    Length {
        /// "the logits" or "the mask".
        what: &'static str,
        /// Tokens covered.
        got: usize,
        /// Size of the vocabulary.
        n_tokens: usize,
    },
    /// The mask, the bias and the logits together rule out every token.
    #[error("no token is possible: every logit is -inf after bias and mask")]
    NoCandidate,
}

impl SamplingError {
    pub(crate) fn parameter(
        field: &'static str,
        value: impl ToString,
        limit: &'static str,
    ) -> Self {
        Self::Parameter {
            field,
            value: value.to_string(),
            limit,
        }
    }
}
