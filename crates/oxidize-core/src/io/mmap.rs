//! A read-only memory map of a whole file: the only unsafe code of the file layer.

use std::fs::File;
use std::io;

/// A file as a slice of memory. The system reads a page when it is first touched.
#[derive(Debug)]
pub(super) struct Map(memmap2::Mmap);

impl Map {
    /// Maps the whole of `file`.
    pub(super) fn new(file: &File) -> io::Result<Map> {
        // SAFETY: the map is read-only and owns its address range until it is dropped, so the slice
        // it gives out stays valid. What cannot be ruled out from inside a process is that another
        // one writes to or truncates the file meanwhile; parsed sizes are copied out and never read
        // twice, tensor bytes are plain numbers for which every bit pattern is valid, and whoever
        // shares files with an untrusted writer turns mapping off (`OpenOptions::mmap`).
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Map(map))
    }

    /// Tells the system that the whole file is about to be read.
    pub(super) fn will_need(&self) {
        #[cfg(unix)]
        // Advice only: a system that does not take it reads page by page, as it would anyway.
        let _ = self.0.advise(memmap2::Advice::WillNeed);
    }
}

impl std::ops::Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
