//! A read-only memory map of a whole file: with [`huge`](super::huge) the only unsafe code
//! of the file layer.

use std::fs::File;
use std::io;
use std::sync::OnceLock;

use super::huge;

/// A file as a slice of memory. The system reads a page when it is first touched.
#[derive(Debug)]
pub(super) struct Map {
    map: memmap2::Mmap,
    file: File,
    /// Whether its pages are memory of our own, once that was tried.
    is_settled: OnceLock<bool>,
}

impl Map {
    /// Maps the whole of `file`. Its pages are replaced by huge ones only if `huge_pages`.
    pub(super) fn new(file: File, huge_pages: bool) -> io::Result<Map> {
        // SAFETY: the map is read-only and owns its address range until it is dropped, so the slice
        // it gives out stays valid. What cannot be ruled out from inside a process is that another
        // one writes to or truncates the file meanwhile; parsed sizes are copied out and never read
        // twice, tensor bytes are plain numbers for which every bit pattern is valid, and whoever
        // shares files with an untrusted writer turns mapping off (`OpenOptions::mmap`).
        let map = unsafe { memmap2::Mmap::map(&file) }?;
        Ok(Map {
            map,
            file,
            is_settled: match huge_pages {
                true => OnceLock::new(),
                false => OnceLock::from(false),
            },
        })
    }

    /// Tells the system that the whole file is about to be read.
    pub(super) fn will_need(&self) {
        #[cfg(unix)]
        // Advice only: a system that does not take it reads page by page, as it would anyway.
        let _ = self.map.advise(memmap2::Advice::WillNeed);
    }

    /// Reads the whole file into huge pages, if the system has them and memory to spare.
    pub(super) fn settle(&self) {
        self.is_settled.get_or_init(|| {
            // SAFETY: the map is read-only and of the whole file.
            huge::is_worth_it(self.len()) && unsafe { huge::settle(self, &self.file) }
        });
    }

    /// Whether the bytes are in memory of the process's own.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled.get().copied().unwrap_or(false)
    }
}

impl std::ops::Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
