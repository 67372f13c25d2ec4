//! Byte-pair encoding: byte-level with a pre-tokenizer (GPT-2 and later), over characters with byte
//! fallback (SentencePiece), and tiktoken. `merge` implements merging, `pretokenize` splits text
//! into words.

use std::hash::{BuildHasher, RandomState};

use super::merge::{Merger, Merges, NO_RANK, Symbol};
use super::pretokenize::PreTokenizer;
use super::vocab::{ByteIndex, StringTable, Vocab, fold, hash};
use super::{TokenId, TokenKind, byte_level};

/// Marks a character that has no token.
const NO_TOKEN: TokenId = TokenId::MAX;

/// Longer words are split: positions in a word are 32 bits wide.
const MAX_WORD_BYTES: usize = 1 << 30;

#[derive(Debug)]
pub(super) struct Bpe {
    alphabet: Alphabet,
    merges: MergeTable,
    word_split: WordSplit,
    /// Tokens that merging can produce, by their key in the alphabet.
    index: ByteIndex,
    /// Token of each single byte.
    bytes: Box<[TokenId; 256]>,
    /// Takes a word that is a token as that token, whatever merging would give.
    ignore_merges: bool,
    fallback: Fallback,
}

/// Initial symbols of merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Bytes; token keys are byte strings, as in `byte_level`.
    Bytes,
    /// Characters; token keys are the stored texts.
    Characters,
}

/// Word boundaries: those of the pre-tokenizer, if there is one. Character-level BPE also splits
/// before each `▁` that no token crosses; the result is the same, and shorter words hit the cache
/// more often.
#[derive(Debug)]
struct WordSplit {
    rules: Option<PreTokenizer>,
    /// Characters that precede a `▁` inside some token.
    joined_to_space: Option<Vec<char>>,
}

/// Handling of characters without a token.
#[derive(Debug)]
pub(super) struct Fallback {
    /// Token of each byte; used if all bytes of the character have one.
    pub(super) bytes: Option<ByteTokens>,
    pub(super) unknown: Option<TokenId>,
    /// Fuses adjacent unknown tokens into one.
    pub(super) fuse: bool,
}

#[derive(Debug)]
enum MergeTable {
    /// Mergeable pairs, with rank and result.
    Pairs(PairTable),
    /// Any two adjacent symbols that together are a token may merge; ranks by resulting token.
    Tokens(Vec<u32>),
}

/// Configuration of a [`Bpe`].
pub(super) struct BpeConfig {
    pub(super) alphabet: Alphabet,
    pub(super) pre: Option<PreTokenizer>,
    pub(super) order: MergeOrder,
    pub(super) ignore_merges: bool,
    pub(super) fallback: Fallback,
}

/// Merge priority.
pub(super) enum MergeOrder {
    /// By position in a list of pairs, two strings each.
    Pairs(StringTable),
    /// By the score of the result, highest first.
    Scores(Vec<f32>),
    /// By the id of the result, lowest first (tiktoken).
    Ids,
}

impl Bpe {
    pub(super) fn new(vocab: &Vocab, config: BpeConfig) -> Bpe {
        let token_key = |id| token_key(vocab, config.alphabet, id);
        let reachable = vocab
            .ids()
            .filter(|&id| reachable(vocab, config.alphabet, id));
        let index = ByteIndex::new(reachable.clone(), token_key);
        let mut bytes = Box::new([NO_TOKEN; 256]);
        for (byte, slot) in (0..=u8::MAX).zip(bytes.iter_mut()) {
            *slot = index.get(&[byte], token_key).unwrap_or(NO_TOKEN);
        }
        let merges = match config.order {
            MergeOrder::Pairs(pairs) => {
                MergeTable::Pairs(PairTable::new(vocab, config.alphabet, &index, &pairs))
            }
            MergeOrder::Scores(scores) => {
                let mut ranks = vec![NO_RANK; vocab.len()];
                for (rank, score) in ranks.iter_mut().zip(scores) {
                    *rank = rank_of_score(score);
                }
                MergeTable::Tokens(ranks)
            }
            MergeOrder::Ids => MergeTable::Tokens(vocab.ids().collect()),
        };
        let joined_to_space = (config.alphabet == Alphabet::Characters)
            .then(|| joined_to_space(reachable.map(token_key)));
        Bpe {
            alphabet: config.alphabet,
            merges,
            word_split: WordSplit {
                rules: config.pre,
                joined_to_space,
            },
            index,
            bytes,
            ignore_merges: config.ignore_merges,
            fallback: config.fallback,
        }
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) {
        let mut word = |word| self.word(vocab, word, scratch, out);
        match (&self.word_split.rules, &self.word_split.joined_to_space) {
            (None, None) => word(text),
            (Some(rules), None) => rules.split(text, word),
            (None, Some(joined)) => split_at_spaces(text, joined, &mut word),
            (Some(rules), Some(joined)) => {
                rules.split(text, |piece| split_at_spaces(piece, joined, &mut word));
            }
        }
    }

