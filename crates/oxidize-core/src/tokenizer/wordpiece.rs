//! BERT's WordPiece: splits text at whitespace and punctuation, then encodes each word by greedy
//! longest match, with separate tokens for the beginning and the continuation of a word. A word
//! without a match becomes the unknown token.

use super::TokenId;
use super::error::{Result, TokenizerError};
use super::spec::WordMarker;
use super::trie::Trie;
use super::unicode::Class;
use super::vocab::Vocab;

#[derive(Debug)]
pub(super) struct WordPiece {
    beginnings: Trie,
    continuations: Trie,
    unknown: TokenId,
    max_word_chars: usize,
}

impl WordPiece {
    pub(super) fn new(
        vocab: &Vocab,
        marker: &WordMarker,
        unknown: Option<TokenId>,
        max_word_chars: usize,
    ) -> Result<WordPiece> {
        let unknown = unknown.ok_or_else(|| {
            TokenizerError::Missing("the unknown token of a WordPiece model".into())
        })?;
        let marked = |wanted: bool| {
            let mark = match marker {
                WordMarker::Beginning(mark) | WordMarker::Continuation(mark) => mark.as_bytes(),
            };
            Trie::new(vocab.ids().filter_map(move |id| {
                let text = vocab.text(id);
                match text.strip_prefix(mark) {
                    Some(rest) if wanted => Some((rest, id)),
                    None if !wanted => Some((text, id)),
                    _ => None,
                }
            }))
        };
        let (beginnings, continuations) = match marker {
            WordMarker::Beginning(_) => (marked(true), marked(false)),
            WordMarker::Continuation(_) => (marked(false), marked(true)),
        };
        Ok(WordPiece {
            beginnings,
            continuations,
            unknown,
            max_word_chars,
        })
    }

    /// Appends the tokens of `text`, which must be normalized.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) {
        let mut word_start = None;
        for (at, c) in text.char_indices() {
            let space = c.is_whitespace();
            let isolated = c.is_ascii_punctuation() || Class::of(c).is(Class::PUNCTUATION);
            if !space && !isolated {
                word_start.get_or_insert(at);
                continue;
            }
            if let Some(start) = word_start.take() {
                self.word(text.get(start..at).unwrap_or_default(), out);
            }
            if isolated {
                self.word(text.get(at..at + c.len_utf8()).unwrap_or_default(), out);
            }
        }
        if let Some(start) = word_start {
            self.word(text.get(start..).unwrap_or_default(), out);
        }
    }

    fn word(&self, word: &str, out: &mut Vec<TokenId>) {
        let first = out.len();
        let mut rest = word.as_bytes();
        let mut trie = &self.beginnings;
        let too_long = word.chars().nth(self.max_word_chars).is_some();
        while !rest.is_empty() {
            let Some((len, id)) = trie.longest(rest).filter(|_| !too_long) else {
                out.truncate(first);
                out.push(self.unknown);
                return;
            };
            out.push(id);
            rest = rest.get(len..).unwrap_or_default();
            trie = &self.continuations;
        }
    }
}
