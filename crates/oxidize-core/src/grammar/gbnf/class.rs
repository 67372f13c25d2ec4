//! [`Class`]: a set of characters.

/// Sorted, disjoint ranges of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Class(Vec<(u32, u32)>);

/// Code points that are not characters: halves of UTF-16 surrogate pairs.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);
const LAST: u32 = char::MAX as u32;

impl Class {
    pub(super) fn new(ranges: Vec<(char, char)>, negated: bool) -> Class {
        let ranges = ranges.into_iter().map(|(a, b)| (a as u32, b as u32));
        let class = Class(merge(ranges.collect()));
        if negated { class.negate() } else { class }
    }

    pub(super) fn one(character: char) -> Class {
        Class(vec![(character as u32, character as u32)])
    }

    pub(super) fn any() -> Class {
        Class::new(Vec::new(), true)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn negate(&self) -> Class {
        // Surrogates belong neither to a class nor to its complement.
        let mut excluded = self.0.clone();
        excluded.push(SURROGATES);
        let mut rest = Vec::new();
        let mut from = 0;
        for (first, last) in merge(excluded) {
            if from < first {
                rest.push((from, first - 1));
            }
            from = last + 1;
        }
        if from <= LAST {
            rest.push((from, LAST));
        }
        Class(rest)
    }

    /// Equivalent regular expression, with every character as a code point.
    pub(super) fn regex(&self) -> String {
        use std::fmt::Write;
        let mut text = String::from("[");
        for &(first, last) in &self.0 {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{{{first:x}}}");
            if last > first {
                let _ = write!(text, "-\\x{{{last:x}}}");
            }
        }
        text.push(']');
        text
    }

    /// First bytes of the UTF-8 encodings of the characters.
    pub(super) fn first_bytes(&self) -> ByteSet {
        let mut bytes = ByteSet::default();
        for &(first, last) in &self.0 {
            // Among characters of equal UTF-8 length, the first byte increases with the code point.
            for (low, high) in [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, LAST)] {
                if first <= high && last >= low {
                    bytes.add_range(first_byte(first.max(low)), first_byte(last.min(high)));
                }
            }
        }
        bytes
    }
}

fn merge(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn first_byte(code: u32) -> u8 {
    match code {
        0..=0x7F => code as u8,
        0x80..=0x7FF => 0xC0 | (code >> 6) as u8,
        0x800..=0xFFFF => 0xE0 | (code >> 12) as u8,
        _ => 0xF0 | (code >> 18) as u8,
    }
}

/// Set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ByteSet([u32; 8]);

impl ByteSet {
    fn add_range(&mut self, first: u8, last: u8) {
        for byte in first..=last {
            if let Some(word) = self.0.get_mut(usize::from(byte / 32)) {
                *word |= 1 << (byte % 32);
            }
        }
    }

    /// Adds `other`. Returns true if the set grew.
    pub(super) fn add(&mut self, other: ByteSet) -> bool {
        let before = *self;
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
        *self != before
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == ByteSet::default()
    }

    pub(super) fn intersects(&self, other: ByteSet) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }

    /// Bit set: 32 bytes per word, lowest bit first.
    pub(super) fn words(&self) -> Vec<u32> {
        self.0.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negated_class_is_the_complement() {
        let class = Class::new(
            vec![('a', 'z'), ('c', 'e'), ('\u{10FFFF}', '\u{10FFFF}')],
            true,
        );
        let expected = [(0, 0x60), (0x7B, 0xD7FF), (0xE000, 0x10FFFE)];
        assert_eq!(class.0, expected);
        assert!(Class::new(vec![('\0', '\u{10FFFF}')], true).is_empty());
    }

    #[test]
    fn first_bytes_match_utf8() {
        for (first, last) in [('a', 'z'), ('é', 'ж'), ('ࠀ', '一'), ('~', '😀')] {
            let bytes = Class::new(vec![(first, last)], false).first_bytes();
            let mut expected = ByteSet::default();
            for character in first..=last {
                let byte = character.to_string().as_bytes()[0];
                expected.add_range(byte, byte);
            }
            assert_eq!(bytes, expected, "{first}-{last}");
        }
    }
}
