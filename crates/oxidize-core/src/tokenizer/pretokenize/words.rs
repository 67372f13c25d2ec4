//! Word rules: each covers the whole text, like the regexes of GPT-2 and its successors. A function
//! here takes a position and returns the end of the piece that starts there. It looks at a bounded
//! number of characters beyond that end, so splitting is linear.

use crate::tokenizer::unicode::{Class, char_at, class_at, skip_at_most, skip_until, skip_while};

/// Ends a run of "other" characters: whitespace, letters, numbers.
const NOT_OTHER: Class = Class::SPACE.or(Class::LETTER).or(Class::NUMBER);

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
#[inline]
pub(super) fn gpt2(text: &str, pos: usize) -> usize {
    let first = text.as_bytes().get(pos).copied();
    if first == Some(b'\'') {
        let len = contraction(text, pos, Case::Exact);
        if len > 0 {
            return pos + len;
        }
    }
    let start = if first == Some(b' ') { pos + 1 } else { pos };
    let (class, _) = class_at(text, start);
    if class.is(Class::LETTER) {
        skip_while(text, start, Class::LETTER)
    } else if class.is(Class::NUMBER) {
        skip_while(text, start, Class::NUMBER)
    } else if !class.is(NOT_OTHER.or(Class::END)) {
        skip_until(text, start, NOT_OTHER)
    } else {
        spaces(text, pos)
    }
}

/// Characters that may follow a run of punctuation in its piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    Nothing,
    /// `[\r\n]*`
    Newlines,
    /// `[\r\n/]*`
    NewlinesAndSlashes,
    /// `[\r\n/]?`
    OneNewlineOrSlash,
}

impl Tail {
    #[inline]
    fn skip(self, text: &str, mut pos: usize) -> usize {
        let bytes = text.as_bytes();
        match self {
            Tail::Nothing => {}
            Tail::Newlines => {
                while matches!(bytes.get(pos), Some(b'\r' | b'\n')) {
                    pos += 1;
                }
            }
            Tail::NewlinesAndSlashes => {
                while matches!(bytes.get(pos), Some(b'\r' | b'\n' | b'/')) {
                    pos += 1;
                }
            }
            Tail::OneNewlineOrSlash => {
                pos += usize::from(matches!(bytes.get(pos), Some(b'\r' | b'\n' | b'/')));
            }
        }
        pos
    }
}

/// cl100k family: Llama 3, Qwen, StableLM, …
///
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}|
/// ?[^\s\p{L}\p{N}]+tail|\s*[\r\n]+|\s+(?!\S)|\s+`
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cl100k {
    /// Maximum numbers per piece.
    pub(super) digits: usize,
    /// Treats `\p{M}` as letters (Qwen 3.5).
    pub(super) marks: bool,
    pub(super) tail: Tail,
}

impl Cl100k {
    /// Settings of Llama 3.
    pub(super) const LLAMA3: Cl100k = Cl100k {
        digits: 3,
        marks: false,
        tail: Tail::Newlines,
    };
    /// Settings of Qwen 2.
    pub(super) const QWEN2: Cl100k = Cl100k {
        digits: 1,
        ..Cl100k::LLAMA3
    };

    #[inline]
    pub(super) fn next(self, text: &str, pos: usize) -> usize {
        self.word(text, pos)
            .unwrap_or_else(|| spaces_after_newlines(text, pos))
    }

    /// All alternatives except those for whitespace.
    #[inline]
    pub(super) fn word(self, text: &str, pos: usize) -> Option<usize> {
        let letters = if self.marks {
            Class::LETTER.or(Class::MARK)
        } else {
            Class::LETTER
        };
        let (class, len) = class_at(text, pos);
        if class.is(letters) {
            return Some(skip_while(text, pos + len, letters));
        }
        let first = text.as_bytes().get(pos).copied();
        if first == Some(b'\'') {
            let len = contraction(text, pos, Case::Folded);
            if len > 0 {
                return Some(pos + len);
            }
        }
        if class.is(Class::NUMBER) {
            return Some(skip_at_most(text, pos, Class::NUMBER, self.digits));
        }
        let (second, second_len) = class_at(text, pos + len);
        if second.is(letters) && !class.is(Class::NEWLINE) {
            return Some(skip_while(text, pos + len + second_len, letters));
        }
        let not_other = NOT_OTHER.or(letters);
        let start = if first == Some(b' ') { pos + 1 } else { pos };
        let head = if start == pos { class } else { second };
        if !head.is(not_other.or(Class::END)) {
            return Some(self.tail.skip(text, skip_until(text, start, not_other)));
        }
        None
    }
}

