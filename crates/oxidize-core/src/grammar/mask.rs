//! [`Grammars`] compiles grammars; a [`Constraint`] computes the tokens that may come next.

use super::{Grammar, GrammarError, gbnf, json_schema};
use crate::limits::LimitExceeded;
use crate::sampling::TokenMask;
use crate::threads::on_deep_stack;
use crate::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use std::collections::HashMap;
use std::sync::Arc;

/// Compiler of grammars for one vocabulary. Creating it takes about 100 ms, so it is created once
/// per model.
pub struct Grammars {
    factory: ParserFactory,
    n_vocab: usize,
    /// True if the vocabulary has an end-of-generation token.
    has_end: bool,
    /// Tokens that GBNF can reference by name.
    named: HashMap<String, u32>,
}

/// State of a grammar within an answer. Clones advance independently.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    mask: TokenMask,
    has_end: bool,
}

/// Limit on the length of a regular expression in bytes.
const MAX_REGEX_BYTES: u64 = 64 << 10;
/// Limit on the length of a Lark grammar in bytes.
const MAX_LARK_BYTES: u64 = 64 << 10;
/// Limit on the length in bytes of a token in a constrained answer.
const MAX_TOKEN_BYTES: usize = 1000;
/// Limit on the length of an error message in characters; some repeat the whole grammar.
const MAX_MESSAGE_CHARS: usize = 400;
/// Stack of the compiling thread. llguidance recurses once per name in a chain of names; this is
/// several times what the limits of the grammar notations allow.
const STACK_BYTES: usize = 128 << 20;

impl Grammars {
    /// Creates a compiler for a model with `n_vocab` tokens, the first of which are in `tokenizer`.
    pub fn new(tokenizer: &Tokenizer, n_vocab: usize) -> Result<Grammars, GrammarError> {
        let count = u32::try_from(n_vocab)
            .map_err(|_| GrammarError::Engine(format!("a vocabulary of {n_vocab} tokens")))?;
        let words: Vec<Vec<u8>> = (0..count)
            .map(|token| token_bytes(tokenizer, token))
            .collect();
        let known = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let eog_tokens: Vec<u32> = (0..count.min(known))
            .filter(|&token| tokenizer.is_end_of_generation(token))
            .collect();
        let no_eog = llguidance::toktrie::INVALID_TOKEN;
        let info = TokRxInfo::new(count, eog_tokens.first().copied().unwrap_or(no_eog));
        let trie = TokTrie::from(&info, &words);
        let trie = match eog_tokens.as_slice() {
            [] => trie,
            eog_tokens => trie.with_eos_tokens(eog_tokens),
        };
        // Masks depend on bytes alone: tokens are not forced, so any tokenization of a text is
        // allowed.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Engine(message(&error)))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            verbose_errors: false,
            // GBNF without clear lexemes is parsed by character, which takes more items.
            step_max_items: 500_000,
            precompute_large_lexemes: false,
            ..ParserLimits::default()
        };
        Ok(Grammars {
            factory,
            n_vocab,
            has_end: !eog_tokens.is_empty(),
            named: (0..count.min(known))
                .filter_map(|token| Some((tokenizer.token_text(token)?, token)))
                .filter(|(name, _)| name.starts_with('<') && name.ends_with('>'))
                .map(|(name, token)| (name.to_owned(), token))
                .collect(),
        })
    }

    /// Compiles `grammar` into a constraint at the beginning of an answer.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        let compile = || self.compile_on_this_stack(grammar);
        match on_deep_stack("oxidize-grammar", STACK_BYTES, compile) {
            Ok(Some(result)) => result,
            Ok(None) => Err(GrammarError::Fault),
            Err(error) => Err(GrammarError::Engine(format!("no thread: {error}"))),
        }
    }

    fn compile_on_this_stack(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        let (top, to_error): (TopLevelGrammar, fn(String) -> GrammarError) = match grammar {
            Grammar::Gbnf(source) => {
                let lark = gbnf::to_lark(source, self)?;
                tracing::debug!(%lark, "a GBNF grammar");
                (TopLevelGrammar::from_lark(lark), GrammarError::Engine)
            }
            Grammar::JsonSchema(schema) => {
                let schema = json_schema::prepare(schema)?;
                (
                    TopLevelGrammar::from_json_schema(schema),
                    json_schema::explain,
                )
            }
            Grammar::JsonObject => {
                let schema = json_schema::prepare(&serde_json::json!({"type": "object"}))?;
                (
                    TopLevelGrammar::from_json_schema(schema),
                    json_schema::explain,
                )
            }
            Grammar::Regex(regex) => {
                let bytes = regex.len() as u64;
                LimitExceeded::check("bytes of regex", bytes, MAX_REGEX_BYTES)?;
                (TopLevelGrammar::from_regex(regex), GrammarError::Regex)
            }
            Grammar::Lark(source) => {
                let bytes = source.len() as u64;
                LimitExceeded::check("bytes of Lark grammar", bytes, MAX_LARK_BYTES)?;
                (
                    TopLevelGrammar::from_lark(source.clone()),
                    GrammarError::Lark,
                )
            }
        };
        let mut parser = self
            .factory
            .create_parser(top)
            .map_err(|error| to_error(message(&error)))?;
        // A warning means that part of the grammar would be ignored.
        if let Some(warning) = parser.grammar_warnings().into_iter().next() {
            return Err(to_error(warning));
        }
        let mut constraint = Constraint {
            matcher: Matcher::new(Ok(parser)),
            mask: TokenMask::none(self.n_vocab),
            has_end: self.has_end,
        };
        // Report a grammar that cannot start now, not when the first token is sampled.
        constraint.mask().map_err(|error| match error {
            GrammarError::Engine(problem) => to_error(problem),
            other => other,
        })?;
        Ok(constraint)
    }
}