    #[inline]
    fn word(&self, vocab: &Vocab, word: &str, scratch: &mut Scratch, out: &mut Vec<TokenId>) {
        let Scratch { merger, cache } = scratch;
        let slot = match cache.lookup(word.as_bytes()) {
            Lookup::Hit(tokens) => return out.extend_from_slice(tokens),
            Lookup::Miss(slot) => slot,
        };
        let before = out.len();
        if !(self.ignore_merges && self.push_if_token(vocab, word.as_bytes(), out)) {
            let mut rest = word;
            while !rest.is_empty() {
                let (head, tail) = rest.split_at(rest.floor_char_boundary(MAX_WORD_BYTES));
                self.merge_word(vocab, head, merger, out);
                rest = tail;
            }
        }
        if let (Some(slot), Some(tokens)) = (slot, out.get(before..)) {
            cache.insert(slot, word.as_bytes(), tokens);
        }
    }

    fn push_if_token(&self, vocab: &Vocab, word: &[u8], out: &mut Vec<TokenId>) -> bool {
        let found = self.find(vocab, word);
        out.extend(found);
        found.is_some()
    }

    #[inline]
    fn find(&self, vocab: &Vocab, bytes: &[u8]) -> Option<TokenId> {
        self.index
            .get(bytes, |id| token_key(vocab, self.alphabet, id))
    }

    #[inline]
    fn byte(&self, byte: u8) -> TokenId {
        self.bytes
            .get(usize::from(byte))
            .copied()
            .unwrap_or(NO_TOKEN)
    }

    fn merge_word(&self, vocab: &Vocab, word: &str, merger: &mut Merger, out: &mut Vec<TokenId>) {
        let bytes = word.as_bytes();
        merger.symbols.clear();
        match self.alphabet {
            Alphabet::Bytes => {
                merger.symbols.extend(
                    bytes
                        .iter()
                        .enumerate()
                        .map(|(start, &byte)| Symbol::new(start, self.byte(byte))),
                );
            }
            Alphabet::Characters => {
                for (start, c) in word.char_indices() {
                    let id = match u8::try_from(c) {
                        Ok(byte) if c.is_ascii() => self.byte(byte),
                        _ => self
                            .find(vocab, c.encode_utf8(&mut [0; 4]).as_bytes())
                            .unwrap_or(NO_TOKEN),
                    };
                    merger.symbols.push(Symbol::new(start, id));
                }
            }
        }
        match &self.merges {
            MergeTable::Pairs(pairs) => merger.run(bytes, pairs),
            MergeTable::Tokens(ranks) => merger.run(
                bytes,
                &TokenMerges {
                    bpe: self,
                    vocab,
                    ranks,
                },
            ),
        }
        let first = out.len();
        let ends = merger.symbols.iter().skip(1).map(|s| s.start as usize);
        for (symbol, end) in merger.symbols.iter().zip(ends.chain([bytes.len()])) {
            match symbol.id {
                NO_TOKEN => {
                    let unknown = bytes.get(symbol.start as usize..end).unwrap_or_default();
                    self.fallback.push(unknown, first, out);
                }
                id => out.push(id),
            }
        }
    }
}

impl Fallback {
    /// Appends the fallback tokens of `unknown`, a character without a token. The tokens of its
    /// word start at `out[first]`.
    fn push(&self, unknown: &[u8], first: usize, out: &mut Vec<TokenId>) {
        if let Some(ids) = self
            .bytes
            .as_ref()
            .and_then(|table| table.tokens_of(unknown))
        {
            return out.extend(ids);
        }
        if let Some(id) = self.unknown {
            let fuses = self.fuse && out.len() > first && out.last() == Some(&id);
            if !fuses {
                out.push(id);
            }
        }
    }
}

/// Byte tokens (`<0x41>`), indexed by byte.
#[derive(Debug)]
pub(super) struct ByteTokens(Box<[TokenId; 256]>);

impl ByteTokens {
    /// Byte tokens of a vocabulary, if it has any.
    pub(super) fn of(vocab: &Vocab) -> Option<ByteTokens> {
        let mut table = Box::new([NO_TOKEN; 256]);
        let mut any = false;
        for (byte, slot) in table.iter_mut().enumerate() {
            let name = format!("<0x{byte:02X}>");
            if let Some(id) = vocab.find(name.as_bytes()) {
                *slot = id;
                any = true;
            }
        }
        any.then_some(ByteTokens(table))
    }

