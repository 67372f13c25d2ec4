//! The merging at the heart of BPE: of all neighbours that may merge, the best pair does, until
//! none is left. `bpe` says what may merge; here is only the order, in O(n log n).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};

use super::TokenId;
use super::vocab::fold;

/// What may merge.
pub(super) trait Merges {
    /// The rank (lower merges first) and the result of merging two neighbours, whose bytes
    /// together are `joined`.
    fn find(&self, left: TokenId, right: TokenId, joined: &[u8]) -> Option<(u32, TokenId)>;
}

/// A piece of a word while it is merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// Where it begins in the word; it ends where the next one begins.
    pub(super) start: u32,
    pub(super) id: TokenId,
    /// Rank and result of merging it with the next symbol.
    rank: u32,
    joined: TokenId,
}

impl Symbol {
    pub(super) fn new(start: usize, id: TokenId) -> Symbol {
        Symbol {
            start: start as u32,
            id,
            rank: NO_RANK,
            joined: 0,
        }
    }
}

/// No merge has this rank.
pub(super) const NO_RANK: u32 = u32::MAX;

/// Longer words go through a queue; below, scanning a short array for the minimum is faster.
const SHORT: usize = 40;

/// Buffers that live from word to word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    /// The word; filled by the caller, merged in place.
    pub(super) symbols: Vec<Symbol>,
    queue: Queue,
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

const NO_LINK: u32 = u32::MAX;

impl Merger {
    /// Merges `symbols`, which tile `word`, as far as `merges` allows.
    #[inline]
    pub(super) fn run(&mut self, word: &[u8], merges: &impl Merges) {
        if self.symbols.len() < 2 {
            return;
        }
        if self.symbols.len() <= SHORT {
            self.run_short(word, merges);
        } else {
            self.run_long(word, merges);
        }
    }

    fn run_short(&mut self, word: &[u8], merges: &impl Merges) {
        let symbols = &mut self.symbols;
        for i in 0..symbols.len() - 1 {
            rate(symbols, word, i, merges);
        }
        loop {
            let mut best = 0;
            let mut best_rank = NO_RANK;
            for (i, symbol) in symbols.iter().enumerate() {
                // Of equal ranks the leftmost goes first.
                if symbol.rank < best_rank {
                    best = i;
                    best_rank = symbol.rank;
                }
            }
            if best_rank == NO_RANK {
                return;
            }
            if let Some(left) = symbols.get_mut(best) {
                left.id = left.joined;
            }
            symbols.remove(best + 1);
            rate(symbols, word, best, merges);
            if best > 0 {
                rate(symbols, word, best - 1, merges);
            }
        }
    }

    fn run_long(&mut self, word: &[u8], merges: &impl Merges) {
        let Merger {
            symbols,
            queue,
            links,
        } = self;
        let count = symbols.len();
        links.clear();
        for i in 0..count {
            let next = if i + 1 < count { i as u32 + 1 } else { NO_LINK };
            links.push(Link {
                previous: (i as u32).wrapping_sub(1),
                next,
            });
            rate(symbols, word, i, merges);
            queue.push(symbols.get(i).map_or(NO_RANK, |s| s.rank), i);
        }

        let link = |links: &[Link], at: usize| {
            links.get(at).copied().unwrap_or(Link {
                previous: NO_LINK,
                next: NO_LINK,
            })
        };
        while let Some((rank, at)) = queue.pop() {
            let Some(left) = symbols.get_mut(at) else {
                continue;
            };
            // A stale entry: the symbol has merged otherwise since, or has been swallowed.
            if left.rank != rank {
                continue;
            }
            left.id = left.joined;
            let swallowed = link(links, at).next;
            let after = link(links, swallowed as usize).next;
            if let Some(gone) = symbols.get_mut(swallowed as usize) {
                gone.rank = NO_RANK;
                gone.start = NO_LINK;
            }
            if let Some(link) = links.get_mut(at) {
                link.next = after;
            }
            if let Some(link) = links.get_mut(after as usize) {
                link.previous = at as u32;
            }
            let before = link(links, at).previous;
            for pair in [before as usize, at] {
                let left = link(links, pair);
                let rank = rate_linked(symbols, word, pair, left.next, links, merges);
                queue.push(rank, pair);
            }
        }
        symbols.retain(|symbol| symbol.start != NO_LINK);
    }
}

