//! Sampling: a configurable chain of penalties, truncation and temperature, and the draw, which
//! together turn logits into a token. The engine has one [`Sampler`] per sequence; grammars
//! contribute a [`TokenMask`]; [`StopMatcher`] ends an answer at a stop string.

mod banned;
mod candidates;
mod chain;
mod dry;
mod end_tokens;
mod error;
mod history;
mod infill;
mod logit_bias;
mod logprobs;
mod mask;
mod min_p;
mod mirostat;
mod params;
mod penalty;
mod rng;
mod select;
mod stop;
mod tail_free;
mod temperature;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod xtc;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use candidates::Candidates;
pub(crate) use chain::sort_by_bytes;
pub use chain::{DEFAULT_SAMPLERS, Sampled, Sampler, SamplerKind, SamplerVocab, TokenPieces};
pub use error::SamplingError;
pub use logprobs::TokenScore;
pub use mask::TokenMask;
pub use params::{DryParams, MirostatMode, MirostatParams, SamplingParams};
pub use rng::Rng;
pub use stop::{StopMatcher, StopStep};
