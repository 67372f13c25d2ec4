//! Threads: work for the Web Workers of a page that shares memory.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

use oxidize_core::Spawner;

/// Work of a thread, which ends when the engine does.
type Work = Box<dyn FnOnce() + Send>;

/// Work that waits for a worker.
static QUEUE: Mutex<Vec<Work>> = Mutex::new(Vec::new());
static READY: Condvar = Condvar::new();

/// A spawner that gives work to workers which call [`run`].
pub(crate) fn spawner() -> Spawner {
    if !cfg!(target_feature = "atomics") {
        return Spawner::none();
    }
    Spawner::new(|_, work| {
        let mut queue = QUEUE.lock().map_err(|_| io::Error::other("poisoned"))?;
        queue.push(work);
        drop(queue);
        READY.notify_one();
        Ok(())
    })
}

/// Runs the work of one thread after the other.
pub(crate) fn run() {
    loop {
        let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
        let work = loop {
            match queue.pop() {
                Some(work) => break work,
                None => queue = READY.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        work();
    }
}
