//! Partial rules: each isolates runs of some characters and leaves the text between them whole for
//! the next rule of the sequence. `None` means that no match starts at a position; deciding that
//! takes constant time, so splitting is linear.

use crate::tokenizer::unicode::{Class, char_at, class_at, skip_while};

/// Inclusive ranges of code points, sorted.
pub(crate) type Ranges = &'static [(char, char)];

pub(super) fn in_ranges(ranges: Ranges, c: char) -> bool {
    let after = ranges.partition_point(|&(first, _)| first <= c);
    after
        .checked_sub(1)
        .and_then(|i| ranges.get(i))
        .is_some_and(|&(_, last)| c <= last)
}

/// `[ranges]+`
pub(super) fn ranges(text: &str, pos: usize, ranges: Ranges) -> Option<usize> {
    let mut end = pos;
    while let Some(c) = char_at(text, end).filter(|&c| in_ranges(ranges, c)) {
        end += c.len_utf8();
    }
    (end > pos).then_some(end)
}

/// `\s?[ranges]+`
pub(super) fn spaced_ranges(text: &str, pos: usize, set: Ranges) -> Option<usize> {
    let (class, len) = class_at(text, pos);
    let after_space = if class.is(Class::SPACE) {
        ranges(text, pos + len, set)
    } else {
        None
    };
    after_space.or_else(|| ranges(text, pos, set))
}

/// `\s?[set]+`
pub(super) fn spaced_class(text: &str, pos: usize, set: Class) -> Option<usize> {
    let (class, len) = class_at(text, pos);
    let start = if class.is(Class::SPACE) {
        pos + len
    } else {
        pos
    };
    let end = skip_while(text, start, set);
    (end > start).then_some(end)
}

/// `[\r\n]`
pub(super) fn newline(text: &str, pos: usize) -> Option<usize> {
    class_at(text, pos).0.is(Class::NEWLINE).then_some(pos + 1)
}

/// `[^\n]+|[\n]+`
pub(super) fn lines(text: &str, pos: usize) -> usize {
    let rest = text.as_bytes().get(pos..).unwrap_or_default();
    let newline = rest.first() == Some(&b'\n');
    pos + rest
        .iter()
        .take_while(|&&byte| (byte == b'\n') == newline)
        .count()
}

/// `[0-9][0-9][0-9]`
pub(super) fn ascii_triple(text: &str, pos: usize) -> Option<usize> {
    let digits = text.as_bytes().get(pos..pos + 3)?;
    digits.iter().all(u8::is_ascii_digit).then_some(pos + 3)
}

/// ``[\p{P}$+<=>^~|]+``, with the back quote for Falcon.
pub(super) fn punctuation(text: &str, pos: usize, back_quote: bool) -> Option<usize> {
    let mut end = pos;
    while let Some(c) = char_at(text, end) {
        let symbol =
            matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|') || back_quote && c == '`';
        if !symbol && !Class::of(c).is(Class::PUNCTUATION) {
            break;
        }
        end += c.len_utf8();
    }
    (end > pos).then_some(end)
}

/// ` ?[^(\s|.,!?…。，、।۔،)]+`: BLOOM's regex, which excludes parentheses and bar by mistake.
pub(super) fn bloom(text: &str, pos: usize) -> Option<usize> {
    let excluded = |c: char| {
        c.is_whitespace()
            || matches!(
                c,
                '(' | '|'
                    | '.'
                    | ','
                    | '!'
                    | '?'
                    | '…'
                    | '。'
                    | '，'
                    | '、'
                    | '।'
                    | '۔'
                    | '،'
                    | ')'
            )
    };
    let start = if text.as_bytes().get(pos) == Some(&b' ') {
        pos + 1
    } else {
        pos
    };
    let mut end = start;
    while let Some(c) = char_at(text, end).filter(|&c| !excluded(c)) {
        end += c.len_utf8();
    }
    (end > start).then_some(end)
}

/// ``IMGIMG[A-I]{1,4}Z|[\t\n]|    |  |\p{N}|[\p{P}!-/:-@\[-`{-~]``: Chameleon's five rules, which
/// never overlap. (A sixth, for `<sentinel:1>`, changes nothing: the others split what it
/// isolates.)
pub(super) fn chameleon(text: &str, pos: usize) -> Option<usize> {
    let rest = text.as_bytes().get(pos..)?;
    if let Some(tail) = rest.strip_prefix(b"IMGIMG") {
        let letters = tail
            .iter()
            .take(4)
            .take_while(|byte| matches!(byte, b'A'..=b'I'))
            .count();
        if letters > 0 && tail.get(letters) == Some(&b'Z') {
            return Some(pos + 6 + letters + 1);
        }
    }
    if rest.starts_with(b"    ") {
        return Some(pos + 4);
    }
    if rest.starts_with(b"  ") {
        return Some(pos + 2);
    }
    let c = char_at(text, pos)?;
    let isolated = matches!(c, '\t' | '\n')
        || c.is_ascii_punctuation()
        || Class::of(c).is(Class::NUMBER.or(Class::PUNCTUATION));
    isolated.then_some(pos + c.len_utf8())
}

/// Rule for splitting runs of digits into groups of three from the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigitGroups {
    /// Runs of `\p{N}`, isolated.
    Numbers,
    /// `\d{1,3}(?=(?:\d{3})*\b)`: runs of `\d` that no letter follows, isolated.
    WordBoundary,
    /// `(?=(\d{3})+(?!\d))`: splits before each group; the remainder stays with the text before it.
    Split,
}

impl DigitGroups {
    /// Calls `split` with each split position, in order.
    pub(super) fn boundaries(self, text: &str, split: &mut impl FnMut(usize)) {
        let set = if self == DigitGroups::Numbers {
            Class::NUMBER
        } else {
            Class::DIGIT
        };
        let mut pos = 0;
        while pos < text.len() {
            let (class, len) = class_at(text, pos);
            if !class.is(set) {
                pos += len;
                continue;
            }
            let end = skip_while(text, pos, set);
            if self == DigitGroups::WordBoundary && is_word(text, end) {
                pos = end;
                continue;
            }
            let count = text.get(pos..end).map_or(0, |run| run.chars().count());
            if self != DigitGroups::Split {
                split(pos);
            }
            // Digits left before the next split.
            let mut left = count % 3;
            while pos < end {
                if left == 0 {
                    split(pos);
                    left = 3;
                }
                left -= 1;
                pos += class_at(text, pos).1;
            }
            if self != DigitGroups::Split {
                split(end);
            }
        }
    }
}

fn is_word(text: &str, pos: usize) -> bool {
    const WORD: Class = Class::LETTER.or(Class::MARK).or(Class::NUMBER);
    class_at(text, pos).0.is(WORD) || text.as_bytes().get(pos) == Some(&b'_')
}
