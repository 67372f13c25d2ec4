//! Huge pages: memory whose address the processor looks up once for 2 MiB, not for each 4 KiB.
//!
//! A decoding step reads every weight once. On pages of 4 KiB that is a look-up every 64 cache lines,
//! which inside a virtual machine costs as much as reading them. Linux gives huge pages to memory of
//! the process's own that asks for them, but hardly ever to a mapped file, so [`settle`] puts memory
//! of our own in the place of a map's pages: same addresses, same bytes.

use std::fs::File;
use std::ops::Range;

/// What is copied at once; each piece is an entry in the process's table of maps, of which Linux
/// allows 65530.
#[cfg(target_os = "linux")]
const PIECE: usize = 32 << 20;

/// Asks for huge pages under `memory`, where the system has them.
pub(crate) fn advise<T>(memory: &mut [T]) {
    #[cfg(target_os = "linux")]
    linux::advise(memory);
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Whether it pays to [`settle`] a file of `bytes`: the system has huge pages, and memory for twice as much.
pub(super) fn is_worth_it(bytes: usize) -> bool {
    #[cfg(target_os = "linux")]
    return bytes >= 2 * PIECE && linux::are_to_be_had() && {
        let available = crate::model::available_memory().unwrap_or(0);
        bytes as u64 <= available / 2
    };
    #[cfg(not(target_os = "linux"))]
    return bytes == usize::MAX;
}

/// Replaces the pages of a map that hold `wanted` bytes by huge pages with the same bytes, read from its `file`.
/// Whether all were replaced; those that were not stay as they are. So do the ends of a range in a huge page
/// most of which nobody wants.
///
/// # Safety
/// `memory` must be a private or read-only map of `file` from its start that nobody writes to.
pub(super) unsafe fn settle(memory: &[u8], file: &File, wanted: &[Range<usize>]) -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: as the caller says.
    return unsafe { linux::settle(memory, file, wanted) };
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (memory, file, wanted);
        false
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::PIECE;
    use rustix::mm::{
        Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mprotect,
        mremap_fixed, munmap,
    };
    use std::fs::File;
    use std::io;
    use std::ops::Range;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// The size of a huge page on x86-64, and on aarch64 with pages of 4 KiB.
    const HUGE: usize = 2 << 20;

    pub(super) fn are_to_be_had() -> bool {
        let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        enabled.is_ok_and(|choice| !choice.contains("[never]"))
    }

    pub(super) fn advise<T>(memory: &mut [T]) {
        let start = memory.as_mut_ptr().cast::<u8>();
        let before = start.align_offset(HUGE);
        let whole = size_of_val(memory).saturating_sub(before) / HUGE * HUGE;
        if whole > 0 {
            // SAFETY: whole pages of the caller's memory; the advice does not change what is in them. If
            // it is not taken the memory works as before.
            let _ = unsafe { madvise(start.add(before).cast(), whole, Advice::LinuxHugepage) };
        }
    }

    /// # Safety
    /// As for [`super::settle`].
    pub(super) unsafe fn settle(memory: &[u8], file: &File, wanted: &[Range<usize>]) -> bool {
        let pieces = pieces(memory, wanted);
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let copy = || {
            while !failed.load(Ordering::Relaxed) {
                let Some(range) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                let Some(piece) = memory.get(range.clone()) else {
                    return;
                };
                // SAFETY: whole huge pages of the caller's map, each taken by one thread.
                if unsafe { replace(piece, file, range.start as u64) }.is_err() {
                    failed.store(true, Ordering::Relaxed);
                }
            }
        };
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 1..n_threads.min(8) {
                scope.spawn(copy);
            }
            copy();
        });
        !failed.into_inner()
    }

    /// The huge pages at least half of which is wanted, in runs of up to [`PIECE`].
    fn pieces(memory: &[u8], wanted: &[Range<usize>]) -> Vec<Range<usize>> {
        let start = memory.as_ptr().align_offset(HUGE).min(memory.len());
        let mut wanted_bytes = vec![0; (memory.len() - start) / HUGE];
        for range in wanted {
            let (from, to) = (range.start.max(start) - start, range.end.max(start) - start);
            let first = from / HUGE;
            let pages = wanted_bytes.iter_mut().enumerate();
            for (page, bytes) in pages.take(to.div_ceil(HUGE)).skip(first) {
                *bytes += to.min((page + 1) * HUGE) - from.max(page * HUGE);
            }
        }
        let mut pieces: Vec<Range<usize>> = Vec::new();
        for (page, bytes) in wanted_bytes.into_iter().enumerate() {
            let at = start + page * HUGE;
            match pieces.last_mut() {
                _ if bytes < HUGE / 2 => {}
                Some(last) if last.end == at && last.len() < PIECE => last.end += HUGE,
                _ => pieces.push(at..at + HUGE),
            }
        }
        pieces
    }

    /// Puts huge pages in the place of `piece`, which is at `offset` of the file.
    ///
    /// # Safety
    /// `piece` must be whole huge pages of a map of `file` that nobody writes to.
    unsafe fn replace(piece: &[u8], file: &File, offset: u64) -> io::Result<()> {
        let mut own = Own::new(piece.len())?;
        file.read_exact_at(own.pages(), offset)?;
        // SAFETY: the pages are ours alone, and become part of the map, which is unmapped as one. The
        // call is atomic to other threads: before it they read the file's pages, after it these. The
        // bytes are the same, unless the file was changed meanwhile, which the map allows for.
        unsafe {
            mprotect(own.start.cast(), own.len, MprotectFlags::READ)?;
            let (from, to) = (own.start.cast(), piece.as_ptr().cast_mut().cast());
            mremap_fixed(from, own.len, own.len, MremapFlags::MAYMOVE, to)?;
        }
        own.len = 0;
        Ok(())
    }

    /// Huge pages that are not part of a map yet.
    struct Own {
        start: *mut u8,
        len: usize,
    }

    impl Own {
        fn new(len: usize) -> io::Result<Own> {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let all = len + HUGE;
            // SAFETY: new memory, wherever the system likes; what lies before the first huge page and
            // after the last is given back.
            unsafe {
                let map = mmap_anonymous(std::ptr::null_mut(), all, access, MapFlags::PRIVATE)?;
                let before = map.cast::<u8>().align_offset(HUGE);
                let start = map.cast::<u8>().add(before);
                if before > 0 {
                    munmap(map, before)?;
                }
                munmap(start.add(len).cast(), all - before - len)?;
                let own = Own { start, len };
                madvise(start.cast(), len, Advice::LinuxHugepage)?;
                Ok(own)
            }
        }

        fn pages(&mut self) -> &mut [u8] {
            // SAFETY: zeroed memory that only `self` has.
            unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            if self.len > 0 {
                // SAFETY: ours alone, and not moved into a map.
                let _ = unsafe { munmap(self.start.cast(), self.len) };
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::slice::from_ref;

    /// The bytes stay, at their addresses, and those of a page that is shared with others too.
    #[test]
    fn a_settled_map_reads_the_same() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u32> = (0..(3 * PIECE as u32 + 4097) / 4).collect();
        let content: &[u8] = bytemuck::cast_slice(&content);
        file.write_all(content).unwrap();
        // SAFETY: nobody writes to the file.
        let map = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
        let address = map.as_ptr();
        let one = map[PIECE];
        // SAFETY: a read-only map of the whole file.
        assert!(unsafe { settle(&map, file.as_file(), from_ref(&(0..map.len()))) });
        assert_eq!(map.as_ptr(), address);
        assert_eq!(map[PIECE], one);
        assert!(*map == *content);
    }

    /// Some of a file: the rest is not read, and no page is taken twice.
    #[test]
    fn only_what_is_wanted_is_settled() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u32> = (0..3 * PIECE as u32 / 4).collect();
        let content: &[u8] = bytemuck::cast_slice(&content);
        file.write_all(content).unwrap();
        // SAFETY: nobody writes to the file, and what is cut off below is not read.
        let map = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
        let wanted = [7..100, 9 << 20..20 << 20, 15 << 20..PIECE + 12345];
        file.as_file().set_len(PIECE as u64 + (4 << 20)).unwrap();
        // SAFETY: a read-only map.
        assert!(unsafe { settle(&map, file.as_file(), &wanted) });
        for range in wanted {
            assert!(map[range.clone()] == content[range]);
        }
        // SAFETY: the same.
        assert!(!unsafe { settle(&map, file.as_file(), from_ref(&(0..map.len()))) });
    }

    /// A file that has become shorter is left mapped: reading it fails, and nothing else does.
    #[test]
    fn what_cannot_be_read_stays_mapped() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 3 * PIECE]).unwrap();
        // SAFETY: what is cut off below is not read.
        let map = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
        file.as_file().set_len(PIECE as u64).unwrap();
        // SAFETY: a read-only map of the whole file.
        assert!(!unsafe { settle(&map, file.as_file(), from_ref(&(0..map.len()))) });
        assert_eq!(map[100], 7);
    }
}
