//! The thread pool of the CPU backend.
//!
//! Workers are started once. They spin briefly for the next job, then park. Work is distributed in small pieces
//! ([`super::work_stealing`]), and a job ends when its pieces are done: the pool does not wait for a worker that
//! the system has descheduled before it joined, because other workers take its pieces. So another process on
//! the machine costs the CPU time that it uses, and not a time slice at every barrier.

#![allow(unsafe_code)]

use super::work_stealing::WorkRanges;
use crate::clock::Instant;
use crate::threads::{Spawner, Thread};
use oxidize_kernels::{Kernels, QuantizedRows, SharedMatrix, TileMut};
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Time that a worker spins for the next job before it sleeps: longer than the serial work between two
/// parallel ops, and too short to count as load.
const SPIN: Duration = Duration::from_micros(80);
/// Limit on the rounds of spinning, which counts where the host has no clock.
const MAX_SPINS: usize = 10_000;

/// Threads that work together on one job at a time.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Thread>,
    /// The pieces of the current job.
    ranges: WorkRanges,
    /// Held while a job runs: one job runs at a time.
    turn: Mutex<()>,
}

struct Shared {
    /// `epoch << 32 | open << 31 | workers inside`: see [`OPEN`].
    state: AtomicU64,
    job: Mutex<Option<Job>>,
    sleepers: AtomicUsize,
    sleep: Mutex<bool>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Bit that is set while workers may still join the job of this epoch.
const OPEN: u64 = 1 << 31;
/// Mask of the number of workers inside the job.
const INSIDE: u64 = OPEN - 1;

/// A pointer to the closure that [`Pool::run`] has borrowed.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is `Sync`, so any thread may call it through a shared reference. The pointer is valid in
// every thread that dereferences it: a thread does so only while it is counted as inside a job, and
// `Pool::run`, which holds the borrow, does not return before `OPEN` is cleared and that count is zero.
unsafe impl Send for Job {}

impl Pool {
    /// A pool of `n_threads` threads, including the one that calls.
    pub fn new(n_threads: usize, spawner: &Spawner) -> Pool {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(false),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let spawn = |index: usize| {
            let shared = shared.clone();
            spawner.spawn(&format!("oxidize-{index}"), move || shared.work(index))
        };
        // If a thread is refused, the pool has fewer.
        let workers: Vec<_> = (1..n_threads.max(1))
            .map_while(|index| spawn(index).ok())
            .collect();
        Pool {
            shared,
            ranges: WorkRanges::new(workers.len() + 1),
            workers,
            turn: Mutex::new(()),
        }
    }

