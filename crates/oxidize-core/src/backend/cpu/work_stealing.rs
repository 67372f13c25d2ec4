//! Distribution of the pieces of a job over threads: [`WorkRanges`], behind [`Pool::each`](super::pool::Pool::each).
//!
//! Each thread starts with a range of neighboring pieces, so that it reads memory as one long stream, which the
//! hardware prefetcher can follow. Dealing pieces out in turns takes half again as long. A thread that has
//! finished its range steals half of the longest one left.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The pieces of a job that no thread has started, one range for each thread.
pub(super) struct WorkRanges(Box<[WorkRange]>);

/// The range of one thread, `start << 32 | end`, in a cache line of its own.
#[repr(align(128))]
struct WorkRange(AtomicU64);

// Relaxed ordering suffices: every change is a compare-and-swap on one word, and no other memory is ordered by
// it. The pool orders what the pieces read and write.
impl WorkRanges {
    /// Empty ranges for `n_threads` threads.
    pub(super) fn new(n_threads: usize) -> WorkRanges {
        WorkRanges(
            (0..n_threads)
                .map(|_| WorkRange(AtomicU64::new(0)))
                .collect(),
        )
    }

    /// Distributes the pieces of a new job. No thread may be taking pieces meanwhile.
    ///
    /// # Panics
    /// If there are 2³² pieces or more.
    pub(super) fn distribute(&self, n_pieces: usize) {
        assert!(u32::try_from(n_pieces).is_ok());
        let n_threads = self.0.len() as u64;
        let bound = |thread: u64| n_pieces as u64 * thread / n_threads;
        for (thread, range) in (0..).zip(&self.0) {
            let own = pack(bound(thread), bound(thread + 1));
            range.0.store(own, Relaxed);
        }
    }

    /// The next piece for `thread`; `None` when all have been started.
    pub(super) fn next(&self, thread: usize) -> Option<usize> {
        let own = &self.0[thread];
        if let Some((piece, _)) = own.take(|start, _| start..start + 1) {
            return Some(piece as usize);
        }
        loop {
            let longest = self.0.iter().max_by_key(|range| range.len())?;
            if longest.len() == 0 {
                return None;
            }
            // If another thread was faster, search again.
            if let Some((piece, end)) = longest.take(|start, end| start + (end - start) / 2..end) {
                // The own range is empty, and no other thread changes an empty range.
                own.0.store(pack(piece + 1, end), Relaxed);
                return Some(piece as usize);
            }
        }
    }
}

impl WorkRange {
    fn len(&self) -> u64 {
        let (start, end) = unpack(self.0.load(Relaxed));
        end - start
    }

    /// Takes a part, at the start or at the end, of a range that is not empty.
    fn take(&self, part: impl Fn(u64, u64) -> Range<u64>) -> Option<(u64, u64)> {
        let mut taken = None;
        let cut = |range| {
            let (start, end) = unpack(range);
            if start == end {
                return None;
            }
            let part = part(start, end);
            taken = Some((part.start, part.end));
            Some(if part.start == start {
                pack(part.end, end)
            } else {
                pack(start, part.start)
            })
        };
        self.0.fetch_update(Relaxed, Relaxed, cut).ok()?;
        taken
    }
}

fn pack(start: u64, end: u64) -> u64 {
    start << 32 | end
}

fn unpack(range: u64) -> (u64, u64) {
    (range >> 32, range & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_single_thread_takes_all_pieces_in_long_runs() {
        let ranges = WorkRanges::new(4);
        ranges.distribute(64);
        let order: Vec<usize> = std::iter::from_fn(|| ranges.next(1)).collect();
        let jumps = order.windows(2).filter(|w| w[1] != w[0] + 1).count();
        assert!(jumps <= 16, "{order:?}");
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..64).collect::<Vec<_>>());
    }

    #[test]
    fn racing_threads_take_every_piece_once() {
        let ranges = WorkRanges::new(3);
        for n in [0, 1, 2, 1000] {
            let taken: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            ranges.distribute(n);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (ranges, taken) = (&ranges, &taken);
                    scope.spawn(move || {
                        while let Some(piece) = ranges.next(thread) {
                            taken[piece].fetch_add(1, Relaxed);
                        }
                    });
                }
            });
            assert!(taken.iter().all(|n| n.load(Relaxed) == 1));
        }
    }
}
