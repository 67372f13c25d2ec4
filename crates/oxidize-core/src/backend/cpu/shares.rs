//! Which thread does which piece of a job: [`Shares`], behind [`Pool::each`](super::pool::Pool::each).
//!
//! Each thread has a run of neighbouring pieces, so that it reads memory in one long stream, which
//! the processor's prefetching can follow: pieces dealt out in turns take half again as long. A
//! thread that has finished its run takes half of the longest one left.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The pieces of a job that no thread has begun yet.
pub(super) struct Shares(Box<[Share]>);

/// The run of one thread, `start << 32 | end`, in a cache line that it has to itself.
#[repr(align(128))]
struct Share(AtomicU64);

// What a thread sees of another's run may be old: every change is a compare-and-swap, and nothing
// but the runs themselves hangs on it. What pieces read and write is ordered by the pool.
impl Shares {
    /// Shares of `n_threads` threads, all empty.
    pub(super) fn new(n_threads: usize) -> Shares {
        Shares((0..n_threads).map(|_| Share(AtomicU64::new(0))).collect())
    }

    /// Deals out the pieces of a new job. Nobody may be taking pieces meanwhile.
    ///
    /// # Panics
    /// If there are more than four billion pieces.
    pub(super) fn deal(&self, n_pieces: usize) {
        assert!(u32::try_from(n_pieces).is_ok());
        let n_threads = self.0.len() as u64;
        let bound = |thread: u64| n_pieces as u64 * thread / n_threads;
        for (thread, share) in (0..).zip(&self.0) {
            share
                .0
                .store(pack(bound(thread), bound(thread + 1)), Relaxed);
        }
    }

    /// The next piece for `thread`; `None` when all are begun.
    pub(super) fn next(&self, thread: usize) -> Option<usize> {
        let own = &self.0[thread];
        if let Some((piece, _)) = own.take(|start, _| start..start + 1) {
            return Some(piece as usize);
        }
        loop {
            let longest = self.0.iter().max_by_key(|share| share.len())?;
            if longest.len() == 0 {
                return None;
            }
            // Somebody else may have been faster; then we look again.
            if let Some((piece, end)) = longest.take(|start, end| start + (end - start) / 2..end) {
                // Our own run is empty, so that nobody else changes it.
                own.0.store(pack(piece + 1, end), Relaxed);
                return Some(piece as usize);
            }
        }
    }
}

impl Share {
    fn len(&self) -> u64 {
        let (start, end) = unpack(self.0.load(Relaxed));
        end - start
    }

    /// Takes a part, at the start or at the end, of a run that is not empty.
    fn take(&self, part: impl Fn(u64, u64) -> Range<u64>) -> Option<(u64, u64)> {
        let mut taken = None;
        let cut = |run| {
            let (start, end) = unpack(run);
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

fn unpack(run: u64) -> (u64, u64) {
    (run >> 32, run & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_thread_alone_gets_everything_in_long_runs() {
        let shares = Shares::new(4);
        shares.deal(64);
        let order: Vec<usize> = std::iter::from_fn(|| shares.next(1)).collect();
        let jumps = order.windows(2).filter(|w| w[1] != w[0] + 1).count();
        assert!(jumps <= 16, "{order:?}");
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..64).collect::<Vec<_>>());
    }

    #[test]
    fn threads_that_race_get_every_piece_once() {
        let shares = Shares::new(3);
        for n in [0, 1, 2, 1000] {
            let taken: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            shares.deal(n);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (shares, taken) = (&shares, &taken);
                    scope.spawn(move || {
                        while let Some(piece) = shares.next(thread) {
                            taken[piece].fetch_add(1, Relaxed);
                        }
                    });
                }
            });
            assert!(taken.iter().all(|n| n.load(Relaxed) == 1));
        }
    }
}
