//! Tokens to text as they come, never half a character: bytes that may yet become one are held
//! back until the next token decides.

use super::{TokenId, Tokenizer};

/// Turns a stream of tokens into a stream of text. Made by [`Tokenizer::stream`].
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    render_special: bool,
    pending: Utf8Buffer,
    text: String,
}

impl StreamDecoder {
    pub(super) fn new(tokenizer: Tokenizer) -> StreamDecoder {
        StreamDecoder {
            tokenizer,
            render_special: false,
            pending: Utf8Buffer::default(),
            text: String::new(),
        }
    }

    /// Whether control tokens appear in the text, as their names. They do not by default.
    pub fn render_special(mut self, render: bool) -> StreamDecoder {
        self.render_special = render;
        self
    }

    /// The text that `token` completes; empty where it ends inside a character.
    pub fn push(&mut self, token: TokenId) -> &str {
        self.text.clear();
        if self.render_special || !self.tokenizer.is_special(token) {
            let piece = self.tokenizer.piece(token).unwrap_or_default();
            self.pending.push(piece, &mut self.text);
        }
        &self.text
    }

    /// What is left at the end: a replacement character if the tokens stopped inside a character.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.pending.finish(&mut self.text);
        &self.text
    }
}

/// Joins byte strings into text.
#[derive(Clone, Debug, Default)]
pub(super) struct Utf8Buffer {
    /// The beginning of a character: at most three bytes.
    held: Vec<u8>,
}

impl Utf8Buffer {
    /// Appends the characters that `bytes` complete to `text`, invalid ones as U+FFFD.
    pub(super) fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.held.extend_from_slice(bytes);
        let mut taken = 0;
        let mut chunks = self.held.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            taken += chunk.valid().len();
            if chunk.invalid().is_empty() {
                continue;
            }
            if chunks.peek().is_none() && may_continue(chunk.invalid()) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            taken += chunk.invalid().len();
        }
        self.held.drain(..taken);
    }

    pub(super) fn finish(&mut self, text: &mut String) {
        if !self.held.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.held.clear();
        }
    }
}

/// Whether `bytes`, which are not UTF-8, could be the beginning of a character.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(chunks: &[&[u8]]) -> (Vec<String>, String) {
        let mut buffer = Utf8Buffer::default();
        let texts = chunks.iter().map(|chunk| {
            let mut text = String::new();
            buffer.push(chunk, &mut text);
            text
        });
        let texts = texts.collect();
        let mut rest = String::new();
        buffer.finish(&mut rest);
        (texts, rest)
    }

    #[test]
    fn a_character_in_parts_comes_whole() {
        let rocket = "🚀".as_bytes();
        let (texts, rest) = decode(&[&rocket[..1], &rocket[1..3], &[rocket[3], b'!', 0xc3]]);
        assert_eq!(texts, ["", "", "🚀!"]);
        assert_eq!(rest, "\u{fffd}");
    }

    #[test]
    fn bytes_that_are_no_text_do_not_hold_up_the_rest() {
        let (texts, rest) = decode(&[b"a\xff", b"\xf0\x9f", b"b", b"\x80"]);
        assert_eq!(texts, ["a\u{fffd}", "", "\u{fffd}b", "\u{fffd}"]);
        assert_eq!(rest, "");
    }

    #[test]
    fn any_cut_gives_the_same_text() {
        let bytes = "aé漢🚀\u{1f468}\u{200d}\u{1f469}z".as_bytes();
        for size in 1..bytes.len() {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            let (texts, rest) = decode(&chunks);
            assert_eq!(texts.concat() + &rest, String::from_utf8_lossy(bytes));
        }
    }
}
