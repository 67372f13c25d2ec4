//! Unicode properties used by the split rules in `pretokenize`, with one table lookup per
//! character. The table (`unicode_table.rs`) is generated.

use super::unicode_table::{BLOCK_OF, BLOCKS, CLASSES};

/// Set of properties: those of a character, or those that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u16);

impl Class {
    /// `\p{Lu}` and `\p{Lt}`.
    pub(super) const UPPER: Class = Class(1);
    /// `\p{Ll}`.
    pub(super) const LOWER: Class = Class(1 << 1);
    /// `\p{Lm}` and `\p{Lo}`.
    pub(super) const OTHER_LETTER: Class = Class(1 << 2);
    /// `\p{Mn}`.
    pub(super) const NONSPACING_MARK: Class = Class(1 << 3);
    /// `\p{Mc}` and `\p{Me}`.
    pub(super) const OTHER_MARK: Class = Class(1 << 4);
    /// `\p{Nd}`.
    pub(super) const DIGIT: Class = Class(1 << 5);
    /// `\p{Nl}` and `\p{No}`.
    pub(super) const OTHER_NUMBER: Class = Class(1 << 6);
    /// `\p{P}`.
    pub(super) const PUNCTUATION: Class = Class(1 << 7);
    /// `\p{S}`.
    pub(super) const SYMBOL: Class = Class(1 << 8);
    /// `\s`.
    pub(super) const SPACE: Class = Class(1 << 9);
    /// `[\r\n]`; these are also `SPACE`.
    pub(super) const NEWLINE: Class = Class(1 << 10);
    /// `\p{Han}`, beside the general category.
    pub(super) const HAN: Class = Class(1 << 11);
    /// `\p{Cc}`, `\p{Cf}` and `\p{Co}`.
    pub(super) const CONTROL: Class = Class(1 << 12);
    /// Past the end of the text.
    pub(super) const END: Class = Class(1 << 15);

    /// `\p{L}`.
    pub(super) const LETTER: Class = Class::UPPER.or(Class::LOWER).or(Class::OTHER_LETTER);
    /// `\p{M}`.
    pub(super) const MARK: Class = Class::NONSPACING_MARK.or(Class::OTHER_MARK);
    /// `\p{N}`.
    pub(super) const NUMBER: Class = Class::DIGIT.or(Class::OTHER_NUMBER);

    /// Class of a character.
    #[inline]
    pub(super) fn of(c: char) -> Class {
        let code = c as usize;
        let block = BLOCK_OF.get(code >> 8).copied().unwrap_or(0);
        let class = BLOCKS
            .get((usize::from(block) << 8) | (code & 0xff))
            .copied()
            .unwrap_or(0);
        Class(CLASSES.get(usize::from(class)).copied().unwrap_or(0))
    }

    /// Union of two sets.
    pub(super) const fn or(self, other: Class) -> Class {
        Class(self.0 | other.0)
    }

    /// True if the sets intersect.
    #[inline(always)]
    pub(super) const fn is(self, set: Class) -> bool {
        self.0 & set.0 != 0
    }
}

// Evaluated at compile time, where an index out of range is an error.
#[allow(clippy::indexing_slicing)]
static ASCII: [u16; 256] = {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 128 {
        table[code] = CLASSES[BLOCKS[((BLOCK_OF[0] as usize) << 8) + code] as usize];
        code += 1;
    }
    table
};

/// Class and length in bytes of the character at byte `pos`; `END` and 0 past the text.
#[inline(always)]
pub(super) fn class_at(text: &str, pos: usize) -> (Class, usize) {
    match text.as_bytes().get(pos) {
        None => (Class::END, 0),
        Some(&byte) if byte < 128 => (Class(ASCII.get(usize::from(byte)).copied().unwrap_or(0)), 1),
        Some(_) => non_ascii_class_at(text, pos),
    }
}

fn non_ascii_class_at(text: &str, pos: usize) -> (Class, usize) {
    match text.get(pos..).and_then(|rest| rest.chars().next()) {
        Some(c) => (Class::of(c), c.len_utf8()),
        None => (Class::END, 0),
    }
}

/// Character at byte `pos`.
#[inline]
pub(super) fn char_at(text: &str, pos: usize) -> Option<char> {
    match text.as_bytes().get(pos) {
        Some(&byte) if byte < 128 => Some(char::from(byte)),
        Some(_) => text.get(pos..).and_then(|rest| rest.chars().next()),
        None => None,
    }
}

/// End of the run of characters in `set` that starts at `pos`.
#[inline]
pub(super) fn skip_while(text: &str, mut pos: usize, set: Class) -> usize {
    loop {
        let (class, len) = class_at(text, pos);
        if !class.is(set) {
            return pos;
        }
        pos += len;
    }
}

/// Like [`skip_while`], for at most `limit` characters.
#[inline]
pub(super) fn skip_at_most(text: &str, mut pos: usize, set: Class, limit: usize) -> usize {
    for _ in 0..limit {
        let (class, len) = class_at(text, pos);
        if !class.is(set) {
            return pos;
        }
        pos += len;
    }
    pos
}

/// Position of the first character in `set` at or after `pos`, or the end of the text.
#[inline]
pub(super) fn skip_until(text: &str, mut pos: usize, set: Class) -> usize {
    loop {
        let (class, len) = class_at(text, pos);
        if class.is(set.or(Class::END)) {
            return pos;
        }
        pos += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_known_characters() {
        for (c, class) in [
            ('A', Class::UPPER),
            ('ǅ', Class::UPPER),
            ('z', Class::LOWER),
            ('ß', Class::LOWER),
            ('あ', Class::OTHER_LETTER),
            ('ʰ', Class::OTHER_LETTER),
            ('\u{301}', Class::NONSPACING_MARK),
            ('\u{903}', Class::OTHER_MARK),
            ('7', Class::DIGIT),
            ('٣', Class::DIGIT),
            ('Ⅷ', Class::OTHER_NUMBER),
            ('½', Class::OTHER_NUMBER),
            ('_', Class::PUNCTUATION),
            ('、', Class::PUNCTUATION),
            ('+', Class::SYMBOL),
            ('🚀', Class::SYMBOL),
            ('\u{3000}', Class::SPACE),
            ('\u{ad}', Class::CONTROL),
        ] {
            assert_eq!(Class::of(c), class, "{c:?}");
        }
        assert!(Class::of('\n').is(Class::SPACE) && Class::of('\n').is(Class::NEWLINE));
        assert!(Class::of('漢').is(Class::HAN) && Class::of('漢').is(Class::LETTER));
        // Unassigned: no property, but not the end.
        assert_eq!(Class::of('\u{378}'), Class(0));
    }

    #[test]
    fn whitespace_matches_the_standard_library() {
        for c in '\0'..=char::MAX {
            assert_eq!(Class::of(c).is(Class::SPACE), c.is_whitespace(), "{c:?}");
            assert_eq!(
                class_at(c.encode_utf8(&mut [0; 4]), 0),
                (Class::of(c), c.len_utf8())
            );
        }
    }
}