    /// Tokens of `bytes`; `None` if one of the bytes has no token.
    pub(super) fn tokens_of(
        &self,
        bytes: &[u8],
    ) -> Option<impl DoubleEndedIterator<Item = TokenId>> {
        let ids = bytes
            .iter()
            .filter_map(|&byte| self.0.get(usize::from(byte)).copied());
        ids.clone().all(|id| id != NO_TOKEN).then_some(ids)
    }
}

fn token_key(vocab: &Vocab, alphabet: Alphabet, id: TokenId) -> &[u8] {
    match alphabet {
        Alphabet::Bytes => vocab.piece(id),
        Alphabet::Characters => vocab.text(id),
    }
}

/// True if merging may produce token `id`. Control tokens never come from the characters of a text,
/// and a token whose text is not byte-level encoded (Command R has some) must not replace one that
/// is.
fn reachable(vocab: &Vocab, alphabet: Alphabet, id: TokenId) -> bool {
    let is_byte_level = || {
        let text = std::str::from_utf8(vocab.text(id)).unwrap_or(" ");
        alphabet == Alphabet::Characters || text.chars().all(|c| byte_level::byte_of(c).is_some())
    };
    let text = match vocab.kind(id) {
        TokenKind::Normal | TokenKind::Unused => is_byte_level(),
        TokenKind::UserDefined => true,
        TokenKind::Control | TokenKind::Unknown | TokenKind::Byte => false,
    };
    text && !token_key(vocab, alphabet, id).is_empty()
}

/// Maps scores to ranks: the highest score has the lowest rank, and NaN merges last.
fn rank_of_score(score: f32) -> u32 {
    if score.is_nan() {
        return NO_RANK - 1;
    }
    // Float bits order as sign and magnitude; adding zero turns -0 into 0.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    };
    (u32::MAX - ascending).min(NO_RANK - 2)
}

struct TokenMerges<'a> {
    bpe: &'a Bpe,
    vocab: &'a Vocab,
    ranks: &'a [u32],
}

impl Merges for TokenMerges<'_> {
    #[inline]
    fn find(&self, _: TokenId, _: TokenId, joined: &[u8]) -> Option<(u32, TokenId)> {
        let id = self.bpe.find(self.vocab, joined)?;
        self.ranks.get(id as usize).map(|&rank| (rank, id))
    }
}

/// Open-addressing hash table of token pairs.
#[derive(Debug)]
struct PairTable {
    slots: Vec<Pair>,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    left: TokenId,
    right: TokenId,
    rank: u32,
    joined: TokenId,
}

const EMPTY: Pair = Pair {
    left: NO_TOKEN,
    right: NO_TOKEN,
    rank: NO_RANK,
    joined: 0,
};

impl PairTable {
    /// Pairs whose parts or result have no token can never merge and are skipped.
    fn new(vocab: &Vocab, alphabet: Alphabet, index: &ByteIndex, pairs: &StringTable) -> PairTable {
        let count = pairs.len() / 2;
        let slots = (count + count / 2).next_power_of_two().max(16);
        let seed = RandomState::new().hash_one(slots);
        let mut table = PairTable {
            slots: vec![EMPTY; slots],
            seed,
        };
        let mut skipped = 0;
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let find = |bytes: &[u8]| index.get(bytes, |id| token_key(vocab, alphabet, id));
        for rank in 0..count {
            decode_key(alphabet, pairs.bytes(2 * rank), &mut left);
            decode_key(alphabet, pairs.bytes(2 * rank + 1), &mut right);
            let ids = (find(&left), find(&right));
            left.extend_from_slice(&right);
            match (ids, find(&left)) {
                ((Some(left), Some(right)), Some(joined)) => {
                    table.insert(Pair {
                        left,
                        right,
                        rank: rank as u32,
                        joined,
                    });
                }
                _ => skipped += 1,
            }
        }
        if skipped > 0 {
            tracing::warn!("{skipped} of {count} merges name tokens that the vocabulary lacks");
        }
        table
    }

    fn insert(&mut self, pair: Pair) {
        let slot = self.slot(pair.left, pair.right);
        // The first of equal pairs has the better rank.
        if let Some(slot) = self.slots.get_mut(slot).filter(|slot| slot.rank == NO_RANK) {
            *slot = pair;
        }
    }

    #[inline]
    fn slot(&self, left: TokenId, right: TokenId) -> usize {
        let mask = self.slots.len() - 1;
        let key = u64::from(left) << 32 | u64::from(right);
        let mut slot = fold(key ^ self.seed, 0x9e37_79b9_7f4a_7c15) as usize & mask;
        loop {
            match self.slots.get(slot) {
                Some(found) if found.rank != NO_RANK => {
                    if found.left == left && found.right == right {
                        return slot;
                    }
                }
                _ => return slot,
            }
            slot = (slot + 1) & mask;
        }
    }
}

