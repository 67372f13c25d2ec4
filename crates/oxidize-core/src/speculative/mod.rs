//! Speculative decoding: drafts the next tokens and verifies all of them in one step of the model.
//!
//! Drafts never change the answer. At each position, the model's own token is sampled as without
//! drafts, by the same sampler with the same random numbers, and a draft token is accepted only if
//! it equals that token. Drafts come from a smaller model ([`DraftSource::Model`]) or from
//! repetition in the text ([`DraftSource::Ngram`]). The engine's `drafting` module applies them.

mod controller;
mod draft_model;
mod ngram;

pub(crate) use controller::DraftController;
pub(crate) use draft_model::{DraftModel, DraftRequest};
pub(crate) use ngram::NgramIndex;

use crate::model::Model;

/// Speculative decoding settings of an engine.
///
/// ```
/// use oxidize::EngineConfig;
/// use oxidize::speculation::{DraftSource, Speculation};
///
/// let mut speculation = Speculation::new(DraftSource::Ngram);
/// speculation.max_tokens = 8;
/// let config = EngineConfig::default().speculation(speculation);
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub struct Speculation {
    /// Source of the drafts.
    pub source: DraftSource,
    /// Maximum length of a draft in tokens. Drafts become shorter while they are rejected.
    pub max_tokens: usize,
    /// Minimum length of a draft; shorter ones are discarded.
    pub min_tokens: usize,
    /// A draft model stops drafting below this token probability.
    pub min_probability: f32,
    /// Always drafts. Otherwise drafting pauses while generation is faster without it.
    pub always: bool,
}

/// Source of drafts.
#[derive(Clone)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub enum DraftSource {
    /// Tokens that followed earlier occurrences of the last tokens, in the prompt or the answer.
    Ngram,
    /// Smaller model with the same vocabulary.
    Model(Model),
}

/// Drafting for one request.
///
/// ```
/// use oxidize_core::Request;
///
/// let old = "fn add(a: i32, b: i32) -> i32 { a + b }";
/// let request = Request::chat(format!("Rename a to x:\n{old}")).prediction(old);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftParams {
    /// Maximum number of draft tokens per step, at most the engine's own limit; no drafts with 0.
    pub max_tokens: Option<usize>,
    /// Minimum length of a draft; the engine's setting if `None`.
    pub min_tokens: Option<usize>,
    /// Token probability below which a draft model stops; the engine's setting if `None`.
    pub min_probability: Option<f32>,
    /// Expected answer, such as the text before a small edit. Its tokens are drafted as long as the answer
    /// follows it.
    pub prediction: Option<String>,
}

/// Number of draft tokens and of those accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DraftCounts {
    /// Draft tokens verified.
    pub drafted: usize,
    /// Draft tokens accepted.
    pub accepted: usize,
}

impl Speculation {
    /// Creates settings with default values.
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
    /// Fraction of draft tokens that were accepted, or `None` without drafts.
    pub fn acceptance(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }
}

/// Error of setting up speculative decoding.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpeculationError {
    /// A setting is out of range.
    #[error("speculation: {field} is {requested}, expected {limit}")]
    Parameter {
        /// Setting.
        field: &'static str,
        /// Requested value.
        requested: String,
        /// Allowed values.
        limit: &'static str,
    },
    /// The vocabulary sizes differ too much.
    #[error("the draft model has {draft} tokens and the model {target}: not the same vocabulary")]
    VocabularySize {
        /// Tokens of the draft model.
        draft: usize,
        /// Tokens of the model.
        target: usize,
    },
    /// A token has different texts in the two vocabularies.
    #[error("token {token} is {draft:?} to the draft model and {target:?} to the model")]
    Token {
        /// Token id.
        token: u32,
        /// Text in the draft model.
        draft: String,
        /// Text in the model.
        target: String,
    },
    /// A recurrent draft model cannot roll back its state.
    #[error(
        "the draft model keeps recurrent state, which cannot be rolled back after a rejected draft"
    )]
    Recurrent,
}

impl Speculation {
    /// Validates the settings, and the draft model against the target model.
    pub(crate) fn check(&self, target: &Model) -> crate::Result<()> {
        let parameter = |field, requested: String, limit| SpeculationError::Parameter {
            field,
            requested,
            limit,
        };
        if !(1..=MAX_TOKENS).contains(&self.max_tokens) {
            let requested = self.max_tokens.to_string();
            return Err(parameter("max_tokens", requested, "1 to 64").into());
        }
        if self.min_tokens > self.max_tokens {
            let requested = self.min_tokens.to_string();
            return Err(parameter("min_tokens", requested, "at most max_tokens").into());
        }
        if !(0.0..=1.0).contains(&self.min_probability) {
            let requested = self.min_probability.to_string();
            return Err(parameter("min_probability", requested, "0 to 1").into());
        }
        match &self.source {
            DraftSource::Ngram => Ok(()),
            DraftSource::Model(draft) if !draft.plan().states.is_empty() => {
                Err(SpeculationError::Recurrent.into())
            }
            DraftSource::Model(draft) => check_vocabulary(draft, target),
        }
    }
}

/// Limit on the length of a draft.
const MAX_TOKENS: usize = 64;
/// Allowed difference of vocabulary sizes: models of one family are padded differently.
const MAX_SIZE_DIFFERENCE: usize = 256;

fn check_vocabulary(draft: &Model, target: &Model) -> crate::Result<()> {
    let (draft_tokenizer, target_tokenizer) = (draft.tokenizer()?, target.tokenizer()?);
    let (n_draft, n_target) = (draft_tokenizer.vocab_size(), target_tokenizer.vocab_size());
    if n_draft.abs_diff(n_target) > MAX_SIZE_DIFFERENCE {
        let (draft, target) = (n_draft, n_target);
        return Err(SpeculationError::VocabularySize { draft, target }.into());
    }
    let shared = u32::try_from(n_draft.min(n_target)).unwrap_or(u32::MAX);
    let different =
        (0..shared).find(|&token| draft_tokenizer.piece(token) != target_tokenizer.piece(token));
    if let Some(token) = different {
        let text = |tokenizer: &crate::tokenizer::Tokenizer| {
            tokenizer.token_text(token).unwrap_or_default().to_owned()
        };
        let (draft, target) = (text(draft_tokenizer), text(target_tokenizer));
        return Err(SpeculationError::Token {
            token,
            draft,
            target,
        }
        .into());
    }
    Ok(())
}