/// o200k family: GPT-4o, Llama 4, Tekken, Kimi, …, which also split `camelCase`.
///
/// With U for `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]` and W for `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`:
/// `[^\r\n\p{L}\p{N}]?U*W+suffix?|[^\r\n\p{L}\p{N}]?U+W*suffix?|\p{N}{1,digits}|
/// ?[^\s\p{L}\p{N}]+tail|\s*[\r\n]+|\s+(?!\S)|\s+`
#[derive(Clone, Copy, Debug)]
pub(crate) struct O200k {
    /// Maximum numbers per piece.
    pub(super) digits: usize,
    /// Keeps `'s`, `'re`, … with the word.
    pub(super) contractions: bool,
    /// Makes runs of `\p{Han}` pieces of their own (Kimi).
    pub(super) han: bool,
    pub(super) tail: Tail,
}

const UNCASED: Class = Class::OTHER_LETTER.or(Class::MARK);

impl O200k {
    /// Settings of GPT-4o.
    pub(super) const GPT4O: O200k = O200k {
        digits: 3,
        contractions: true,
        han: false,
        tail: Tail::NewlinesAndSlashes,
    };

    #[inline]
    pub(super) fn next(self, text: &str, pos: usize) -> usize {
        let (class, len) = class_at(text, pos);
        if self.han && class.is(Class::HAN) {
            return skip_while(text, pos, Class::HAN);
        }
        if let Some(end) = self.word(text, pos, class, len) {
            return match self.contractions {
                true => end + contraction(text, end, Case::Folded),
                false => end,
            };
        }
        if class.is(Class::NUMBER) {
            return skip_at_most(text, pos, Class::NUMBER, self.digits);
        }
        let start = if text.as_bytes().get(pos) == Some(&b' ') {
            pos + 1
        } else {
            pos
        };
        if !class_at(text, start).0.is(NOT_OTHER.or(Class::END)) {
            return self.tail.skip(text, skip_until(text, start, NOT_OTHER));
        }
        spaces_after_newlines(text, pos)
    }

    fn word(self, text: &str, pos: usize, class: Class, len: usize) -> Option<usize> {
        let may_lead = !class.is(Class::NEWLINE
            .or(Class::LETTER)
            .or(Class::NUMBER)
            .or(Class::END));
        let after_lead = may_lead.then(|| self.cased(text, pos + len));
        let bare = || self.cased(text, pos);
        // As in the regex, either alternative takes the leading character if it can.
        match after_lead {
            Some(Cased::Word(end)) => Some(end),
            Some(Cased::Capitals(end)) => match bare() {
                Cased::Word(end) => Some(end),
                _ => Some(end),
            },
            Some(Cased::No) | None => match bare() {
                Cased::Word(end) | Cased::Capitals(end) => Some(end),
                Cased::No => None,
            },
        }
    }

    /// Matches `U*W+`, else `U+W*`, at `pos`.
    fn cased(self, text: &str, pos: usize) -> Cased {
        let member =
            |class: Class, set: Class| class.is(set) && !(self.han && class.is(Class::HAN));
        let mut end = pos;
        // `U*` backtracks until `W+` matches: to the last character that is in both classes.
        let mut after_uncased = None;
        loop {
            let (class, len) = class_at(text, end);
            if member(class, UNCASED) {
                after_uncased = Some(end + len);
            } else if !member(class, Class::UPPER) {
                break;
            }
            end += len;
        }
        let mut word_end = end;
        loop {
            let (class, len) = class_at(text, word_end);
            if !member(class, UNCASED.or(Class::LOWER)) {
                break;
            }
            word_end += len;
        }
        if word_end > end {
            Cased::Word(word_end)
        } else if let Some(uncased_end) = after_uncased {
            Cased::Word(uncased_end)
        } else if end > pos {
            Cased::Capitals(end)
        } else {
            Cased::No
        }
    }
}

enum Cased {
    /// `U*W+`
    Word(usize),
    /// Only `U+W*`
    Capitals(usize),
    No,
}

/// Main rule of DeepSeek V3, which leaves numbers and control characters to other rules:
/// ``[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
/// \s*[\r\n]+|\s+(?!\S)|\s+``
pub(super) fn deepseek_v3(text: &str, pos: usize) -> Option<usize> {
    const LETTERS: Class = Class::LETTER.or(Class::MARK);
    const MARKS: Class = Class::PUNCTUATION.or(Class::SYMBOL);
    let bytes = text.as_bytes();
    let first = bytes.get(pos).copied()?;
    if first.is_ascii_punctuation() {
        let letters = bytes.get(pos + 1..).unwrap_or_default();
        let n = letters
            .iter()
            .take_while(|byte| byte.is_ascii_alphabetic())
            .count();
        if n > 0 {
            return Some(pos + 1 + n);
        }
    }
    let (class, len) = class_at(text, pos);
    if class.is(LETTERS) {
        return Some(skip_while(text, pos, LETTERS));
    }
    if !class.is(Class::NEWLINE.or(MARKS)) && class_at(text, pos + len).0.is(LETTERS) {
        return Some(skip_while(text, pos + len, LETTERS));
    }
    let start = if first == b' ' { pos + 1 } else { pos };
    if class_at(text, start).0.is(MARKS) {
        return Some(Tail::Newlines.skip(text, skip_while(text, start, MARKS)));
    }
    class
        .is(Class::SPACE)
        .then(|| spaces_after_newlines(text, pos))
}

