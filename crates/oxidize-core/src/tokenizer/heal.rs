//! Token healing: a prompt that ends inside a word ends with a token that training text would not
//! have there. Dropping that token and constraining the next ones to its text lets the model choose
//! the whole word.

use super::{TokenId, Tokenizer};

/// Prompt without its last token, and the text that replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Healed {
    /// Number of prompt tokens to keep.
    pub kept: usize,
    /// Text that the next tokens must start with.
    pub prefix: Vec<u8>,
}

impl Tokenizer {
    /// Drops the last token of a prompt if a longer token starts with its text.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn heal(&self, prompt: &[TokenId]) -> Healed {
        let unchanged = Healed {
            kept: prompt.len(),
            prefix: Vec::new(),
        };
        let Some((&last, before)) = prompt.split_last() else {
            return unchanged;
        };
        let piece = self.piece(last).unwrap_or_default();
        if piece.is_empty() || self.is_special(last) {
            return unchanged;
        }
        let extended = self
            .text_tokens()
            .any(|(id, longer)| id != last && longer.starts_with(piece));
        if extended {
            Healed {
                kept: before.len(),
                prefix: piece.to_vec(),
            }
        } else {
            unchanged
        }
    }

    /// Tokens that may come next while `prefix` is pending: those that start with it, and those
    /// that it starts with.
    pub fn tokens_matching_prefix(&self, prefix: &[u8]) -> Vec<TokenId> {
        let fits = |piece: &[u8]| piece.starts_with(prefix) || prefix.starts_with(piece);
        self.text_tokens()
            .filter(|(_, piece)| fits(piece))
            .map(|(id, _)| id)
            .collect()
    }

    /// Text tokens with their bytes.
    fn text_tokens(&self) -> impl Iterator<Item = (TokenId, &[u8])> {
        self.0
            .vocab
            .ids()
            .filter(|&id| !self.is_special(id))
            .map(|id| (id, self.0.vocab.piece(id)))
            .filter(|(_, piece)| !piece.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{ModelSpec, StringTable, TokenKind, VocabSpec};

    #[test]
    fn heals_only_if_a_longer_token_continues_the_last() {
        let tokens = StringTable::from_iter(["<s>", "http", "://", ":", "a", "//"]);
        let mut spec = VocabSpec::new(ModelSpec::Rwkv, tokens);
        spec.kinds = vec![TokenKind::Control];
        let tokenizer = Tokenizer::new(spec).unwrap();
        assert_eq!(
            tokenizer.heal(&[1, 3]),
            Healed {
                kept: 1,
                prefix: b":".to_vec()
            }
        );
        assert_eq!(tokenizer.tokens_matching_prefix(b":"), [2, 3]);
        assert_eq!(tokenizer.tokens_matching_prefix(b"://x"), [2, 3]);
        for unchanged in [&[1, 4][..], &[1, 0], &[], &[99]] {
            assert_eq!(
                tokenizer.heal(unchanged),
                Healed {
                    kept: unchanged.len(),
                    prefix: Vec::new()
                }
            );
        }
    }
}
