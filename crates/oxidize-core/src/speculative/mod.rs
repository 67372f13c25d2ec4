//! Speculative decoding: the next tokens are guessed, and the model verifies all guesses in one step.
//!
//! A guess never changes the answer: at each place the model's own token is chosen as it would be
//! without, by the same sampler with the same draws, and a guess counts only where it is that token.
//! Guesses come from a smaller model ([`DraftSource::Model`]) or from what the text repeats
//! ([`DraftSource::Ngram`]); the engine's `drafting` module puts them to use.

mod draft_model;
mod ngram;
mod payoff;

pub(crate) use draft_model::{DraftAsk, DraftModel};
pub(crate) use ngram::NgramIndex;
pub(crate) use payoff::Payoff;

use crate::engine::EngineError;
use crate::model::Model;

/// How an engine guesses ahead.
#[derive(Clone, Debug)]
pub struct Speculation {
    /// Where guesses come from.
    pub source: DraftSource,
    /// Most tokens of a guess; fewer are tried while guesses go wrong.
    pub max_tokens: usize,
    /// Guesses shorter than this are not tried.
    pub min_tokens: usize,
    /// A draft model guesses on while it holds its token at least this likely.
    pub min_probability: f32,
    /// Guesses whether it pays or not. Otherwise guessing pauses while the answer comes faster
    /// without.
    pub always: bool,
}

/// Where guesses come from.
#[derive(Clone)]
pub enum DraftSource {
    /// What followed the last tokens where they came up before, in the prompt or the answer.
    Ngram,
    /// A smaller model with the same vocabulary.
    Model(Model),
}

/// How many guesses there were, and how many were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Tokens that were guessed and verified.
    pub drafted: usize,
    /// Those of them that the model chose too.
    pub accepted: usize,
}

impl Speculation {
    /// Guesses from `source`, in the usual measure.
    pub fn new(source: DraftSource) -> Speculation {
        Speculation {
            source,
            max_tokens: 8,
            min_tokens: 1,
            min_probability: 0.75,
            always: false,
        }
    }
}

impl std::fmt::Debug for DraftSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DraftSource::Ngram => f.write_str("Ngram"),
            DraftSource::Model(model) => f
                .debug_tuple("Model")
                .field(&model.file().path().display().to_string())
                .finish(),
        }
    }
}

impl DraftCounts {
    /// The share of guesses that were right, where there were any.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }
}

/// Why a draft model cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpeculationError {
    /// A guess has to have a token.
    #[error("speculation: {field} is {asked}, expected {limit}")]
    Parameter {
        /// The setting.
        field: &'static str,
        /// Its value.
        asked: String,
        /// What is possible.
        limit: &'static str,
    },
    /// The two vocabularies are not nearly of a size.
    #[error("the draft model has {draft} tokens and the model {target}: not the same vocabulary")]
    VocabularySize {
        /// Tokens of the draft model.
        draft: usize,
        /// Tokens of the model.
        target: usize,
    },
    /// A token stands for different texts.
    #[error("token {token} is {draft:?} to the draft model and {target:?} to the model")]
    Token {
        /// The token.
        token: u32,
        /// What the draft model takes it for.
        draft: String,
        /// What it is.
        target: String,
    },
    /// The state of a recurrent draft model cannot be taken back.
    #[error("the draft model keeps recurrent state, which cannot go back to before a wrong guess")]
    Recurrent,
}

impl From<SpeculationError> for crate::Error {
    fn from(error: SpeculationError) -> crate::Error {
        EngineError::Speculation(error).into()
    }
}

impl Speculation {
    /// Checks the settings, and a draft model against the model it drafts for.
    pub(crate) fn check(&self, target: &Model) -> crate::Result<()> {
        let parameter = |field, asked: String, limit| SpeculationError::Parameter {
            field,
            asked,
            limit,
        };
        if !(1..=MOST_TOKENS).contains(&self.max_tokens) {
            let asked = self.max_tokens.to_string();
            return Err(parameter("max_tokens", asked, "1 to 64").into());
        }
        if self.min_tokens > self.max_tokens {
            let asked = self.min_tokens.to_string();
            return Err(parameter("min_tokens", asked, "at most max_tokens").into());
        }
        if !(0.0..=1.0).contains(&self.min_probability) {
            let asked = self.min_probability.to_string();
            return Err(parameter("min_probability", asked, "0 to 1").into());
        }
        match &self.source {
            DraftSource::Ngram => Ok(()),
            DraftSource::Model(draft) if !draft.plan().states.is_empty() => {
                Err(SpeculationError::Recurrent.into())
            }
            DraftSource::Model(draft) => same_vocabulary(draft, target),
        }
    }
}

/// Most tokens of a guess.
const MOST_TOKENS: usize = 64;
/// Files of one family are padded differently.
const SIZE_DIFFERENCE: usize = 256;

fn same_vocabulary(draft: &Model, target: &Model) -> crate::Result<()> {
    let (ours, theirs) = (draft.tokenizer()?, target.tokenizer()?);
    let (n_draft, n_target) = (ours.vocab_size(), theirs.vocab_size());
    if n_draft.abs_diff(n_target) > SIZE_DIFFERENCE {
        let (draft, target) = (n_draft, n_target);
        return Err(SpeculationError::VocabularySize { draft, target }.into());
    }
    let shared = u32::try_from(n_draft.min(n_target)).unwrap_or(u32::MAX);
    let different = (0..shared).find(|&token| ours.piece(token) != theirs.piece(token));
    if let Some(token) = different {
        let text = |tokenizer: &crate::tokenizer::Tokenizer| {
            tokenizer.token_text(token).unwrap_or_default().to_owned()
        };
        let (draft, target) = (text(ours), text(theirs));
        return Err(SpeculationError::Token {
            token,
            draft,
            target,
        }
        .into());
    }
    Ok(())
}
