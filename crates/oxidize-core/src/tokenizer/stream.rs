//! Incremental decoding. Bytes of an incomplete character are held back until later tokens complete
//! it.

use super::{TokenId, Tokenizer};

/// Decodes a stream of tokens into a stream of text; see [`Tokenizer::stream`].
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

    /// Includes control tokens in the text, by name. Off by default.
    pub fn render_special(mut self, render: bool) -> StreamDecoder {
        self.render_special = render;
        self
    }

    /// Returns the text that `token` completes. It is empty if the token ends inside a character.
    pub fn push(&mut self, token: TokenId) -> &str {
        self.text.clear();
        if self.render_special || !self.tokenizer.is_special(token) {
            let piece = self.tokenizer.piece(token).unwrap_or_default();
            self.pending.push(piece, &mut self.text);
        }
        &self.text
    }

    /// Returns the rest of the text: U+FFFD if the tokens end inside a character, or nothing.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.pending.finish(&mut self.text);
        &self.text
    }
}

/// Joins byte strings into valid UTF-8.
#[derive(Clone, Debug, Default)]
pub(super) struct Utf8Buffer {
    /// Incomplete character: at most three bytes.
    held: Vec<u8>,
}

impl Utf8Buffer {
    /// Appends the characters that `bytes` complete to `text`. Invalid ones become U+FFFD.
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
            if chunks.peek().is_none() && is_incomplete(chunk.invalid()) {
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

/// True if `bytes`, which are not valid UTF-8, may be the start of a character.
fn is_incomplete(bytes: &[u8]) -> bool {
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
    fn split_character_is_emitted_whole() {
        let rocket = "🚀".as_bytes();
        let (texts, rest) = decode(&[&rocket[..1], &rocket[1..3], &[rocket[3], b'!', 0xc3]]);
        assert_eq!(texts, ["", "", "🚀!"]);
        assert_eq!(rest, "\u{fffd}");
    }

    #[test]
    fn invalid_bytes_do_not_delay_the_rest() {
        let (texts, rest) = decode(&[b"a\xff", b"\xf0\x9f", b"b", b"\x80"]);
        assert_eq!(texts, ["a\u{fffd}", "", "\u{fffd}b", "\u{fffd}"]);
        assert_eq!(rest, "");
    }

    #[test]
    fn text_does_not_depend_on_chunk_size() {
        let bytes = "aé漢🚀\u{1f468}\u{200d}\u{1f469}z".as_bytes();
        for size in 1..bytes.len() {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            let (texts, rest) = decode(&chunks);
            assert_eq!(texts.concat() + &rest, String::from_utf8_lossy(bytes));
        }
    }
}
