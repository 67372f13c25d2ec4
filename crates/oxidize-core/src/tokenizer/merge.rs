//! BPE merging in O(n log n): repeatedly merges the adjacent pair of lowest rank until no pair can
//! merge. `bpe` defines which pairs can.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};

use super::TokenId;
use super::vocab::fold;

/// Merge table.
pub(super) trait Merges {
    /// Rank (lower merges first) and result of merging two adjacent symbols with the bytes
    /// `joined`.
    fn find(&self, left: TokenId, right: TokenId, joined: &[u8]) -> Option<(u32, TokenId)>;
}

/// Symbol of a word during merging.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// Start in the word; the symbol ends where the next one starts.
    pub(super) start: u32,
    pub(super) id: TokenId,
    /// Rank and result of merging with the next symbol.
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

/// Marks a pair that cannot merge.
pub(super) const NO_RANK: u32 = u32::MAX;

/// Longest word, in symbols, that is merged by scanning for the minimum; longer words use a queue.
const MAX_SCANNED: usize = 40;

/// Buffers reused from word to word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    /// Symbols of the word: filled by the caller, merged in place.
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
    /// Merges `symbols`, which cover `word`, until no pair can merge.
    #[inline]
    pub(super) fn run(&mut self, word: &[u8], merges: &impl Merges) {
        if self.symbols.len() < 2 {
            return;
        }
        if self.symbols.len() <= MAX_SCANNED {
            self.run_short(word, merges);
        } else {
            self.run_long(word, merges);
        }
    }

    fn run_short(&mut self, word: &[u8], merges: &impl Merges) {
        let symbols = &mut self.symbols;
        for i in 0..symbols.len() - 1 {
            update_rank(symbols, word, i, merges);
        }
        loop {
            let mut best = 0;
            let mut best_rank = NO_RANK;
            for (i, symbol) in symbols.iter().enumerate() {
                // The leftmost of equal ranks merges first.
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
            update_rank(symbols, word, best, merges);
            if best > 0 {
                update_rank(symbols, word, best - 1, merges);
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
            update_rank(symbols, word, i, merges);
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
            // Stale entry: the symbol was merged differently since, or was removed.
            if left.rank != rank {
                continue;
            }
            left.id = left.joined;
            let right = link(links, at).next;
            let after = link(links, right as usize).next;
            if let Some(removed) = symbols.get_mut(right as usize) {
                removed.rank = NO_RANK;
                removed.start = NO_LINK;
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
                let rank = update_linked_rank(symbols, word, pair, left.next, links, merges);
                queue.push(rank, pair);
            }
        }
        symbols.retain(|symbol| symbol.start != NO_LINK);
    }
}

/// Priority queue of mergeable pairs: lowest rank first, left to right within a rank.
///
/// A long word has many positions and few ranks (a megabyte of one letter has a dozen), and merging
/// nearly always yields pairs of higher rank. So each rank has a list of positions, and only the
/// ranks are in a heap.
#[derive(Debug, Default)]
struct Queue {
    ranks: BinaryHeap<Reverse<u32>>,
    positions: HashMap<u32, Vec<u32>, RankHash>,
    /// Rank being processed, and its remaining positions in descending order.
    rank: u32,
    remaining: Vec<u32>,
    /// Pairs pushed meanwhile whose rank is not higher than the current one.
    late_pushes: BinaryHeap<Reverse<u64>>,
    spare: Vec<Vec<u32>>,
}

/// Hash of a rank in a few instructions. It is seeded because ranks come from files, which could
/// choose colliding ones.
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

/// Limits on the lists kept for the next word.
const MAX_SPARE_LISTS: usize = 64;
const MAX_SPARE_CAPACITY: usize = 4096;

impl Queue {
    fn push(&mut self, rank: u32, at: usize) {
        if rank == NO_RANK {
            return;
        }
        let busy = !(self.remaining.is_empty() && self.late_pushes.is_empty());
        if busy && rank <= self.rank {
            let entry = u64::from(rank) << 32 | at as u64;
            return self.late_pushes.push(Reverse(entry));
        }
        let positions = self.positions.entry(rank).or_insert_with(|| {
            self.ranks.push(Reverse(rank));
            self.spare.pop().unwrap_or_default()
        });
        positions.push(at as u32);
    }

    /// Pops the next rank and position.
    fn pop(&mut self) -> Option<(u32, usize)> {
        if self.remaining.is_empty() && self.late_pushes.is_empty() {
            let Reverse(rank) = self.ranks.pop()?;
            let mut positions = self.positions.remove(&rank).unwrap_or_default();
            // Positions come in a few ascending runs, which a stable sort merges.
            positions.sort_by(|a, b| b.cmp(a));
            self.rank = rank;
            let done = std::mem::replace(&mut self.remaining, positions);
            if self.spare.len() < MAX_SPARE_LISTS && done.capacity() <= MAX_SPARE_CAPACITY {
                self.spare.push(done);
            }
        }
        let next = self.remaining.last();
        let next = next.map(|&at| u64::from(self.rank) << 32 | u64::from(at));
        let late_pushes = self.late_pushes.peek().map(|&Reverse(entry)| entry);
        let entry = match (next, late_pushes) {
            (Some(next), Some(late_pushes)) if late_pushes < next => self.late_pushes.pop()?.0,
            (None, _) => self.late_pushes.pop()?.0,
            (Some(next), _) => {
                self.remaining.pop();
                next
            }
        };
        Some(((entry >> 32) as u32, (entry & u64::from(u32::MAX)) as usize))
    }
}

/// Updates the rank of symbol `i` with its successor in the array.
#[inline]
fn update_rank(symbols: &mut [Symbol], word: &[u8], i: usize, merges: &impl Merges) {
    let end = symbols.get(i + 2).map_or(word.len(), |s| s.start as usize);
    let right = symbols.get(i + 1).map(|s| s.id);
    set_rank(symbols, word, i, right, end, merges);
}

/// Updates the rank of symbol `i` with its linked successor `next`.
fn update_linked_rank(
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

    /// Merges equal neighbors into the next id; the rank is the id.
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

    /// Table of pairs whose ranks may fall as words grow.
    struct Table(Vec<Option<(u32, TokenId)>>);

    const IDS: u32 = 12;

    impl Merges for Table {
        fn find(&self, left: TokenId, right: TokenId, _: &[u8]) -> Option<(u32, TokenId)> {
            self.0[(left * IDS + right) as usize]
        }
    }

    #[test]
    fn queue_merges_in_the_same_order_as_scanning() {
        let mut rng = crate::sampling::Rng::new(5);
        let mut below = |n: u64| (rng.next_u64() >> 16) % n;
        for round in 0..300 {
            // Few ranks, so that ties occur; increasing ids, so that merging terminates.
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
    fn long_run_merges_in_subquadratic_time() {
        assert_eq!(merged(1 << 20), [(0, 20)]);
    }
}