/// The places where a pair may merge, the lowest rank first and from left to right within a rank.
///
/// A long word has many places and few ranks (a megabyte of one letter has a dozen), and merging nearly always gives
/// pairs of a higher rank. So each rank has a list of its places, and there is a heap of ranks only.
#[derive(Debug, Default)]
struct Queue {
    ranks: BinaryHeap<Reverse<u32>>,
    places: HashMap<u32, Vec<u32>, RankHash>,
    /// The rank whose places are under way, and those left, the first one last.
    rank: u32,
    under_way: Vec<u32>,
    /// Pairs that came up meanwhile with a rank that is not higher.
    early: BinaryHeap<Reverse<u64>>,
    spare: Vec<Vec<u32>>,
}

/// Hashes a rank in a few instructions; ranks come from files, so a seed keeps them from being chosen to collide.
#[derive(Clone, Copy, Debug)]
struct RankHash(u64);

impl Default for RankHash {
    fn default() -> Self {
        RankHash(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for RankHash {
    type Hasher = RankHash;

    fn build_hasher(&self) -> RankHash {
        *self
    }
}

impl Hasher for RankHash {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, rank: u32) {
        self.0 = fold(self.0 ^ u64::from(rank), 0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Lists kept for the next word.
const MOST_SPARE: usize = 64;
const LARGEST_SPARE: usize = 4096;

impl Queue {
    fn push(&mut self, rank: u32, at: usize) {
        if rank == NO_RANK {
            return;
        }
        let busy = !(self.under_way.is_empty() && self.early.is_empty());
        if busy && rank <= self.rank {
            let entry = u64::from(rank) << 32 | at as u64;
            return self.early.push(Reverse(entry));
        }
        let places = self.places.entry(rank).or_insert_with(|| {
            self.ranks.push(Reverse(rank));
            self.spare.pop().unwrap_or_default()
        });
        places.push(at as u32);
    }

    /// The rank and place that are next.
    fn pop(&mut self) -> Option<(u32, usize)> {
        if self.under_way.is_empty() && self.early.is_empty() {
            let Reverse(rank) = self.ranks.pop()?;
            let mut places = self.places.remove(&rank).unwrap_or_default();
            // Places come in a few runs from left to right, which a stable sort merges.
            places.sort_by(|a, b| b.cmp(a));
            self.rank = rank;
            let done = std::mem::replace(&mut self.under_way, places);
            if self.spare.len() < MOST_SPARE && done.capacity() <= LARGEST_SPARE {
                self.spare.push(done);
            }
        }
        let next = self.under_way.last();
        let next = next.map(|&at| u64::from(self.rank) << 32 | u64::from(at));
        let early = self.early.peek().map(|&Reverse(entry)| entry);
        let entry = match (next, early) {
            (Some(next), Some(early)) if early < next => self.early.pop()?.0,
            (None, _) => self.early.pop()?.0,
            (Some(next), _) => {
                self.under_way.pop();
                next
            }
        };
        Some(((entry >> 32) as u32, (entry & u64::from(u32::MAX)) as usize))
    }
}

/// Finds how symbol `i` may merge with the one after it in the array.
#[inline]
fn rate(symbols: &mut [Symbol], word: &[u8], i: usize, merges: &impl Merges) {
    let end = symbols.get(i + 2).map_or(word.len(), |s| s.start as usize);
    let right = symbols.get(i + 1).map(|s| s.id);
    set_rank(symbols, word, i, right, end, merges);
}

/// As [`rate`], where the next symbol is found by its link.
fn rate_linked(
    symbols: &mut [Symbol],
    word: &[u8],
    i: usize,
    next: u32,
    links: &[Link],
    merges: &impl Merges,
) -> u32 {
    let right = symbols.get(next as usize).map(|s| s.id);
    let after = links.get(next as usize).map_or(NO_LINK, |link| link.next);
    let end = symbols
        .get(after as usize)
        .map_or(word.len(), |s| s.start as usize);
    set_rank(symbols, word, i, right, end, merges)
}

#[inline]
fn set_rank(
    symbols: &mut [Symbol],
    word: &[u8],
    i: usize,
    right: Option<TokenId>,
    end: usize,
    merges: &impl Merges,
) -> u32 {
    let Some(left) = symbols.get_mut(i) else {
        return NO_RANK;
    };
    let found = right.and_then(|right| {
        merges.find(
            left.id,
            right,
            word.get(left.start as usize..end).unwrap_or_default(),
        )
    });
    (left.rank, left.joined) = found.unwrap_or((NO_RANK, 0));
    left.rank
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges equal neighbours into the next id: ranks by id.
    struct Doubling;

    impl Merges for Doubling {
        fn find(&self, left: TokenId, right: TokenId, joined: &[u8]) -> Option<(u32, TokenId)> {
            assert_eq!(joined.len(), (1 << left) + (1 << right));
            (left == right).then_some((left, left + 1))
        }
    }

    fn merged(count: usize) -> Vec<(u32, TokenId)> {
        let mut merger = Merger::default();
        merger.symbols.extend((0..count).map(|i| Symbol::new(i, 0)));
        merger.run(&vec![b'a'; count], &Doubling);
        merger.symbols.iter().map(|s| (s.start, s.id)).collect()
    }

    #[test]
    fn short_and_long_words_merge_alike() {
        for count in 0..200 {
            let symbols = merged(count);
            let expected: Vec<TokenId> =
                (0..32).rev().filter(|bit| count >> bit & 1 == 1).collect();
            let ids: Vec<TokenId> = symbols.iter().map(|s| s.1).collect();
            assert_eq!(ids, expected, "{count}");
            let mut start = 0;
            for (at, id) in symbols {
                assert_eq!(at, start);
                start += 1 << id;
            }
        }
    }

    /// Merges as a table of pairs says, in which ranks may fall as words grow.
    struct Table(Vec<Option<(u32, TokenId)>>);

    const IDS: u32 = 12;

    impl Merges for Table {
        fn find(&self, left: TokenId, right: TokenId, _: &[u8]) -> Option<(u32, TokenId)> {
            self.0[(left * IDS + right) as usize]
        }
    }

    #[test]
    fn the_queue_keeps_the_order_of_a_scan_whatever_the_ranks() {
        let mut rng = crate::sampling::Rng::new(5);
        let mut below = |n: u64| (rng.next_u64() >> 16) % n;
        for round in 0..300 {
            // Few ranks, so that equal ones meet; ids grow, so that merging ends.
            let pairs = (0..IDS * IDS).map(|pair| {
                let (left, right) = (pair / IDS, pair % IDS);
                let joined = left.max(right) + 1 + below(2) as u32;
                (joined < IDS && below(3) > 0).then(|| (below(6) as u32, joined))
            });
            let table = Table(pairs.collect());
            let word = vec![b'a'; 1 + below(300) as usize];
            let ids: Vec<TokenId> = word.iter().map(|_| below(3) as u32).collect();
            let merged = |run: fn(&mut Merger, &[u8], &Table)| {
                let mut merger = Merger::default();
                let symbols = ids.iter().enumerate();
                merger
                    .symbols
                    .extend(symbols.map(|(i, &id)| Symbol::new(i, id)));
                run(&mut merger, &word, &table);
                let left = merger.symbols.iter().map(|s| (s.start, s.id));
                left.collect::<Vec<_>>()
            };
            assert_eq!(
                merged(Merger::run_long),
                merged(Merger::run_short),
                "round {round}"
            );
        }
    }

    #[test]
    fn a_long_run_does_not_take_quadratic_time() {
        assert_eq!(merged(1 << 20), [(0, 20)]);
    }
}
