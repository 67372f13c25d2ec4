//! SentencePiece's Unigram model (T5, XLM-R): the most likely segmentation of a text, by dynamic
//! programming over its bytes (Kudo 2018, arXiv:1804.10959).

use super::bpe::ByteTokens;
use super::error::{Result, TokenizerError};
use super::pretokenize::PreTokenizer;
use super::trie::Trie;
use super::vocab::Vocab;
use super::{TokenId, TokenKind};

#[derive(Debug)]
pub(super) struct Unigram {
    pre: Option<PreTokenizer>,
    trie: Trie,
    scores: Vec<f32>,
    unknown: TokenId,
    unknown_score: f64,
    /// Byte tokens, if unknown characters are encoded as bytes.
    bytes: Option<ByteTokens>,
}

/// Score difference between the worst token and an unknown character.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Best segmentation that ends at a position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    score: f64,
    id: TokenId,
    /// Length of the last token in bytes.
    len: u32,
}

impl Unigram {
    pub(super) fn new(
        vocab: &Vocab,
        pre: Option<PreTokenizer>,
        scores: Vec<f32>,
        unknown: Option<TokenId>,
        bytes: Option<ByteTokens>,
    ) -> Result<Unigram> {
        if let Some(id) = scores.iter().position(|score| !score.is_finite()) {
            let problem = format!("the score of token {id} is not a number");
            return Err(TokenizerError::invalid("scores", problem));
        }
        if scores.len() < vocab.len() {
            let problem = format!("{} scores for {} tokens", scores.len(), vocab.len());
            return Err(TokenizerError::invalid("scores", problem));
        }
        let unknown = unknown.ok_or_else(|| {
            TokenizerError::Missing("the unknown token of a Unigram model".into())
        })?;
        let normal = vocab
            .ids()
            .filter(|&id| vocab.kind(id) == TokenKind::Normal);
        let worst = normal
            .filter_map(|id| scores.get(id as usize))
            .copied()
            .fold(0.0, f32::min);
        let text = vocab.ids().filter(|&id| {
            matches!(
                vocab.kind(id),
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused
            )
        });
        Ok(Unigram {
            pre,
            trie: Trie::new(text.map(|id| (vocab.text(id), id))),
            scores,
            unknown,
            unknown_score: f64::from(worst) - UNKNOWN_PENALTY,
            bytes,
        })
    }

    /// Appends the tokens of `text`, which must be normalized.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        steps: &mut Vec<Step>,
        out: &mut Vec<TokenId>,
    ) {
        match &self.pre {
            Some(pre) => pre.split(text, |piece| self.encode_piece(vocab, piece, steps, out)),
            None => self.encode_piece(vocab, text, steps, out),
        }
    }

    fn encode_piece(
        &self,
        vocab: &Vocab,
        text: &str,
        steps: &mut Vec<Step>,
        out: &mut Vec<TokenId>,
    ) {
        let bytes = text.as_bytes();
        let unreached = Step {
            score: f64::NEG_INFINITY,
            id: self.unknown,
            len: 0,
        };
        steps.clear();
        steps.resize(bytes.len() + 1, unreached);
        if let Some(start) = steps.first_mut() {
            start.score = 0.0;
        }
        for (at, c) in text.char_indices() {
            let base = steps.get(at).map_or(0.0, |step| step.score);
            let mut relax = |len: usize, id: TokenId, score: f64| {
                if let Some(step) = steps
                    .get_mut(at + len)
                    .filter(|step| base + score > step.score)
                {
                    *step = Step {
                        score: base + score,
                        id,
                        len: len as u32,
                    };
                }
            };
            let mut has_character_token = false;
            self.trie
                .prefixes(bytes.get(at..).unwrap_or_default(), |len, id| {
                    has_character_token |= len == c.len_utf8();
                    let score = match vocab.kind(id) {
                        TokenKind::UserDefined => 0.0,
                        _ => self
                            .scores
                            .get(id as usize)
                            .map_or(0.0, |&score| f64::from(score)),
                    };
                    relax(len, id, score);
                });
            if !has_character_token {
                relax(c.len_utf8(), self.unknown, self.unknown_score);
            }
        }
        self.backtrack(bytes, steps, out);
    }

    /// Backtracks from the end. Runs of unknown characters become one token, or their bytes.
    fn backtrack(&self, bytes: &[u8], steps: &[Step], out: &mut Vec<TokenId>) {
        let first = out.len();
        let mut end = bytes.len();
        let mut after_unknown = false;
        while let Some(step) = steps.get(end).filter(|step| step.len > 0) {
            let start = end.saturating_sub(step.len as usize);
            let is_unknown = step.id == self.unknown;
            let piece = bytes.get(start..end).unwrap_or_default();
            let table = self.bytes.as_ref().filter(|_| is_unknown);
            let byte_ids = table.and_then(|table| table.tokens_of(piece));
            let has_byte_ids = byte_ids.is_some();
            match byte_ids {
                Some(ids) => out.extend(ids.rev()),
                None if is_unknown && after_unknown => {}
                None => out.push(step.id),
            }
            after_unknown = is_unknown && !has_byte_ids;
            end = start;
        }
        if let Some(added) = out.get_mut(first..) {
            added.reverse();
        }
    }
}
