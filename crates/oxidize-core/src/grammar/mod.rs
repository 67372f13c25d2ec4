//! Constrained output: a grammar determines, token by token, what may come next.
//!
//! [`Grammars`] compiles a [`Grammar`] for a model's vocabulary into a [`Constraint`], which fills
//! the [`TokenMask`](crate::sampling::TokenMask) that the sampler applies. llguidance provides the
//! automata; the GBNF front end (`gbnf`) and the schema checks (`json_schema`) are implemented
//! here.

mod gbnf;
mod json_schema;
mod mask;

pub use mask::{Constraint, Grammars};

use crate::limits::LimitExceeded;

/// Format that an answer must have; see [`Request::grammar`](crate::Request).
///
/// ```no_run
/// use oxidize::{Engine, Grammar, Model, Request};
///
/// let engine = Engine::new(Model::load("model.gguf")?)?;
/// let grammar = Grammar::Regex("[0-9]{4}-[0-9]{2}-[0-9]{2}".into());
/// let request = Request::new("Today is ").grammar(grammar).max_tokens(16);
/// println!("{}", engine.submit(request)?.text()?);
/// # Ok::<(), oxidize::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// Grammar in llama.cpp's GBNF notation, with start rule `root`.
    Gbnf(String),
    /// JSON that matches a JSON schema.
    JsonSchema(serde_json::Value),
    /// Any JSON object.
    JsonObject,
    /// Text that fully matches a regular expression.
    Regex(String),
    /// Grammar in llguidance's dialect of Lark, with start rule `start`.
    Lark(String),
}

impl Grammar {
    /// Creates a grammar of a few texts, one of which is the answer.
    ///
    /// ```
    /// use oxidize_core::Grammar;
    ///
    /// let grammar = Grammar::choice(["yes", "no"]);
    /// assert_eq!(grammar, Grammar::Gbnf(r#"root ::= "yes" | "no""#.into()));
    /// ```
    pub fn choice<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Grammar {
        let quoted = texts.into_iter().map(|text| {
            let escaped = text.as_ref().chars().map(|c| match c {
                '"' | '\\' => format!("\\{c}"),
                '\n' => "\\n".to_owned(),
                '\r' => "\\r".to_owned(),
                c => c.to_string(),
            });
            format!("\"{}\"", escaped.collect::<String>())
        });
        let quoted: Vec<String> = quoted.collect();
        Grammar::Gbnf(format!("root ::= {}", quoted.join(" | ")))
    }

    /// Creates a grammar for JSON that matches `schema`, a JSON schema as text.
    ///
    /// ```
    /// use oxidize::Grammar;
    ///
    /// let grammar = Grammar::json_schema(r#"{ "type": "object", "required": ["name"] }"#)?;
    /// # Ok::<(), oxidize::Error>(())
    /// ```
    pub fn json_schema(schema: &str) -> crate::Result<Grammar> {
        let parsed = serde_json::from_str(schema);
        let schema = parsed.map_err(|error| GrammarError::Schema(error.to_string()));
        Ok(Grammar::JsonSchema(schema?))
    }
}

/// Error of compiling or applying a grammar.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A GBNF grammar is malformed.
    #[error("grammar, line {line}: {problem}")]
    Gbnf {
        /// Line, from 1.
        line: usize,
        /// Description of the problem.
        problem: String,
    },
    /// A rule of a GBNF grammar always recurses.
    #[error("grammar: rule `{rule}` never ends")]
    NeverEnds {
        /// Rule name.
        rule: String,
    },
    /// A keyword of a JSON schema is not supported.
    #[error("schema: `{keyword}` at {place} is not supported")]
    Keyword {
        /// Keyword.
        keyword: String,
        /// JSON pointer to the subschema.
        place: String,
    },
    /// A JSON schema is malformed, not supported, or matches nothing.
    #[error("schema: {0}")]
    Schema(String),
    /// A regular expression is malformed or not supported.
    #[error("regex: {0}")]
    Regex(String),
    /// A Lark grammar is malformed.
    #[error("Lark grammar: {0}")]
    Lark(String),
    /// A grammar exceeds a limit.
    #[error("grammar: {0}")]
    Limit(#[from] LimitExceeded),
    /// The constraint engine panicked.
    #[error("grammar: internal error during compilation")]
    Fault,
    /// The constraint engine does not support this vocabulary or grammar.
    #[error("grammar: {0}")]
    Engine(String),
}
