//! RWKV's world tokenizer: the longest token at each place, over bytes. Its vocabulary spells
//! bytes with escapes, as Python's `repr` does.

use super::TokenId;
use super::trie::Trie;
use super::vocab::Vocab;

#[derive(Debug)]
pub(super) struct Rwkv {
    trie: Trie,
    unknown: Option<TokenId>,
}

impl Rwkv {
    pub(super) fn new(vocab: &Vocab, unknown: Option<TokenId>) -> Rwkv {
        Rwkv {
            trie: Trie::new(vocab.ids().map(|id| (vocab.piece(id), id))),
            unknown,
        }
    }

    /// Appends the tokens of `text`; a byte that begins no token is unknown, or left out.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (len, id) = match self.trie.longest(rest) {
                Some((len, id)) => (len, Some(id)),
                None => (1, self.unknown),
            };
            out.extend(id);
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

/// The bytes that `text` spells: `\t`, `\n`, `\r`, `\x1f`, and any other escaped character itself.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let (b'\\', Some((&escaped, tail))) = (byte, tail.split_first()) else {
            out.push(byte);
            continue;
        };
        rest = tail;
        match escaped {
            b't' => out.push(b'\t'),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b'x' => {
                let digit = |at: usize| rest.get(at).and_then(|&d| char::from(d).to_digit(16));
                match (digit(0), digit(1)) {
                    (Some(high), Some(low)) => {
                        out.push((high << 4 | low) as u8);
                        rest = rest.get(2..).unwrap_or_default();
                    }
                    _ => out.push(b'x'),
                }
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::TokenKind;
    use crate::tokenizer::vocab::StringTable;

    #[test]
    fn escapes_spell_bytes() {
        assert_eq!(unescape(br"a\n\t\r\xff\'\\"), b"a\n\t\r\xff'\\");
        assert_eq!(unescape(br"\x4"), b"x4");
        assert_eq!(unescape(b"\\"), b"\\");
        assert_eq!(unescape("é".as_bytes()), "é".as_bytes());
    }

    #[test]
    fn the_longest_token_wins() {
        let texts = StringTable::from_iter(["<s>", "a", "ab", "abc", "\\xe6", "bc"]);
        let pieces: StringTable = texts.iter().map(unescape).collect();
        let vocab = Vocab::new(texts, pieces, vec![TokenKind::Normal; 6]);
        let model = Rwkv::new(&vocab, Some(0));
        let mut out = Vec::new();
        model.encode("abcababd", &mut out);
        assert_eq!(out, [3, 2, 2, 0]);
    }
}