    /// Number of threads, including the one that calls.
    pub fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Distributes `n_pieces`, then calls `job` once on the calling thread and at most once on each worker, with
    /// the index of the thread. No two threads have the same index.
    fn run(&self, n_pieces: usize, job: &(dyn Fn(usize) + Sync)) {
        let _turn = self.turn.lock();
        self.ranges.distribute(n_pieces);
        // SAFETY: the two types differ only in the lifetime of the closure. Workers dereference the pointer only
        // between joining this epoch and leaving it. `Close` clears `OPEN`, so that none can join any more, and
        // waits until the count of workers inside is zero; it is dropped before this function returns, also
        // when `job` panics. So the pointer is not used after the borrow of `job` ends.
        let job_ptr = Job(unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(job)
        });
        *lock(&self.shared.job) = Some(job_ptr);
        let epoch = self.shared.state.load(Ordering::Relaxed) >> 32;
        self.shared
            .state
            .store(((epoch + 1) << 32) | OPEN, Ordering::SeqCst);
        if self.shared.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.shared.sleep));
            self.shared.wake.notify_all();
        }
        {
            let _close = Close(&self.shared);
            job(0);
        }
        if let Some(panic) = lock(&self.shared.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Calls `body` once with every number below `n`, on any thread, together with that thread's element of
    /// `scratch`.
    ///
    /// # Panics
    /// If `scratch` has fewer elements than the pool has threads, or if `body` panics.
    pub fn each<S: Send>(&self, n: usize, scratch: &mut [S], body: impl Fn(usize, &mut S) + Sync) {
        assert!(scratch.len() >= self.n_threads());
        if n <= 1 || self.workers.is_empty() {
            return (0..n).for_each(|piece| body(piece, &mut scratch[0]));
        }
        let scratch = DisjointPtr(scratch.as_mut_ptr());
        self.run(n, &|thread| {
            let scratch = &scratch;
            while let Some(piece) = self.ranges.next(thread) {
                // SAFETY: `thread < n_threads() <= scratch.len()` by the assertion above, so the element
                // exists. `run` passes each thread index to one thread only, and a thread drops this reference
                // before it makes the next, so it is the only reference to the element. The borrow of
                // `scratch` outlives `run`.
                body(piece, unsafe { &mut *scratch.0.add(thread) });
            }
        });
    }

    /// Splits matrices into pieces of at most `chunk` columns, and calls `body` with the index of the matrix, the
    /// columns and the tile of each piece.
    ///
    /// # Panics
    /// If there are more than [`MAX_MATRICES`].
    pub fn columns<S: Send>(
        &self,
        matrices: &mut [Matrix<'_>],
        chunk: usize,
        scratch: &mut [S],
        body: impl Fn(usize, Range<usize>, TileMut<'_>, &mut S) + Sync,
    ) {
        let shared = |m: &mut Matrix<'_>| {
            let matrix = SharedMatrix::new(m.data, m.cols);
            // SAFETY: the two types differ only in the lifetime. The result lives in `list`, which is dropped at
            // the end of this function, while `matrices` and the data that it borrows mutably live on.
            unsafe { std::mem::transmute::<SharedMatrix<'_>, SharedMatrix<'_>>(matrix) }
        };
        let mut list = [const { None }; MAX_MATRICES];
        for (place, matrix) in list[..matrices.len()].iter_mut().zip(matrices.iter_mut()) {
            *place = Some(shared(matrix));
        }
        let pieces = list
            .iter()
            .flatten()
            .map(|m| m.cols().div_ceil(chunk))
            .sum();
        self.each(pieces, scratch, |mut piece, scratch| {
            for (index, matrix) in list.iter().flatten().enumerate() {
                let here = matrix.cols().div_ceil(chunk);
                if piece < here {
                    let cols = piece * chunk..((piece + 1) * chunk).min(matrix.cols());
                    // SAFETY: two tiles are of different matrices, which are borrowed separately, or of
                    // different pieces of one matrix, whose ranges of columns are disjoint; `each` passes
                    // every piece once. So no two tiles overlap.
                    let out = unsafe { matrix.tile(0..matrix.rows(), cols.clone()) };
                    return body(index, cols, out, scratch);
                }
                piece -= here;
            }
        });
    }

    /// Splits a matrix into tiles by `rows` (ascending and disjoint) and by `width` columns, and calls `body` with
    /// the index of the rows, that of the columns, and the tile.
    ///
    /// # Panics
    /// If the ranges overlap or exceed the matrix.
    pub fn grid<S: Send>(
        &self,
        matrix: Matrix<'_>,
        rows: &[Range<usize>],
        width: usize,
        scratch: &mut [S],
        body: impl Fn(usize, usize, TileMut<'_>, &mut S) + Sync,
    ) {
        assert!(rows.windows(2).all(|pair| pair[0].end <= pair[1].start));
        let matrix = SharedMatrix::new(matrix.data, matrix.cols);
        let across = matrix.cols().div_ceil(width);
        self.each(rows.len() * across, scratch, |piece, scratch| {
            let (row, col) = (piece / across, piece % across);
            let cols = col * width..((col + 1) * width).min(matrix.cols());
            // SAFETY: the ranges of rows are disjoint by the assertion above, those of columns because they start
            // at different multiples of `width`, and `each` passes every pair of them once. So no two tiles
            // overlap.
            let out = unsafe { matrix.tile(rows[row].clone(), cols) };
            body(row, col, out, scratch);
        });
    }

    /// Splits a matrix into pieces of at most `chunk` rows, and calls `body` with the rows and their elements.
    pub fn rows<S: Send>(
        &self,
        matrix: Matrix<'_>,
        chunk: usize,
        scratch: &mut [S],
        body: impl Fn(Range<usize>, &mut [f32], &mut S) + Sync,
    ) {
        let cols = matrix.cols;
        let n_rows = matrix.data.len() / cols;
        let data = DisjointPtr(matrix.data.as_mut_ptr());
        self.each(n_rows.div_ceil(chunk), scratch, |piece, scratch| {
            let data = &data;
            let rows = piece * chunk..((piece + 1) * chunk).min(n_rows);
            // SAFETY: `rows.end <= n_rows`, and `n_rows * cols <= data.len()`, so the slice is inside the matrix,
            // which is borrowed mutably for the whole call. The pieces are disjoint ranges of rows, and `each`
            // passes every piece once, so no two slices overlap.
            let slice = unsafe {
                std::slice::from_raw_parts_mut(data.0.add(rows.start * cols), rows.len() * cols)
            };
            body(rows, slice, scratch);
        });
    }

    /// Quantizes the rows of `x` into `out`, in pieces of at most `chunk` rows.
    pub fn quantize<S: Send>(
        &self,
        kernels: &Kernels,
        x: &[f32],
        out: &mut QuantizedRows,
        chunk: usize,
        scratch: &mut [S],
    ) {
        let (n_rows, k) = (out.rows(), out.k());
        let shared = out.shared();
        self.each(n_rows.div_ceil(chunk), scratch, |piece, _| {
            let rows = piece * chunk..((piece + 1) * chunk).min(n_rows);
            // SAFETY: the pieces are disjoint ranges of rows, and `each` passes every piece once, so nothing else
            // accesses these rows while `out` lives.
            let out = unsafe { shared.rows(rows.clone()) };
            kernels.quantize_activations(&x[rows.start * k..rows.end * k], out);
        });
    }

    /// Splits `a` and `b` into `n` equal parts each, and calls `body` with each pair of parts.
    ///
    /// # Panics
    /// If `n` is 0 or does not divide a length.
    pub fn parts<A: Send, B: Send, S: Send>(
        &self,
        n: usize,
        a: &mut [A],
        b: &mut [B],
        scratch: &mut [S],
        body: impl Fn(usize, &mut [A], &mut [B], &mut S) + Sync,
    ) {
        assert!(n > 0 && a.len().is_multiple_of(n) && b.len().is_multiple_of(n));
        let (len_a, len_b) = (a.len() / n, b.len() / n);
        let (a, b) = (DisjointPtr(a.as_mut_ptr()), DisjointPtr(b.as_mut_ptr()));
        self.each(n, scratch, |piece, scratch| {
            let (a, b) = (&a, &b);
            // SAFETY: `piece < n`, and `n * len_a` and `n * len_b` are the lengths of the slices by the assertion
            // above, so the parts are inside them. Parts of different pieces are disjoint, `each` passes every
            // piece once, and both slices are borrowed mutably for the whole call.
            let (a, b) = unsafe {
                (
                    std::slice::from_raw_parts_mut(a.0.add(piece * len_a), len_a),
                    std::slice::from_raw_parts_mut(b.0.add(piece * len_b), len_b),
                )
            };
            body(piece, a, b, scratch);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        *lock(&self.shared.sleep) = true;
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // Panics in jobs were passed to the caller of the job.
            worker.join();
        }
    }
}

/// A row-major matrix that is written in pieces.
pub struct Matrix<'a> {
    /// The elements: whole rows.
    pub data: &'a mut [f32],
    /// Elements of a row.
    pub cols: usize,
}

/// Maximum number of matrices of [`Pool::columns`].
pub const MAX_MATRICES: usize = 4;

/// Pointer to the start of a slice, of which every thread accesses elements of its own.
struct DisjointPtr<T>(*mut T);

// SAFETY: a shared `DisjointPtr` gives a thread no access without `unsafe`; each use makes references to elements
// that no other thread accesses at the same time, and `T: Send` allows a thread to access elements that
// another thread owns.
unsafe impl<T: Send> Sync for DisjointPtr<T> {}

/// Ends a job when dropped: workers can no longer join, and those inside are waited for.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let state = &self.0.state;
        let mut now = state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while now & INSIDE != 0 {
            spins += 1;
            if spins < 2_000 {
                std::hint::spin_loop();
            } else {
                // A worker may need this core to finish.
                std::thread::yield_now();
            }
            now = state.load(Ordering::Acquire);
        }
    }
}

