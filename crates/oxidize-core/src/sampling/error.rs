//! Errors of sampling.

use thiserror::Error;

/// Error of a sampler. It ends one request only.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A parameter is out of range.
    #[error("{field} is {value}; it must be {limit}")]
    Parameter {
        /// Parameter name in the request.
        field: &'static str,
        /// Requested value.
        value: String,
        /// Allowed values, in words.
        limit: &'static str,
    },
    /// A list is too long.
    #[error("{field} has {requested} entries; the limit is {limit}")]
    TooMany {
        /// Parameter name in the request.
        field: &'static str,
        /// Number of entries in the request.
        requested: usize,
        /// Allowed number of entries.
        limit: usize,
    },
    /// A sampler name is unknown.
    #[error("unknown sampler {name:?}; known are {known}")]
    UnknownSampler {
        /// Requested name.
        name: String,
        /// Known names, separated by commas.
        known: String,
    },
    /// A token id is not in the vocabulary.
    #[error("{field}: token {token} is outside the vocabulary of {n_tokens}")]
    TokenOutOfRange {
        /// Parameter that contains the token.
        field: &'static str,
        /// Token id.
        token: u32,
        /// Vocabulary size.
        n_tokens: usize,
    },
    /// The model returned a logit that is NaN or +∞.
    #[error("the logit of token {token} is {value}: the model's output is not usable")]
    BadLogit {
        /// First such token.
        token: usize,
        /// Logit.
        value: f32,
    },
    /// The logits or the mask have the wrong length.
    #[error("{what} cover {got} tokens, the vocabulary has {n_tokens}")]
    Length {
        /// `the logits` or `the mask`.
        what: &'static str,
        /// Number of tokens covered.
        got: usize,
        /// Vocabulary size.
        n_tokens: usize,
    },
    /// The bias, the mask and the logits exclude every token.
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
