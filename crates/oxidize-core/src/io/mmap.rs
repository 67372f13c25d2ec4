//! A read-only memory map of a whole file: with [`huge`](super::huge) the only unsafe code
//! of the file layer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::huge;

/// A file as a slice of memory. The system reads a page when it is first touched.
#[derive(Debug)]
pub(super) struct Map {
    map: memmap2::Mmap,
    file: File,
    pages: Mutex<Pages>,
}

/// What is behind the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// The file; huge pages may take its place if so.
    File { may_move: bool },
    /// Memory of our own in some places, and in all that were wanted if so.
    Moved { all: bool },
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
            pages: Mutex::new(Pages::File {
                may_move: huge_pages,
            }),
        })
    }

    /// Tells the system that the whole file is about to be read.
    pub(super) fn will_need(&self) {
        #[cfg(unix)]
        // Advice only: a system that does not take it reads page by page, as it would anyway.
        let _ = self.map.advise(memmap2::Advice::WillNeed);
    }

    /// Reads parts of the file into huge pages, if the system has them and memory to spare. Only once:
    /// what is wanted later stays where it is.
    pub(super) fn settle(&self, wanted: &[Range<usize>]) {
        let mut pages = self.pages();
        if *pages != (Pages::File { may_move: true }) {
            return;
        }
        *pages = match huge::is_worth_it(self.len()) {
            true => Pages::Moved {
                // SAFETY: the map is read-only and of the whole file.
                all: unsafe { huge::settle(self, &self.file, wanted) },
            },
            false => Pages::File { may_move: false },
        };
    }

    /// Gives back the memory that a part of the file is in. Reading it again brings it back.
    pub(super) fn release(&self, part: Range<usize>) {
        // While nothing moves: pages of our own would be lost.
        let pages = self.pages();
        #[cfg(unix)]
        if let Pages::File { .. } = *pages {
            // SAFETY: the pages are those of the file, which is where they are read from again.
            let _ = unsafe {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                self.map
                    .unchecked_advise_range(advice, part.start, part.len())
            };
        }
        let _ = (pages, part);
    }

    /// Whether the bytes are in memory of the process's own.
    pub(super) fn is_settled(&self) -> bool {
        *self.pages() == Pages::Moved { all: true }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // A panic leaves the pages as they are.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::ops::Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Pages of the file come back when they are read, and pages of our own are never given back.
    #[test]
    fn what_is_released_reads_the_same() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u32> = (0..20 << 20).collect();
        let content: &[u8] = bytemuck::cast_slice(&content);
        file.write_all(content).unwrap();
        let map = Map::new(file.reopen().unwrap(), true).unwrap();
        assert!(*map == *content);
        map.release(5..map.len());
        assert!(*map == *content);
        map.settle(&[0..30 << 20, 40 << 20..map.len()]);
        map.release(0..map.len());
        assert!(*map == *content);
    }
}