/// EXAONE MoE, whose pieces contain several words: [`Cl100k`] with
/// `[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+` for the letters.
pub(super) fn exaone_moe(text: &str, pos: usize) -> usize {
    const RULE: Cl100k = Cl100k {
        digits: 1,
        marks: false,
        tail: Tail::OneNewlineOrSlash,
    };
    let (class, len) = class_at(text, pos);
    let phrase = |mut pos: usize| loop {
        pos = skip_while(text, skip_while(text, pos, Class::LETTER), Class::MARK);
        let (class, len) = class_at(text, pos);
        if class.is(Class::LETTER) {
            continue;
        }
        if text.as_bytes().get(pos) != Some(&b' ') || !class_at(text, pos + len).0.is(Class::LETTER)
        {
            return pos;
        }
        pos += len;
    };
    if class.is(Class::LETTER) {
        return phrase(pos);
    }
    if text.as_bytes().get(pos) == Some(&b'\'') {
        let len = contraction(text, pos, Case::Folded);
        if len > 0 {
            return pos + len;
        }
    }
    if !class.is(Class::NEWLINE.or(Class::NUMBER)) && class_at(text, pos + len).0.is(Class::LETTER)
    {
        return phrase(pos + len);
    }
    RULE.next(text, pos)
}

/// Jais 2: Llama 3's rule, with whitespace split into pieces whose lengths are powers of two:
/// `\s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`.
#[derive(Default)]
pub(super) struct Jais2 {
    /// End of the current run of spaces, which has no newline before it. Searching for one at each
    /// piece would take quadratic time.
    no_newline_until: usize,
}

impl Jais2 {
    pub(super) fn next(&mut self, text: &str, pos: usize) -> usize {
        if let Some(end) = Cl100k::LLAMA3.word(text, pos) {
            return end;
        }
        if pos >= self.no_newline_until {
            let run = skip_while(text, pos, Class::SPACE);
            match last_newline(text, pos, run) {
                Some(end) => return end,
                None => self.no_newline_until = run,
            }
        }
        for count in [512, 256, 128, 64, 32, 16, 8, 4, 2, 1] {
            let end = skip_at_most(text, pos, Class::SPACE, count);
            let whole = text
                .get(pos..end)
                .is_some_and(|piece| piece.chars().count() == count);
            if whole && class_at(text, end).0.is(Class::SPACE.or(Class::END)) {
                return end;
            }
        }
        pos + class_at(text, pos).1
    }
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`, or one character that is not whitespace.
#[inline]
fn spaces_after_newlines(text: &str, pos: usize) -> usize {
    let run = skip_while(text, pos, Class::SPACE);
    last_newline(text, pos, run).unwrap_or_else(|| leave_one(text, pos, run))
}

/// `\s+(?!\S)|\s+`, or one character that is not whitespace.
#[inline]
fn spaces(text: &str, pos: usize) -> usize {
    leave_one(text, pos, skip_while(text, pos, Class::SPACE))
}

/// End of the last newline in the run `pos..end`.
fn last_newline(text: &str, pos: usize, end: usize) -> Option<usize> {
    let run = text.as_bytes().get(pos..end)?;
    run.iter()
        .rposition(|byte| matches!(byte, b'\r' | b'\n'))
        .map(|last| pos + last + 1)
}

/// End of the run of spaces `pos..end` without its last one, which belongs to the next word.
#[inline]
fn leave_one(text: &str, pos: usize, end: usize) -> usize {
    if end == pos {
        return pos + class_at(text, pos).1;
    }
    if end == text.len() {
        return end;
    }
    let last = text
        .get(pos..end)
        .and_then(|run| run.chars().next_back())
        .map_or(1, char::len_utf8);
    if end - last > pos { end - last } else { end }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Exact,
    Folded,
}

/// Length of `'s`, `'t`, `'m`, `'d`, `'re`, `'ve` or `'ll` at `pos`, or 0.
fn contraction(text: &str, pos: usize, case: Case) -> usize {
    let bytes = text.as_bytes();
    if bytes.get(pos) != Some(&b'\'') {
        return 0;
    }
    let letter = |at: usize| {
        bytes.get(at).map_or(0, |byte| match case {
            Case::Exact => *byte,
            Case::Folded => byte.to_ascii_lowercase(),
        })
    };
    match (letter(pos + 1), letter(pos + 2)) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => 3,
        // Case folding maps the long s to s.
        (0xc5, _) if case == Case::Folded && char_at(text, pos + 1) == Some('ſ') => 3,
        _ => 0,
    }
}
