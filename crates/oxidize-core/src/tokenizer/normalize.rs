//! Normalization of text before tokenization: Unicode forms, case, SentencePiece's space handling
//! and precompiled character map, BERT's cleanup.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::error::{Result, TokenizerError};
use super::unicode::Class;

/// Normalization step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Normalize {
    /// Unicode NFC.
    Nfc,
    /// Unicode NFD.
    Nfd,
    /// Unicode NFKC.
    Nfkc,
    /// Unicode NFKD.
    Nfkd,
    /// Converts to lower case.
    Lowercase,
    /// Removes combining marks.
    StripAccents,
    /// Replaces every occurrence of a string.
    Replace {
        /// String to replace; not empty.
        from: String,
        /// Replacement.
        to: String,
    },
    /// Prepends a string to every part of the text.
    Prepend(String),
    /// Prepends a string to the text, unless the text starts with it or with a special token.
    PrependFirst(String),
    /// Prepends a string to every part of the text that does not start with it.
    PrependIfAbsent(String),
    /// Trims whitespace.
    Trim {
        /// At the start.
        left: bool,
        /// At the end.
        right: bool,
    },
    /// SentencePiece's precompiled character map.
    Charsmap(Charsmap),
    /// Replaces runs of two or more spaces.
    ReplaceSpaceRuns(String),
    /// Prepends a string to every word and removes the whitespace between words.
    PrefixWords(String),
    /// Collapses runs of spaces and trims them at both ends.
    CollapseSpaces,
    /// BERT's `BertNormalizer`.
    Bert {
        /// Removes control characters.
        clean_text: bool,
        /// Puts spaces around Chinese characters.
        handle_chinese_chars: bool,
        /// Removes accents.
        strip_accents: bool,
        /// Converts to lower case.
        lowercase: bool,
    },
}

impl Normalize {
    /// Applies the step to a part of the text. `first` is true for the part that starts the text.
    pub(super) fn apply<'t>(&self, text: Cow<'t, str>, first: bool) -> Cow<'t, str> {
        if text.is_empty() {
            return text;
        }
        match self {
            // ASCII is invariant under all four forms.
            Normalize::Nfc | Normalize::Nfd | Normalize::Nfkc | Normalize::Nfkd
                if text.is_ascii() =>
            {
                text
            }
            Normalize::Nfc if is_nfc_quick(text.chars()) == IsNormalized::Yes => text,
            Normalize::Nfc => {
                normalize_as_unicode_9(&text, |part, out| out.extend(part.nfc())).into()
            }
            Normalize::Nfd => {
                normalize_as_unicode_9(&text, |part, out| out.extend(part.nfd())).into()
            }
            Normalize::Nfkc => {
                normalize_as_unicode_9(&text, |part, out| out.extend(part.nfkc())).into()
            }
            Normalize::Nfkd => {
                normalize_as_unicode_9(&text, |part, out| out.extend(part.nfkd())).into()
            }
            Normalize::Lowercase => text.to_lowercase().into(),
            Normalize::StripAccents => strip_accents(&text).into(),
            Normalize::Replace { from, to } => {
                if from.is_empty() || !text.contains(from.as_str()) {
                    text
                } else {
                    text.replace(from.as_str(), to).into()
                }
            }
            Normalize::Prepend(prefix) => format!("{prefix}{text}").into(),
            Normalize::PrependFirst(_) if !first => text,
            Normalize::PrependFirst(prefix) | Normalize::PrependIfAbsent(prefix) => {
                if text.starts_with(prefix.as_str()) {
                    text
                } else {
                    format!("{prefix}{text}").into()
                }
            }
            Normalize::Trim { left, right } => {
                let mut rest = text.as_ref();
                if *left {
                    rest = rest.trim_start();
                }
                if *right {
                    rest = rest.trim_end();
                }
                rest.to_owned().into()
            }
            Normalize::Charsmap(map) => map.apply(&text).into(),
            Normalize::ReplaceSpaceRuns(to) => replace_space_runs(&text, to).into(),
            Normalize::PrefixWords(mark) => text
                .split_whitespace()
                .flat_map(|word| [mark, word])
                .collect::<String>()
                .into(),
            Normalize::CollapseSpaces => collapse_spaces(&text).into(),
            Normalize::Bert {
                clean_text,
                handle_chinese_chars,
                strip_accents,
                lowercase,
            } => bert(
                &text,
                *clean_text,
                *handle_chinese_chars,
                *strip_accents,
                *lowercase,
            )
            .into(),
        }
    }
}

