//! Answers in a given form: a grammar says, token by token, what may come next.
//!
//! [`Grammar`] is what a user asks for; [`Grammars`] compiles it against a model's vocabulary into a
//! [`Constraint`], which fills the [`TokenMask`](crate::sampling::TokenMask) that the sampler obeys.
//! The automata are llguidance's; GBNF (`gbnf`) and the check of schemas (`json_schema`) are ours.

// llguidance does not build for browsers.
#[cfg(not(target_arch = "wasm32"))]
mod gbnf;
#[cfg(not(target_arch = "wasm32"))]
mod json_schema;
#[cfg(not(target_arch = "wasm32"))]
mod mask;

#[cfg(not(target_arch = "wasm32"))]
pub use mask::{Constraint, Grammars};

use crate::limits::LimitExceeded;

/// The form that an answer has to have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// llama.cpp's notation; begins at the rule `root`.
    Gbnf(String),
    /// JSON that a schema describes.
    JsonSchema(serde_json::Value),
    /// Any JSON object.
    JsonObject,
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// llguidance's dialect of Lark; begins at the rule `start`.
    Lark(String),
}

/// Why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A GBNF grammar is wrong.
    #[error("grammar, line {line}: {problem}")]
    Gbnf {
        /// From 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A rule of a GBNF grammar always needs itself again.
    #[error("grammar: rule `{rule}` never ends")]
    NeverEnds {
        /// The rule.
        rule: String,
    },
    /// A keyword of a JSON schema cannot be honoured.
    #[error("schema: `{keyword}` at {place} is not supported")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// The subschema, as a JSON pointer.
        place: String,
    },
    /// A JSON schema is wrong, or says what cannot be honoured or fulfilled.
    #[error("schema: {0}")]
    Schema(String),
    /// A regular expression is wrong, or of a kind that is not supported.
    #[error("regex: {0}")]
    Regex(String),
    /// A Lark grammar is wrong.
    #[error("Lark grammar: {0}")]
    Lark(String),
    /// A grammar asks for more than is allowed.
    #[error("grammar: {0}")]
    Limit(#[from] LimitExceeded),
    /// The constraint engine broke down.
    #[error("grammar: a fault while it was compiled")]
    Fault,
    /// The constraint engine cannot work with this vocabulary or grammar.
    #[error("grammar: {0}")]
    Engine(String),
}
