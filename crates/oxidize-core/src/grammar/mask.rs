//! [`Grammars`] and [`Constraint`]: from a grammar to the tokens that may come next.

use super::{Grammar, GrammarError, gbnf, json_schema};
use crate::limits::LimitExceeded;
use crate::sampling::TokenMask;
use crate::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use std::collections::HashMap;
use std::sync::Arc;

/// Compiles grammars for one vocabulary. Making one costs some 100 ms; it is made once a model.
pub struct Grammars {
    factory: ParserFactory,
    n_vocab: usize,
    /// Whether some token ends a generation.
    has_end: bool,
    /// Tokens with names that GBNF can speak of.
    named: HashMap<String, u32>,
}

/// A grammar at some point of an answer. A clone goes its own way from there.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    mask: TokenMask,
    has_end: bool,
}

/// Bytes of a regular expression.
const MOST_REGEX_BYTES: u64 = 64 << 10;
/// Bytes of a Lark grammar.
const MOST_LARK_BYTES: u64 = 64 << 10;
/// Bytes of a token that can be part of a constrained answer.
const MOST_TOKEN_BYTES: usize = 1000;
/// Characters of an error that is told; some repeat the grammar.
const MOST_MESSAGE_CHARS: usize = 400;
/// llguidance calls itself once for every name in a chain of names; what the limits of the notations
/// allow fits several times over.
const STACK_BYTES: usize = 128 << 20;

impl Grammars {
    /// For a model of `n_vocab` tokens, of which `tokenizer` knows the first.
    pub fn new(tokenizer: &Tokenizer, n_vocab: usize) -> Result<Grammars, GrammarError> {
        let count = u32::try_from(n_vocab)
            .map_err(|_| GrammarError::Engine(format!("a vocabulary of {n_vocab} tokens")))?;
        let words: Vec<Vec<u8>> = (0..count).map(|token| word(tokenizer, token)).collect();
        let known = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let ends: Vec<u32> = (0..count.min(known))
            .filter(|&token| tokenizer.is_end_of_generation(token))
            .collect();
        let no_end = llguidance::toktrie::INVALID_TOKEN;
        let info = TokRxInfo::new(count, ends.first().copied().unwrap_or(no_end));
        let trie = TokTrie::from(&info, &words);
        let trie = match ends.as_slice() {
            [] => trie,
            ends => trie.with_eos_tokens(ends),
        };
        // Masks come from bytes alone: tokens are not forced, so any spelling of a text is allowed.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Engine(message(&error)))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            verbose_errors: false,
            // GBNF without clear lexemes is read by the character, which takes more items.
            step_max_items: 500_000,
            precompute_large_lexemes: false,
            ..ParserLimits::default()
        };
        Ok(Grammars {
            factory,
            n_vocab,
            has_end: !ends.is_empty(),
            named: (0..count.min(known))
                .filter_map(|token| Some((tokenizer.token_text(token)?, token)))
                .filter(|(name, _)| name.starts_with('<') && name.ends_with('>'))
                .map(|(name, token)| (name.to_owned(), token))
                .collect(),
        })
    }

    /// A constraint at the beginning of an answer.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("oxidize-grammar".into())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || self.compile_here(grammar))
                .map_err(|error| GrammarError::Engine(format!("no thread: {error}")))?;
            thread.join().unwrap_or(Err(GrammarError::Fault))
        })
    }

    fn compile_here(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        let (top, wrong): (TopLevelGrammar, fn(String) -> GrammarError) = match grammar {
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
                LimitExceeded::check("bytes of regex", bytes, MOST_REGEX_BYTES)?;
                (TopLevelGrammar::from_regex(regex), GrammarError::Regex)
            }
            Grammar::Lark(source) => {
                let bytes = source.len() as u64;
                LimitExceeded::check("bytes of Lark grammar", bytes, MOST_LARK_BYTES)?;
                (
                    TopLevelGrammar::from_lark(source.clone()),
                    GrammarError::Lark,
                )
            }
        };
        let mut parser = self
            .factory
            .create_parser(top)
            .map_err(|error| wrong(message(&error)))?;
        // A warning tells of something that was asked for and would not be done.
        if let Some(warning) = parser.grammar_warnings().into_iter().next() {
            return Err(wrong(warning));
        }
        let mut constraint = Constraint {
            matcher: Matcher::new(Ok(parser)),
            mask: TokenMask::none(self.n_vocab),
            has_end: self.has_end,
        };
        // What cannot even begin is told now, not when the first token is wanted.
        constraint.mask().map_err(|error| match error {
            GrammarError::Engine(problem) => wrong(problem),
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

/// The bytes that stand for a token in the trie. Special tokens are marked, so that no text of a
/// grammar matches their names; one without text is never allowed.
fn word(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    let Some(piece) = tokenizer.piece(token) else {
        return Vec::new();
    };
    let is_special = tokenizer.is_special(token) || tokenizer.is_end_of_generation(token);
    if is_special {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], piece].concat();
    }
    match tokenizer.kind(token) {
        Some(TokenKind::Unused) => Vec::new(),
        // The trie has no room for longer ones, and no answer needs them.
        _ if piece.len() > MOST_TOKEN_BYTES => Vec::new(),
        // No text has this byte, and a word that begins with it would pass for a special token.
        _ if piece.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) => Vec::new(),
        _ => piece.to_vec(),
    }
}

/// What llguidance says, without its notes for its own developers.
fn message(error: &dyn std::fmt::Display) -> String {
    let text = format!("{error:#}");
    let end = ["\n<non-verbose/>", "\n<state>", "\n<backtrace>"]
        .iter()
        .filter_map(|note| text.find(note))
        .min();
    let text = text.get(..end.unwrap_or(text.len())).unwrap_or(&text);
    // An error in a regex repeats all of it; a line of its own says what is wrong.
    let verdict = text.lines().find_map(|line| line.strip_prefix("error: "));
    let text = verdict.unwrap_or(text).trim();
    text.chars().take(MOST_MESSAGE_CHARS).collect()
}

impl Constraint {
    /// The tokens that may come next. Those that end a generation are among them when the answer
    /// is complete.
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

    /// Goes on by a token that the mask allows.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        tracing::trace!(token, "a constrained answer goes on");
        self.matcher
            .consume_token(token)
            .map_err(|error| GrammarError::Engine(message(&error)))
    }

    /// Whether the answer is complete and nothing can come any more.
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        self.is_complete() || self.matcher.is_accepting().unwrap_or(false)
    }

    /// Whether the vocabulary has a token to end an answer with.
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