/// Normalizes `text` as of Unicode 9.
fn normalize_as_unicode_9(text: &str, form: impl Fn(&str, &mut String)) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(is_after_unicode_9) {
        let (part, tail) = rest.split_at(at);
        form(part, &mut out);
        let mut tail = tail.chars();
        out.extend(tail.next());
        rest = tail.as_str();
    }
    form(rest, &mut out);
    out
}

/// True if normalization of `c` was defined after Unicode 9. The reference library, and so every
/// tokenizer trained with it, normalizes by Unicode 9 and leaves such characters alone.
fn is_after_unicode_9(c: char) -> bool {
    let after = AFTER_UNICODE_9.partition_point(|&(first, _)| first <= c);
    let range = after.checked_sub(1).and_then(|at| AFTER_UNICODE_9.get(at));
    range.is_some_and(|&(_, last)| c <= last)
}

#[rustfmt::skip]
const AFTER_UNICODE_9: &[(char, char)] = &[
    ('\u{558}', '\u{558}'), ('\u{58b}', '\u{58c}'), ('\u{5c8}', '\u{5c9}'),
    ('\u{7fd}', '\u{7fd}'), ('\u{897}', '\u{89f}'), ('\u{8ca}', '\u{8d3}'),
    ('\u{9fe}', '\u{9fe}'), ('\u{c3c}', '\u{c3c}'), ('\u{d3b}', '\u{d3c}'),
    ('\u{eba}', '\u{eba}'), ('\u{1715}', '\u{1715}'), ('\u{1abf}', '\u{1af0}'),
    ('\u{1df6}', '\u{1dfa}'), ('\u{209d}', '\u{209f}'), ('\u{32ff}', '\u{32ff}'),
    ('\u{a7f1}', '\u{a7f4}'), ('\u{a82c}', '\u{a82c}'), ('\u{ab69}', '\u{ab69}'),
    ('\u{105c9}', '\u{105c9}'), ('\u{105d2}', '\u{105d2}'), ('\u{105da}', '\u{105da}'),
    ('\u{105e4}', '\u{105e4}'), ('\u{10781}', '\u{10785}'), ('\u{10787}', '\u{107b0}'),
    ('\u{107b2}', '\u{107bf}'), ('\u{10d24}', '\u{10d27}'), ('\u{10d69}', '\u{10d6d}'),
    ('\u{10eab}', '\u{10eac}'), ('\u{10ecb}', '\u{10ecf}'), ('\u{10ef0}', '\u{10efb}'),
    ('\u{10efd}', '\u{10eff}'), ('\u{10f46}', '\u{10f50}'), ('\u{10f82}', '\u{10f85}'),
    ('\u{11070}', '\u{11070}'), ('\u{1133b}', '\u{1133b}'), ('\u{11382}', '\u{11385}'),
    ('\u{1138b}', '\u{1138b}'), ('\u{1138e}', '\u{1138e}'), ('\u{11390}', '\u{11391}'),
    ('\u{113b8}', '\u{113b8}'), ('\u{113bb}', '\u{113bb}'), ('\u{113c2}', '\u{113c2}'),
    ('\u{113c5}', '\u{113c5}'), ('\u{113c7}', '\u{113c9}'), ('\u{113ce}', '\u{113d0}'),
    ('\u{1145e}', '\u{1145e}'), ('\u{11839}', '\u{1183a}'), ('\u{11930}', '\u{11930}'),
    ('\u{11935}', '\u{11935}'), ('\u{11938}', '\u{11938}'), ('\u{1193d}', '\u{1193e}'),
    ('\u{11943}', '\u{11943}'), ('\u{119e0}', '\u{119e0}'), ('\u{11a34}', '\u{11a34}'),
    ('\u{11a47}', '\u{11a47}'), ('\u{11a99}', '\u{11a99}'), ('\u{11d42}', '\u{11d42}'),
    ('\u{11d44}', '\u{11d45}'), ('\u{11d97}', '\u{11d97}'), ('\u{11f41}', '\u{11f42}'),
    ('\u{1611e}', '\u{16129}'), ('\u{1612f}', '\u{1612f}'), ('\u{16d63}', '\u{16d63}'),
    ('\u{16d67}', '\u{16d6a}'), ('\u{16ff0}', '\u{16ff1}'), ('\u{1b123}', '\u{1b126}'),
    ('\u{1ccd6}', '\u{1ccf9}'), ('\u{1d127}', '\u{1d128}'), ('\u{1d250}', '\u{1d252}'),
    ('\u{1d25b}', '\u{1d25c}'), ('\u{1d25f}', '\u{1d25f}'), ('\u{1d280}', '\u{1d281}'),
    ('\u{1d6a6}', '\u{1d6a6}'), ('\u{1df95}', '\u{1df95}'), ('\u{1dfcd}', '\u{1dfff}'),
    ('\u{1e030}', '\u{1e06d}'), ('\u{1e08f}', '\u{1e08f}'), ('\u{1e130}', '\u{1e136}'),
    ('\u{1e2ae}', '\u{1e2ae}'), ('\u{1e2ec}', '\u{1e2ef}'), ('\u{1e4ec}', '\u{1e4ef}'),
    ('\u{1e5ee}', '\u{1e5ef}'), ('\u{1e6e3}', '\u{1e6e3}'), ('\u{1e6e6}', '\u{1e6e6}'),
    ('\u{1e6ee}', '\u{1e6ef}'), ('\u{1e6f5}', '\u{1e6f5}'), ('\u{1f16c}', '\u{1f16c}'),
    ('\u{1fbf0}', '\u{1fbf9}'),
];