impl Merges for PairTable {
    #[inline]
    fn find(&self, left: TokenId, right: TokenId, _: &[u8]) -> Option<(u32, TokenId)> {
        let pair = self.slots.get(self.slot(left, right))?;
        (pair.rank != NO_RANK).then_some((pair.rank, pair.joined))
    }
}

/// Decodes one side of a merge into bytes.
fn decode_key(alphabet: Alphabet, text: Option<&[u8]>, out: &mut Vec<u8>) {
    out.clear();
    let text = text.unwrap_or_default();
    let decoded = match alphabet {
        Alphabet::Bytes => std::str::from_utf8(text).ok().and_then(byte_level::decode),
        Alphabet::Characters => None,
    };
    out.extend_from_slice(decoded.as_deref().unwrap_or(text));
}

const SPACE: &str = "▁";

/// Characters that directly precede a `▁` in some key, other than `▁` itself.
fn joined_to_space<'t>(keys: impl Iterator<Item = &'t [u8]>) -> Vec<char> {
    let mut found = Vec::new();
    for text in keys.filter_map(|text| std::str::from_utf8(text).ok()) {
        for (at, _) in text.match_indices(SPACE) {
            found.extend(text.get(..at).and_then(|head| head.chars().next_back()));
        }
    }
    found.sort_unstable();
    found.dedup();
    found.retain(|&c| c != '▁');
    found
}

/// Splits before each run of `▁`, except after a character of `joined`.
fn split_at_spaces<'t>(text: &'t str, joined: &[char], each: &mut impl FnMut(&'t str)) {
    let mut start = 0;
    let mut run_end = 0;
    for (at, space) in text.match_indices(SPACE) {
        // Only the first `▁` of a run starts a word.
        if at > start && at != run_end {
            let before = text.get(..at).and_then(|head| head.chars().next_back());
            if before.is_some_and(|c| joined.binary_search(&c).is_err()) {
                each(text.get(start..at).unwrap_or_default());
                start = at;
            }
        }
        run_end = at + space.len();
    }
    if start < text.len() {
        each(text.get(start..).unwrap_or_default());
    }
}

/// Buffers and caches that encoding reuses between calls.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    merger: Merger,
    cache: WordCache,
}

/// Direct-mapped cache of the tokens of recent words.
#[derive(Debug, Default)]
struct WordCache {
    entries: Vec<CachedWord>,
}

#[derive(Clone, Copy, Debug)]
struct CachedWord {
    word: [u8; MAX_CACHED_BYTES],
    tokens: [TokenId; MAX_CACHED_TOKENS],
    word_len: u8,
    token_count: u8,
}

const MAX_CACHED_BYTES: usize = 30;
const MAX_CACHED_TOKENS: usize = 6;
const CACHED_WORDS: usize = 1 << 13;

enum Lookup<'c> {
    Hit(&'c [TokenId]),
    /// Slot for the word, if it is short enough to be cached.
    Miss(Option<usize>),
}

impl WordCache {
    #[inline]
    fn lookup(&mut self, word: &[u8]) -> Lookup<'_> {
        if word.len() > MAX_CACHED_BYTES {
            return Lookup::Miss(None);
        }
        if self.entries.is_empty() {
            let empty = CachedWord {
                word: [0; MAX_CACHED_BYTES],
                tokens: [0; MAX_CACHED_TOKENS],
                word_len: 0,
                token_count: 0,
            };
            self.entries = vec![empty; CACHED_WORDS];
        }
        let slot = hash(word, 0) as usize & (CACHED_WORDS - 1);
        match self.entries.get(slot) {
            Some(entry) if entry.word() == word && !word.is_empty() => Lookup::Hit(
                entry
                    .tokens
                    .get(..usize::from(entry.token_count))
                    .unwrap_or_default(),
            ),
            _ => Lookup::Miss(Some(slot)),
        }
    }

    fn insert(&mut self, slot: usize, word: &[u8], tokens: &[TokenId]) {
        let Some(entry) = self.entries.get_mut(slot) else {
            return;
        };
        let (Some(space), Some(room)) = (
            entry.word.get_mut(..word.len()),
            entry.tokens.get_mut(..tokens.len()),
        ) else {
            return;
        };
        space.copy_from_slice(word);
        room.copy_from_slice(tokens);
        entry.word_len = word.len() as u8;
        entry.token_count = tokens.len() as u8;
    }
}

impl CachedWord {
    #[inline]
    fn word(&self) -> &[u8] {
        self.word
            .get(..usize::from(self.word_len))
            .unwrap_or_default()
    }
}
