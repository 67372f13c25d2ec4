//! Huge pages: memory with an address translation per 2 MiB instead of 4 KiB.
//!
//! A decoding step reads every weight once. With pages of 4 KiB, that is an address translation
//! every 64 cache lines, which costs as much as the reads themselves inside a virtual machine.
//! Linux provides huge pages for anonymous memory on request, but hardly ever for mapped files.
//! [`use_huge_pages`] therefore replaces the pages of a map by anonymous memory with the same
//! content at the same addresses.

use std::fs::File;
use std::ops::Range;

/// Bytes replaced at once. Each piece becomes an entry in the process's table of maps, of which
/// Linux allows 65530.
#[cfg(target_os = "linux")]
const PIECE: usize = 32 << 20;

/// Requests huge pages for `memory`, if the system has them.
pub(super) fn advise<T>(memory: &mut [T]) {
    #[cfg(target_os = "linux")]
    linux::advise(memory);
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// True if the system has huge pages, and memory for twice the `bytes` of a file.
pub(super) fn is_worth_it(bytes: usize) -> bool {
    #[cfg(target_os = "linux")]
    return bytes >= 2 * PIECE && linux::are_available() && {
        let available = super::available_memory().unwrap_or(0);
        bytes as u64 <= available / 2
    };
    #[cfg(not(target_os = "linux"))]
    return bytes == usize::MAX;
}

/// Replaces the pages of a map that contain the `wanted` ranges by huge pages with the same
/// content, read from its `file`. Returns false if any could not be replaced; those stay mapped.
/// Pages of which less than half is wanted stay mapped as well.
///
/// # Safety
/// `memory` must be a private or read-only map of `file` from offset 0, and neither the process nor
/// the map's owner may write to it or unmap it during the call.
pub(super) unsafe fn use_huge_pages(memory: &[u8], file: &File, wanted: &[Range<usize>]) -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: the function has the same contract: a map of `file` from offset 0, without concurrent
    // writes or unmapping.
    return unsafe { linux::use_huge_pages(memory, file, wanted) };
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

    /// Size of a huge page on x86-64, and on aarch64 with base pages of 4 KiB.
    const HUGE: usize = 2 << 20;

    pub(super) fn are_available() -> bool {
        let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        enabled.is_ok_and(|choice| !choice.contains("[never]"))
    }

    pub(super) fn advise<T>(memory: &mut [T]) {
        let start = memory.as_mut_ptr().cast::<u8>();
        let before = start.align_offset(HUGE);
        let whole = size_of_val(memory).saturating_sub(before) / HUGE * HUGE;
        if whole > 0 {
            // SAFETY: `before + whole` is at most the size of `memory`, so the advised pages belong
            // to the caller's exclusive borrow. MADV_HUGEPAGE changes neither contents nor
            // validity, and a failure has no effect.
            let _ = unsafe { madvise(start.add(before).cast(), whole, Advice::LinuxHugepage) };
        }
    }

    /// # Safety
    /// As for [`super::use_huge_pages`]: `memory` is a map of `file` from offset 0 without writers.
    pub(super) unsafe fn use_huge_pages(
        memory: &[u8],
        file: &File,
        wanted: &[Range<usize>],
    ) -> bool {
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
                // SAFETY: `piece` is a run of whole huge pages inside the caller's map of `file`,
                // at the same offset as in the file. The pieces are disjoint, and the counter gives
                // each to one thread.
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

    /// Huge pages of which at least half is wanted, in runs of up to [`PIECE`] bytes.
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

    /// Replaces `piece`, which is at `offset` of the file, by huge pages.
    ///
    /// # Safety
    /// `piece` must consist of whole huge pages of a map of `file` that nobody writes to.
    unsafe fn replace(piece: &[u8], file: &File, offset: u64) -> io::Result<()> {
        let mut own = HugeBuffer::new(piece.len())?;
        file.read_exact_at(own.pages(), offset)?;
        // SAFETY: `own` is exclusively owned memory of the length of `piece`, and `piece` is
        // page-aligned memory of a map, so MREMAP_FIXED replaces pages of that map only. They are
        // unmapped with it. The call is atomic for other threads, which read either the file's
        // pages or the copies. The contents are the same unless another process changed the file,
        // which a map has to tolerate anyway.
        unsafe {
            mprotect(own.start.cast(), own.len, MprotectFlags::READ)?;
            let (from, to) = (own.start.cast(), piece.as_ptr().cast_mut().cast());
            mremap_fixed(from, own.len, own.len, MremapFlags::MAYMOVE, to)?;
        }
        own.len = 0;
        Ok(())
    }

    /// Huge pages that are not part of a map yet.
    struct HugeBuffer {
        start: *mut u8,
        len: usize,
    }

    impl HugeBuffer {
        fn new(len: usize) -> io::Result<HugeBuffer> {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let all = len + HUGE;
            // SAFETY: the mapping is new and has `len + HUGE` bytes, so a huge-page-aligned range
            // of `len` bytes lies inside it. Only the unused parts before and after that range are
            // unmapped.
            unsafe {
                let map = mmap_anonymous(std::ptr::null_mut(), all, access, MapFlags::PRIVATE)?;
                let before = map.cast::<u8>().align_offset(HUGE);
                let start = map.cast::<u8>().add(before);
                if before > 0 {
                    munmap(map, before)?;
                }
                munmap(start.add(len).cast(), all - before - len)?;
                let own = HugeBuffer { start, len };
                madvise(start.cast(), len, Advice::LinuxHugepage)?;
                Ok(own)
            }
        }

        fn pages(&mut self) -> &mut [u8] {
            // SAFETY: `start` and `len` describe a readable and writable anonymous mapping, which
            // is zeroed and exclusively owned by `self`.
            unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
        }
    }

    impl Drop for HugeBuffer {
        fn drop(&mut self) {
            if self.len > 0 {
                // SAFETY: the mapping is owned by `self`; `len` is 0 after it was moved into a map.
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

    /// Bytes keep their values and addresses, including those in pages shared with other ranges.
    #[test]
    fn map_with_huge_pages_reads_the_same() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u32> = (0..(3 * PIECE as u32 + 4097) / 4).collect();
        let content: &[u8] = bytemuck::cast_slice(&content);
        file.write_all(content).unwrap();
        // SAFETY: the file is a temporary one of this test, which does not write to it while it is mapped.
        let map = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
        let address = map.as_ptr();
        let one = map[PIECE];
        // SAFETY: `map` is a read-only map of the whole file without writers.
        assert!(unsafe { use_huge_pages(&map, file.as_file(), from_ref(&(0..map.len()))) });
        assert_eq!(map.as_ptr(), address);
        assert_eq!(map[PIECE], one);
        assert!(*map == *content);
    }

    /// With partial ranges, the rest is not read, and no page is replaced twice.
    #[test]
    fn only_wanted_ranges_are_replaced() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u32> = (0..3 * PIECE as u32 / 4).collect();
        let content: &[u8] = bytemuck::cast_slice(&content);
        file.write_all(content).unwrap();
        // SAFETY: nothing else writes to the temporary file, and the truncated part is not read.
        let map = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
        let wanted = [7..100, 9 << 20..20 << 20, 15 << 20..PIECE + 12345];
        file.as_file().set_len(PIECE as u64 + (4 << 20)).unwrap();
        // SAFETY: `map` is a read-only map of the file from offset 0 without writers.
        assert!(unsafe { use_huge_pages(&map, file.as_file(), &wanted) });
        for range in wanted {
            assert!(map[range.clone()] == content[range]);
        }
        // SAFETY: `map` is a read-only map of the file from offset 0 without writers.
        assert!(!unsafe { use_huge_pages(&map, file.as_file(), from_ref(&(0..map.len()))) });
    }

    /// Pages of a truncated file that cannot be read stay mapped.
    #[test]
    fn unreadable_pages_stay_mapped() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 3 * PIECE]).unwrap();
        // SAFETY: the truncated part is not read.
        let map = unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap();
        file.as_file().set_len(PIECE as u64).unwrap();
        // SAFETY: `map` is a read-only map of the whole file without writers.
        assert!(!unsafe { use_huge_pages(&map, file.as_file(), from_ref(&(0..map.len()))) });
        assert_eq!(map[100], 7);
    }
}