fn strip_accents(text: &str) -> String {
    text.chars()
        .filter(|&c| !Class::of(c).is(Class::MARK))
        .collect()
}

fn replace_space_runs(text: &str, to: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut spaces = 0;
    for c in text.chars().map(Some).chain([None]) {
        if c == Some(' ') {
            spaces += 1;
            continue;
        }
        match spaces {
            0 => {}
            1 => out.push(' '),
            _ => out.push_str(to),
        }
        spaces = 0;
        out.extend(c);
    }
    out
}

fn collapse_spaces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

fn bert(
    text: &str,
    clean_text: bool,
    handle_chinese_chars: bool,
    no_accents: bool,
    lowercase: bool,
) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let class = Class::of(c);
        if clean_text && class.is(Class::SPACE) {
            out.push(' ');
        } else if clean_text && (c == '\0' || c == '\u{fffd}' || class.is(Class::CONTROL)) {
            // Removed.
        } else if handle_chinese_chars && is_chinese(c) {
            out.extend([' ', c, ' ']);
        } else {
            out.push(c);
        }
    }
    if no_accents {
        out = out
            .nfd()
            .filter(|&c| !Class::of(c).is(Class::NONSPACING_MARK))
            .collect();
    }
    if lowercase {
        out.chars().flat_map(char::to_lowercase).collect()
    } else {
        out
    }
}

/// Chinese character blocks of BERT. U+2B920 (for U+2B820) is a typo of the reference code, kept because
/// tokenizers were trained with it.
fn is_chinese(c: char) -> bool {
    matches!(c,
        '\u{4e00}'..='\u{9fff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{20000}'..='\u{2a6df}'
        | '\u{2a700}'..='\u{2b73f}'
        | '\u{2b740}'..='\u{2b81f}'
        | '\u{2b920}'..='\u{2ceaf}'
        | '\u{f900}'..='\u{faff}'
        | '\u{2f800}'..='\u{2fa1f}')
}

/// SentencePiece's `precompiled_charsmap`: a double-array trie from strings to replacements.
#[derive(Clone, Debug)]
pub struct Charsmap {
    units: Vec<u32>,
    /// Zero-terminated replacements.
    replacements: Vec<u8>,
}

impl Charsmap {
    /// Parses the blob: trie size in bytes, trie, replacements.
    pub fn parse(blob: &[u8]) -> Result<Charsmap> {
        let invalid = |problem: &str| TokenizerError::invalid("precompiled_charsmap", problem);
        let (size, rest) = blob
            .split_first_chunk::<4>()
            .ok_or_else(|| invalid("shorter than its header"))?;
        let size = u32::from_le_bytes(*size) as usize;
        let (trie, replacements) = rest
            .split_at_checked(size)
            .ok_or_else(|| invalid("the trie is longer than the map"))?;
        if !size.is_multiple_of(4) {
            return Err(invalid("the trie size is not a multiple of 4 bytes"));
        }
        let units = trie
            .chunks_exact(4)
            .map(|unit| unit.try_into().map_or(0, u32::from_le_bytes))
            .collect();
        Ok(Charsmap {
            units,
            replacements: replacements.to_vec(),
        })
    }

