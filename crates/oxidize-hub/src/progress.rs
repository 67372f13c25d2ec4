//! [`Observer`]: receives the progress of a pull.

use std::sync::atomic::{AtomicU64, Ordering};

/// Receives progress and notes. Several threads call it.
pub trait Observer: Sync {
    /// Progress of a download.
    fn progress(&self, _at: Progress<'_>) {}
    /// A note for the user: a choice, a warning, a wait.
    fn note(&self, _text: &str) {}
}

impl Observer for () {}

/// Progress of a pull.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// File in work.
    pub file: &'a str,
    /// Checksum of the file, or another identity of its bytes.
    pub digest: &'a str,
    /// Work on the file.
    pub stage: Stage,
    /// Bytes done: of the whole pull while downloading, of the file while verifying.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Work on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Bytes arrive.
    Downloading,
    /// The checksum is computed.
    Verifying,
}

/// Counts the bytes of all files of a pull.
pub(crate) struct Tally<'a> {
    pub(crate) observer: &'a dyn Observer,
    done: AtomicU64,
    total: u64,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(observer: &'a dyn Observer, total: u64) -> Tally<'a> {
        Tally {
            observer,
            done: AtomicU64::new(0),
            total,
        }
    }

    /// Adds bytes of a file.
    pub(crate) fn add(&self, file: &str, digest: &str, bytes: u64) {
        let done = self
            .done
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        let (stage, total) = (Stage::Downloading, self.total);
        self.observer.progress(Progress {
            file,
            digest,
            stage,
            done: done.min(total),
            total,
        });
    }

    /// Takes back bytes that must be fetched again.
    pub(crate) fn take_back(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }
}