impl gbnf::FindToken for Grammars {
    fn named(&self, name: &str) -> Option<u32> {
        self.named.get(name).copied()
    }

    fn n_tokens(&self) -> usize {
        self.n_vocab
    }
}

/// Bytes of a token in the trie. Special tokens get a marker, so that text of a grammar never
/// matches their names. A token without bytes is never allowed.
fn token_bytes(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    let Some(piece) = tokenizer.piece(token) else {
        return Vec::new();
    };
    let is_special = tokenizer.is_special(token) || tokenizer.is_end_of_generation(token);
    if is_special {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], piece].concat();
    }
    match tokenizer.kind(token) {
        Some(TokenKind::Unused) => Vec::new(),
        // The trie does not support longer tokens, and no answer needs them.
        _ if piece.len() > MAX_TOKEN_BYTES => Vec::new(),
        // Text never contains this byte, and the token would be mistaken for a special one.
        _ if piece.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
        _ => piece.to_vec(),
    }
}

/// Error message of llguidance without its debugging notes.
fn message(error: &dyn std::fmt::Display) -> String {
    let text = format!("{error:#}");
    let end = ["\n<non-verbose/>", "\n<state>", "\n<backtrace>"]
        .iter()
        .filter_map(|note| text.find(note))
        .min();
    let text = text.get(..end.unwrap_or(text.len())).unwrap_or(&text);
    // An error in a regex repeats all of it; the line with this prefix describes the problem.
    let verdict = text.lines().find_map(|line| line.strip_prefix("error: "));
    let text = verdict.unwrap_or(text).trim();
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}

impl Constraint {
    /// Returns the tokens that may come next. They include the end-of-generation tokens if the
    /// answer is complete.
    pub fn mask(&mut self) -> Result<&TokenMask, GrammarError> {
        let allowed = self
            .matcher
            .compute_mask_or_eos()
            .map_err(|error| GrammarError::Engine(message(&error)))?;
        let words = self.mask.words_mut();
        words.fill(0);
        for (word, &allowed) in words.iter_mut().zip(allowed.as_slice()) {
            *word = allowed;
        }
        Ok(&self.mask)
    }

    /// Advances by a token, which the mask must allow.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        tracing::trace!(token, "a constrained answer goes on");
        self.matcher
            .consume_token(token)
            .map_err(|error| GrammarError::Engine(message(&error)))
    }

    /// True if the answer is complete and cannot continue.
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()
    }

    /// True if the answer may end here.
    pub fn may_end(&mut self) -> bool {
        self.is_complete() || self.matcher.is_accepting().unwrap_or(false)
    }

    /// True if the vocabulary has an end-of-generation token.
    pub fn has_end(&self) -> bool {
        self.has_end
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint")
            .field("complete", &self.is_complete())
            .finish_non_exhaustive()
    }
}
