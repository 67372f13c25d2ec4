//! Token healing: a prompt that ends inside a word ends with a token that the model would not have
//! put there. Taking it back and asking for its text anew lets the model choose the whole word.

use super::{TokenId, Tokenizer};

/// A prompt without its last token, and the text that is owed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Healed {
    /// How many tokens of the prompt stay.
    pub kept: usize,
    /// What the next tokens have to spell first.
    pub owed: Vec<u8>,
}

impl Tokenizer {
    /// Takes back the last token of a prompt if a longer token begins with its text.
    pub fn heal(&self, prompt: &[TokenId]) -> Healed {
        let whole = Healed {
            kept: prompt.len(),
            owed: Vec::new(),
        };
        let Some((&last, before)) = prompt.split_last() else {
            return whole;
        };
        let piece = self.piece(last).unwrap_or_default();
        if piece.is_empty() || self.is_special(last) {
            return whole;
        }
        let extended = self
            .text_tokens()
            .any(|(id, longer)| id != last && longer.starts_with(piece));
        if extended {
            Healed {
                kept: before.len(),
                owed: piece.to_vec(),
            }
        } else {
            whole
        }
    }

    /// The tokens that may come next while `owed` is: those that begin with it, and those that
    /// begin it.
    pub fn tokens_towards(&self, owed: &[u8]) -> Vec<TokenId> {
        let fits = |piece: &[u8]| piece.starts_with(owed) || owed.starts_with(piece);
        self.text_tokens()
            .filter(|(_, piece)| fits(piece))
            .map(|(id, _)| id)
            .collect()
    }

    /// Every token that is text, with its bytes.
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
    fn the_last_token_is_taken_back_only_where_another_goes_on() {
        let tokens = StringTable::from_iter(["<s>", "http", "://", ":", "a", "//"]);
        let mut spec = VocabSpec::new(ModelSpec::Rwkv, tokens);
        spec.kinds = vec![TokenKind::Control];
        let tokenizer = Tokenizer::new(spec).unwrap();
        assert_eq!(
            tokenizer.heal(&[1, 3]),
            Healed {
                kept: 1,
                owed: b":".to_vec()
            }
        );
        assert_eq!(tokenizer.tokens_towards(b":"), [2, 3]);
        assert_eq!(tokenizer.tokens_towards(b"://x"), [2, 3]);
        for whole in [&[1, 4][..], &[1, 0], &[], &[99]] {
            assert_eq!(
                tokenizer.heal(whole),
                Healed {
                    kept: whole.len(),
                    owed: Vec::new()
                }
            );
        }
    }
}
