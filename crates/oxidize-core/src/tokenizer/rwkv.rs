//! RWKV's World tokenizer: greedy longest match over bytes. The vocabulary file stores tokens as
//! Python literals.

use std::path::Path;

use super::error::{Result, TokenizerError};
use super::spec::{ModelSpec, VocabSpec};
use super::trie::Trie;
use super::vocab::{StringTable, Vocab};
use super::{MAX_TOKENS, TokenId, TokenKind};

#[derive(Debug)]
pub(super) struct Rwkv {
    trie: Trie,
    unknown: Option<TokenId>,
}

impl Rwkv {
    pub(super) fn new(vocab: &Vocab, unknown: Option<TokenId>) -> Rwkv {
        // Control tokens never come from the bytes of a text.
        let text = vocab
            .ids()
            .filter(|&id| !matches!(vocab.kind(id), TokenKind::Control | TokenKind::Unknown));
        Rwkv {
            trie: Trie::new(text.map(|id| (vocab.piece(id), id))),
            unknown,
        }
    }

    /// Appends the tokens of `text`. A byte that starts no token becomes the unknown token, if
    /// there is one.
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

/// Resolves the escapes `\t`, `\n`, `\r` and `\x1f`; any other escaped character stands for itself.
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

/// Reads `rwkv_vocab_v20230424.txt`, whose lines have an id, a Python literal and a length in
/// bytes.
pub(super) fn spec(bytes: &[u8], path: &Path) -> Result<VocabSpec> {
    // The file has no token 0; it ends a text.
    let mut tokens = StringTable::from_iter(["<|endoftext|>"]);
    let mut offset = 0;
    for line in bytes.split(|&byte| byte == b'\n') {
        if !line.trim_ascii().is_empty() {
            let (id, token) = parse_line(line).ok_or_else(|| TokenizerError::Format {
                path: path.to_path_buf(),
                offset,
                problem: "not an id, a Python literal and a length".into(),
            })?;
            if id >= MAX_TOKENS {
                return Err(TokenizerError::Limit {
                    what: "the largest token id",
                    limit: MAX_TOKENS as u64,
                    requested: id as u64,
                });
            }
            // Ids ascend; the file has one gap, filled with an empty token.
            while tokens.len() < id {
                tokens.push("")?;
            }
            tokens.push(escape(&token))?;
        }
        offset += line.len() + 1;
    }
    let mut spec = VocabSpec::new(ModelSpec::Rwkv, tokens);
    spec.kinds = vec![TokenKind::Control];
    spec.special.eos = Some(0);
    Ok(spec)
}

fn parse_line(line: &[u8]) -> Option<(usize, Vec<u8>)> {
    let line = std::str::from_utf8(line).ok()?.trim_end();
    let (id, rest) = line.split_once(' ')?;
    let (literal, len) = rest.rsplit_once(' ')?;
    let token = match literal.strip_prefix('b') {
        Some(bytes) => unescape(unquote(bytes)?.as_bytes()),
        None => unescape_text(unquote(literal)?)?,
    };
    (token.len() == len.parse::<usize>().ok()?).then_some((id.parse().ok()?, token))
}

fn unquote(literal: &str) -> Option<&str> {
    let quote = literal.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    literal.strip_prefix(quote)?.strip_suffix(quote)
}

/// Like [`unescape`], but `\xe9` is a character, not a byte.
fn unescape_text(text: &str) -> Option<Vec<u8>> {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let digits = match rest.next()? {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            escaped => {
                out.push(match escaped {
                    't' => '\t',
                    'n' => '\n',
                    'r' => '\r',
                    other => other,
                });
                continue;
            }
        };
        let code: String = rest.by_ref().take(digits).collect();
        out.push(
            u32::from_str_radix(&code, 16)
                .ok()
                .and_then(char::from_u32)?,
        );
    }
    Some(out.into_bytes())
}

/// Escapes bytes; the inverse of [`unescape`].
fn escape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => out.extend(b"\\\\"),
            b' '..=b'~' => out.push(byte),
            _ => out.extend(format!("\\x{byte:02x}").bytes()),
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
    fn unescapes_bytes() {
        assert_eq!(unescape(br"a\n\t\r\xff\'\\"), b"a\n\t\r\xff'\\");
        assert_eq!(unescape(br"\x4"), b"x4");
        assert_eq!(unescape(b"\\"), b"\\");
        assert_eq!(unescape("é".as_bytes()), "é".as_bytes());
    }

    #[test]
    fn reads_the_vocabulary_file() {
        let file = b"1 '\\x00' 1\n2 'a' 1\n3 b'\\xe6\\xbc' 2\n4 '\\xe9' 2\n6 \"it's\" 4\n";
        let tokenizer =
            crate::tokenizer::Tokenizer::new(spec(file, Path::new("v")).unwrap()).unwrap();
        assert_eq!(tokenizer.vocab_size(), 7);
        let plain = crate::tokenizer::EncodeOptions::PLAIN;
        assert_eq!(tokenizer.encode("a\u{e9}\u{0}it's", plain), [2, 4, 1, 6]);
        assert_eq!(tokenizer.piece(3), Some(&b"\xe6\xbc"[..]));
        assert!(!tokenizer.encode("<|endoftext|>", plain).contains(&0));
        assert!(spec(b"1 'a' 2\n", Path::new("v")).is_err());
    }

    #[test]
    fn longest_token_wins() {
        let texts = StringTable::from_iter(["<s>", "a", "ab", "abc", "\\xe6", "bc"]);
        let pieces: StringTable = texts.iter().map(unescape).collect();
        let vocab = Vocab::new(texts, pieces, vec![TokenKind::Normal; 6]);
        let model = Rwkv::new(&vocab, Some(0));
        let mut out = Vec::new();
        model.encode("abcababd", &mut out);
        assert_eq!(out, [3, 2, 2, 0]);
    }
}