    /// Serializes the map for [`Charsmap::parse`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let trie = self.units.iter().flat_map(|unit| unit.to_le_bytes());
        let size = (4 * self.units.len()) as u32;
        let mut blob = size.to_le_bytes().to_vec();
        blob.extend(trie);
        blob.extend(&self.replacements);
        blob
    }

    fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let (len, replacement) = self.longest_match(rest.as_bytes()).unwrap_or((0, b""));
            // Entries that split a character or map to invalid UTF-8 are ignored.
            match (rest.get(len..), std::str::from_utf8(replacement)) {
                (Some(tail), Ok(replacement)) if len > 0 => {
                    out.push_str(replacement);
                    rest = tail;
                }
                _ => {
                    out.push(c);
                    rest = rest.get(c.len_utf8()..).unwrap_or_default();
                }
            }
        }
        out
    }

    /// Longest entry that `text` starts with: length and replacement.
    fn longest_match(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let offset = |unit: u32| (unit >> 10) << ((unit & 1 << 9) >> 6);
        let unit = |at: u32| self.units.get(at as usize).copied();
        let mut node = offset(unit(0)?);
        let mut found = None;
        for (i, &byte) in text.iter().enumerate() {
            node ^= u32::from(byte);
            let Some(entry) = unit(node) else { break };
            if byte == 0 || entry & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            node ^= offset(entry);
            if entry >> 8 & 1 == 1 {
                let Some(leaf) = unit(node) else { break };
                found = Some((i + 1, (leaf & !(1 << 31)) as usize));
            }
        }
        let (len, start) = found?;
        let tail = self.replacements.get(start..)?;
        let end = tail.iter().position(|&byte| byte == 0)?;
        tail.get(..end).map(|replacement| (len, replacement))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(step: Normalize, text: &str) -> String {
        step.apply(text.into(), true).into_owned()
    }

    #[test]
    fn normalization_steps() {
        assert_eq!(apply(Normalize::Nfc, "e\u{301}"), "é");
        assert_eq!(apply(Normalize::Nfkc, "ﬁ"), "fi");
        assert_eq!(apply(Normalize::CollapseSpaces, "  a  b "), "a b");
        assert_eq!(apply(Normalize::Prepend("▁".into()), "▁a"), "▁▁a");
        assert_eq!(apply(Normalize::PrependIfAbsent("▁".into()), "▁a"), "▁a");
        assert_eq!(
            Normalize::PrependFirst("▁".into()).apply("a".into(), false),
            "a"
        );
        let replace = Normalize::Replace {
            from: " ".into(),
            to: "▁".into(),
        };
        assert_eq!(apply(replace, "a b"), "a▁b");
    }

    #[test]
    fn characters_newer_than_unicode_9_are_unchanged() {
        assert!(AFTER_UNICODE_9.is_sorted());
        // U+1ABF has a combining class since Unicode 13, so NFC would swap it with U+0334.
        assert_eq!(
            apply(Normalize::Nfc, "a\u{1abf}\u{334}"),
            "a\u{1abf}\u{334}"
        );
        assert_eq!(apply(Normalize::Nfc, "a\u{301}\u{334}"), "á\u{334}");
        assert_eq!(apply(Normalize::Nfkc, "\u{32ff}\u{33ff}"), "\u{32ff}gal");
    }

    #[test]
    fn bert_normalizer_cleans_spaces_and_accents() {
        let step = Normalize::Bert {
            clean_text: true,
            handle_chinese_chars: true,
            strip_accents: true,
            lowercase: true,
        };
        assert_eq!(apply(step, "Café\u{0}\t漢字É"), "cafe  漢  字 e");
    }

    #[test]
    fn malformed_charsmap_is_rejected_or_ignored() {
        assert!(Charsmap::parse(&[]).is_err());
        assert!(Charsmap::parse(&[255, 255, 255, 255, 0]).is_err());
        assert!(Charsmap::parse(&[3, 0, 0, 0, 1, 2, 3]).is_err());
        for fill in 0..=255 {
            let mut blob = vec![64, 0, 0, 0];
            blob.extend([fill; 70]);
            let map = Charsmap::parse(&blob).unwrap();
            map.apply("any text — 漢字 \u{0} works");
        }
    }
}
