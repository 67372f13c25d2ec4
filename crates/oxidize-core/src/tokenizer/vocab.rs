//! Vocabulary storage without a `String` per token: one buffer for all texts, looked up by id
//! through offsets and by text through a hash index.

use std::hash::{BuildHasher, RandomState};

use super::error::{Result, TokenizerError};
use super::{TokenId, TokenKind};

/// List of byte strings in one buffer.
#[derive(Clone, Debug, Default)]
pub struct StringTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl StringTable {
    /// Appends `text`. Fails if the strings exceed 4 GiB or 2³² entries.
    pub fn push(&mut self, text: impl AsRef<[u8]>) -> Result<()> {
        let text = text.as_ref();
        let end = self.bytes.len() + text.len();
        let (Ok(end), true) = (u32::try_from(end), self.ends.len() < u32::MAX as usize) else {
            return Err(TokenizerError::Limit {
                what: "the text of all tokens in bytes",
                limit: u32::MAX.into(),
                requested: end as u64,
            });
        };
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        Ok(())
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of string `index`.
    #[inline]
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)? as usize,
            None => 0,
        };
        self.bytes.get(start..end)
    }

    /// String `index`, if it is valid UTF-8.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.bytes(index)
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// All strings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|index| self.bytes(index))
    }

    fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for StringTable {
    /// Panics above 4 GiB; for fixed lists only.
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> StringTable {
        let mut table = StringTable::default();
        for text in texts {
            assert!(table.push(text).is_ok(), "more than 4 GiB of text");
        }
        table
    }
}

/// Hash index from strings to ids. The strings are stored elsewhere; `text` returns them by id.
#[derive(Debug)]
pub(super) struct ByteIndex {
    /// Id plus one in each occupied slot; at most half are occupied.
    slots: Vec<u32>,
    seed: u64,
}

impl ByteIndex {
    /// Builds an index over `ids`. The first of equal strings wins.
    pub(super) fn new<'t>(
        ids: impl Iterator<Item = TokenId> + Clone,
        text: impl Fn(TokenId) -> &'t [u8],
    ) -> ByteIndex {
        let slots = (ids.clone().count() * 2).next_power_of_two().max(16);
        // Random seed, so that no file can contain colliding tokens.
        let seed = RandomState::new().hash_one(slots);
        let mut index = ByteIndex {
            slots: vec![0; slots],
            seed,
        };
        for id in ids {
            let key = text(id);
            let slot = index.slot(key, hash(key, seed), &text);
            let slot = slot.and_then(|slot| index.slots.get_mut(slot));
            if let Some(slot) = slot.filter(|slot| **slot == 0) {
                *slot = id + 1;
            }
        }
        index
    }

    #[inline]
    pub(super) fn get<'t>(
        &self,
        key: &[u8],
        text: impl Fn(TokenId) -> &'t [u8],
    ) -> Option<TokenId> {
        let slot = self.slot(key, hash(key, self.seed), &text)?;
        self.slots.get(slot).and_then(|id| id.checked_sub(1))
    }

    /// Slot that holds `key`, or the empty slot where it would go.
    #[inline]
    fn slot<'t>(
        &self,
        key: &[u8],
        hash: u64,
        text: &impl Fn(TokenId) -> &'t [u8],
    ) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            match self.slots.get(slot)?.checked_sub(1) {
                None => return Some(slot),
                Some(id) if text(id) == key => return Some(slot),
                Some(_) => slot = (slot + 1) & mask,
            }
        }
    }
}

/// XOR of both halves of the 128-bit product.
#[inline]
pub(super) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Seeded multiply-and-fold hash. Words are short, so setup cost dominates.
#[inline]
pub(super) fn hash(bytes: &[u8], seed: u64) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = seed ^ (bytes.len() as u64).wrapping_mul(K);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = chunk.try_into().map_or(0, u64::from_le_bytes);
        state = fold(state ^ word, K);
    }
    let mut tail = 0;
    for &byte in chunks.remainder() {
        tail = tail << 8 | u64::from(byte);
    }
    fold(state ^ tail, K ^ 0x1234_5678_9abc_def1)
}

/// Token texts, pieces and kinds.
#[derive(Debug)]
pub(super) struct Vocab {
    texts: StringTable,
    pieces: StringTable,
    kinds: Vec<TokenKind>,
    index: ByteIndex,
}

impl Vocab {
    /// Creates a vocabulary. `pieces` are the bytes that each token adds to a text.
    pub(super) fn new(
        mut texts: StringTable,
        mut pieces: StringTable,
        kinds: Vec<TokenKind>,
    ) -> Vocab {
        texts.shrink();
        pieces.shrink();
        let index = ByteIndex::new(0..texts.len() as u32, |id| {
            texts.bytes(id as usize).unwrap_or_default()
        });
        Vocab {
            texts,
            pieces,
            kinds,
            index,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn ids(&self) -> std::ops::Range<TokenId> {
        0..self.len() as TokenId
    }

    /// Text of a token as stored in the vocabulary.
    #[inline]
    pub(super) fn text(&self, id: TokenId) -> &[u8] {
        self.texts.bytes(id as usize).unwrap_or_default()
    }

    /// Bytes that a token adds to a text.
    #[inline]
    pub(super) fn piece(&self, id: TokenId) -> &[u8] {
        self.pieces.bytes(id as usize).unwrap_or_default()
    }

    /// Kind of a token; `Unused` for an id that is out of range.
    #[inline]
    pub(super) fn kind(&self, id: TokenId) -> TokenKind {
        self.kinds
            .get(id as usize)
            .copied()
            .unwrap_or(TokenKind::Unused)
    }

    pub(super) fn set_kind(&mut self, id: TokenId, kind: TokenKind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    /// Id of the token with this stored text. The empty text has none.
    pub(super) fn find(&self, text: &[u8]) -> Option<TokenId> {
        self.index
            .get(text, |id| self.text(id))
            .filter(|_| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_by_id_and_by_text() {
        let words: Vec<String> = (0..5000).map(|i| format!("w{i}")).collect();
        let table: StringTable = words.iter().collect();
        let vocab = Vocab::new(table.clone(), table, vec![TokenKind::Normal; 5000]);
        for (id, word) in words.iter().enumerate() {
            assert_eq!(vocab.find(word.as_bytes()), Some(id as u32));
            assert_eq!(vocab.text(id as u32), word.as_bytes());
        }
        assert_eq!(vocab.find(b"w5000"), None);
        assert_eq!(vocab.text(5000), b"");
        assert_eq!(vocab.kind(5000), TokenKind::Unused);
    }

    #[test]
    fn first_of_equal_texts_wins_and_empty_text_is_no_token() {
        let table = StringTable::from_iter(["a", "", "b", "a", ""]);
        let vocab = Vocab::new(table.clone(), table, vec![TokenKind::Normal; 5]);
        assert_eq!(vocab.find(b"a"), Some(0));
        assert_eq!(vocab.find(b"b"), Some(2));
        assert_eq!(vocab.find(b""), None);
    }

    #[test]
    fn hash_depends_on_length_order_and_seed() {
        let words: [&[u8]; 6] = [b"", b"\0", b"\0\0", b"ab", b"ba", b"abcdefghi"];
        let mut hashes: Vec<u64> = words.iter().map(|word| hash(word, 7)).collect();
        hashes.push(hash(b"ab", 8));
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 7);
    }
}