impl Shared {
    fn work(&self, index: usize) {
        let mut done = 0;
        while let Some(epoch) = self.wait(done) {
            done = epoch;
            if !self.join(epoch) {
                continue;
            }
            let job = *lock(&self.job);
            if let Some(Job(job)) = job {
                // SAFETY: `join` has counted this thread as inside the job of `epoch`, and it is counted out only
                // after the call. Until then `Close` keeps `Pool::run` from returning, so the closure is alive,
                // and `turn` keeps another job from taking its place.
                let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(index) }));
                if let Err(panic) = result {
                    *lock(&self.panic) = Some(panic);
                }
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open job of another epoch than `done`; `None` when the pool is dropped.
    fn wait(&self, done: u64) -> Option<u64> {
        let fresh = || {
            let state = self.state.load(Ordering::SeqCst);
            (state & OPEN != 0 && state >> 32 != done).then_some(state >> 32)
        };
        let start = Instant::now();
        for _ in 0..MAX_SPINS {
            for _ in 0..64 {
                if let Some(epoch) = fresh() {
                    return Some(epoch);
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                break;
            }
        }
        let mut stop = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let epoch = loop {
            if *stop {
                break None;
            }
            if let Some(epoch) = fresh() {
                break Some(epoch);
            }
            stop = self
                .wake
                .wait(stop)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        epoch
    }

    /// Counts this worker as inside the job of `epoch`; false if the job has ended.
    fn join(&self, epoch: u64) -> bool {
        let mut state = self.state.load(Ordering::Acquire);
        while state >> 32 == epoch && state & OPEN != 0 {
            match self.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }
}

/// Locks a mutex. Poison is ignored: no panic leaves the data behind these locks half written.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_runs_once() {
        for n_threads in [1, 2, 5] {
            let pool = Pool::new(n_threads, &Spawner::default());
            let mut counts = vec![0usize; pool.n_threads()];
            let done: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
            for round in 1..50 {
                pool.each(done.len(), &mut counts, |piece, count| {
                    *count += 1;
                    done[piece].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == round));
            }
            assert_eq!(counts.iter().sum::<usize>(), 49 * done.len());
        }
    }

    #[test]
    fn pieces_cover_the_matrices() {
        let pool = Pool::new(3, &Spawner::default());
        let (mut a, mut b) = (vec![0.0; 7 * 10], vec![0.0; 7 * 4]);
        let mut matrices = [
            Matrix {
                data: &mut a,
                cols: 10,
            },
            Matrix {
                data: &mut b,
                cols: 4,
            },
        ];
        pool.columns(
            &mut matrices,
            3,
            &mut [(); 3],
            |index, cols, mut tile, ()| {
                for row in 0..7 {
                    for (out, col) in tile.row(row).iter_mut().zip(cols.clone()) {
                        *out += (index * 100 + row * 10 + col) as f32;
                    }
                }
            },
        );
        assert!(a.iter().enumerate().all(|(i, &x)| x == i as f32));
        assert!(
            b.iter()
                .enumerate()
                .all(|(i, &x)| x == (100 + i / 4 * 10 + i % 4) as f32)
        );

        let matrix = Matrix {
            data: &mut a,
            cols: 10,
        };
        pool.grid(
            matrix,
            &[0..3, 4..7],
            4,
            &mut [(); 3],
            |row, col, mut tile, ()| {
                (0..tile.rows()).for_each(|r| tile.row(r).fill((row * 10 + col) as f32));
            },
        );
        assert_eq!((a[0], a[29], a[35], a[69]), (0.0, 2.0, 35.0, 12.0));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(2, &Spawner::default());
        let explode = || pool.each(100, &mut [(); 2], |piece, ()| assert!(piece != 50));
        assert!(catch_unwind(AssertUnwindSafe(explode)).is_err());
        let count = AtomicUsize::new(0);
        pool.each(100, &mut [(); 2], |_, ()| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 100);
    }

    #[test]
    fn sleeping_workers_are_woken() {
        let pool = Pool::new(2, &Spawner::default());
        for _ in 0..5 {
            std::thread::sleep(SPIN * 20);
            pool.each(64, &mut [(); 2], |_, ()| {});
        }
    }
}
