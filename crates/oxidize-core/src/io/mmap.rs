//! Read-only memory map of a whole file. Together with [`huge`](super::huge) the only unsafe code
//! of the file layer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::huge;

/// File as a slice of memory. The system reads pages on first access.
#[derive(Debug)]
pub(super) struct Map {
    map: memmap2::Mmap,
    file: File,
    pages: Mutex<Pages>,
}

/// Backing of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// The file. `may_copy` allows copying it to huge pages.
    File { may_copy: bool },
    /// Huge pages: for some ranges, or for all requested ones.
    Huge { all: bool },
}

impl Map {
    /// Maps `file`. `huge_pages` allows copying its pages to huge pages later.
    pub(super) fn new(file: File, huge_pages: bool) -> io::Result<Map> {
        // SAFETY: the map is read-only and owns its address range until it is dropped, so slices of
        // it stay valid. Another process may change or truncate the file meanwhile, which cannot be
        // prevented from here. Parsed sizes are therefore copied and never read twice, tensor bytes
        // are plain numbers for which every bit pattern is valid, and users who share files with
        // untrusted writers disable mapping (`OpenOptions::mmap`).
        let map = unsafe { memmap2::Mmap::map(&file) }?;
        Ok(Map {
            map,
            file,
            pages: Mutex::new(Pages::File {
                may_copy: huge_pages,
            }),
        })
    }

    /// Requests that the system reads the whole file ahead.
    pub(super) fn will_need(&self) {
        #[cfg(unix)]
        // The advice may fail; pages are then read on first access.
        let _ = self.map.advise(memmap2::Advice::WillNeed);
    }

    /// Copies parts of the file to huge pages, if the system has them and enough memory. Only the
    /// first call has an effect.
    pub(super) fn use_huge_pages(&self, wanted: &[Range<usize>]) {
        let mut pages = self.pages();
        if *pages != (Pages::File { may_copy: true }) {
            return;
        }
        *pages = match huge::is_worth_it(self.len()) {
            true => Pages::Huge {
                // SAFETY: `self` is a read-only map of the whole of `self.file`, and it cannot be
                // unmapped while it is borrowed.
                all: unsafe { huge::use_huge_pages(self, &self.file, wanted) },
            },
            false => Pages::File { may_copy: false },
        };
    }

    /// Releases the memory of a part of the file, which is read again on the next access.
    pub(super) fn release(&self, part: Range<usize>) {
        // Holds the lock, because releasing pages that were copied meanwhile would lose their
        // contents.
        let pages = self.pages();
        #[cfg(unix)]
        if let Pages::File { .. } = *pages {
            // SAFETY: all pages are backed by the file (`Pages::File`, under the lock), so dropping
            // them makes the next access read the same bytes from the file.
            let _ = unsafe {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                self.map
                    .unchecked_advise_range(advice, part.start, part.len())
            };
        }
        let _ = (pages, part);
    }

    /// True if all requested bytes are in huge pages.
    pub(super) fn is_in_huge_pages(&self) -> bool {
        *self.pages() == Pages::Huge { all: true }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // The pages are valid after a panic.
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

    /// Released pages of the file are read again; huge pages are not released.
    #[test]
    fn released_map_reads_the_same() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u32> = (0..20 << 20).collect();
        let content: &[u8] = bytemuck::cast_slice(&content);
        file.write_all(content).unwrap();
        let map = Map::new(file.reopen().unwrap(), true).unwrap();
        assert!(*map == *content);
        map.release(5..map.len());
        assert!(*map == *content);
        map.use_huge_pages(&[0..30 << 20, 40 << 20..map.len()]);
        map.release(0..map.len());
        assert!(*map == *content);
    }
}
