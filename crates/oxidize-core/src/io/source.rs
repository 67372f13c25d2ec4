//! [`Source`], a file with random access, and [`SharedBytes`], a range of its bytes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(not(target_arch = "wasm32"))]
use super::mmap::Map;

/// Source of the bytes of a model file.
#[derive(Debug)]
pub enum Source {
    /// Map or buffer.
    Memory(SharedBytes),
    /// File that is read on request.
    File {
        /// The open file. The lock covers a seek and the following read.
        file: Mutex<File>,
        /// Length when it was opened.
        len: u64,
    },
}

impl Source {
    /// Opens a file. `mmap` maps it, where supported; `huge_pages` allows copying the map to huge
    /// pages later ([`SharedBytes::use_huge_pages`]).
    pub fn open(path: &Path, mmap: bool, huge_pages: bool) -> io::Result<Source> {
        // Checked before opening, because opening a pipe may wait forever.
        if !std::fs::metadata(path)?.is_file() {
            return Err(not_a_file());
        }
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        #[cfg(not(target_arch = "wasm32"))]
        // Some systems cannot map empty files.
        if mmap && len > 0 {
            return Ok(Source::Memory(SharedBytes::from_map(Map::new(
                file, huge_pages,
            )?)));
        }
        let _ = (mmap, huge_pages);
        Ok(Source::File {
            file: Mutex::new(file),
            len,
        })
    }

    /// Bytes in the file.
    pub fn len(&self) -> u64 {
        match self {
            Source::Memory(bytes) => bytes.len() as u64,
            Source::File { len, .. } => *len,
        }
    }

    /// True if the bytes are read or mapped from a file, false if they are in memory.
    pub(crate) fn is_on_disk(&self) -> bool {
        match self {
            Source::Memory(bytes) => bytes.is_mapped(),
            Source::File { .. } => true,
        }
    }

    /// True if the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of `range`, without a copy if they are in memory.
    pub fn read(&self, range: Range<u64>) -> io::Result<SharedBytes> {
        let outside = || {
            io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file is shorter than expected",
            )
        };
        if range.start > range.end || range.end > self.len() {
            return Err(outside());
        }
        let too_big = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        match self {
            Source::Memory(bytes) => {
                let start = usize::try_from(range.start).map_err(too_big)?;
                let end = usize::try_from(range.end).map_err(too_big)?;
                bytes.slice(start..end).ok_or_else(outside)
            }
            Source::File { file, .. } => {
                let len = usize::try_from(range.end - range.start).map_err(too_big)?;
                let mut buffer = AlignedBuffer::zeroed(len)?;
                // A panic cannot invalidate the file, because each read seeks first.
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.seek(SeekFrom::Start(range.start))?;
                file.read_exact(buffer.as_mut_slice())?;
                Ok(SharedBytes::from_buffer(buffer))
            }
        }
    }

    /// Requests that the system reads the whole file ahead.
    pub(crate) fn will_need(&self) {
        #[cfg(not(target_arch = "wasm32"))]
        if let Source::Memory(SharedBytes {
            owner: Owner::Map(map),
            ..
        }) = self
        {
            map.will_need();
        }
    }
}

pub(crate) fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Range of bytes that keeps its map or buffer alive. Cheap to clone.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Owner,
    /// Inside the owner, which every constructor checks.
    range: Range<usize>,
    origin: Option<Origin>,
}

/// Place of bytes in the tensors of a model file, from which they can be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Index of the tensor in the file.
    pub(crate) tensor: u32,
    /// Offset of the first byte in the tensor.
    pub(crate) offset: u64,
}

#[derive(Clone)]
enum Owner {
    #[cfg(not(target_arch = "wasm32"))]
    Map(Arc<Map>),
    Vec(Arc<Vec<u8>>),
    Aligned(Arc<AlignedBuffer>),
}

impl SharedBytes {
    #[cfg(not(target_arch = "wasm32"))]
    fn from_map(map: Map) -> SharedBytes {
        let range = 0..map.len();
        SharedBytes {
            owner: Owner::Map(Arc::new(map)),
            range,
            origin: None,
        }
    }

    fn from_buffer(buffer: AlignedBuffer) -> SharedBytes {
        let range = 0..buffer.len;
        SharedBytes {
            owner: Owner::Aligned(Arc::new(buffer)),
            range,
            origin: None,
        }
    }

    /// Part of these bytes; `None` if the range is not inside them.
    pub fn slice(&self, range: Range<usize>) -> Option<SharedBytes> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start + range.start;
        let origin = self.origin.map(|origin| Origin {
            offset: origin.offset.saturating_add(range.start as u64),
            ..origin
        });
        Some(SharedBytes {
            owner: self.owner.clone(),
            range: start..start + range.len(),
            origin,
        })
    }

    /// The bytes with their place in a model file.
    pub(crate) fn with_origin(self, origin: Option<Origin>) -> SharedBytes {
        SharedBytes { origin, ..self }
    }

    /// Place in a model file; `None` for bytes that were computed.
    pub(crate) fn origin(&self) -> Option<Origin> {
        self.origin
    }

    /// Bytes at an address that is a multiple of `align` (at most 64); copied unless they are
    /// aligned already.
    pub fn aligned(self, align: usize) -> io::Result<SharedBytes> {
        if (self.as_ptr() as usize).is_multiple_of(align) {
            return Ok(self);
        }
        let mut copy = AlignedBuffer::zeroed(self.len())?;
        copy.as_mut_slice().copy_from_slice(&self);
        Ok(SharedBytes::from_buffer(copy))
    }

    /// New buffer, aligned to 64 bytes and filled by `fill`.
    pub(crate) fn build<E: From<io::Error>>(
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<SharedBytes, E> {
        let mut buffer = AlignedBuffer::zeroed(len)?;
        fill(buffer.as_mut_slice())?;
        Ok(SharedBytes::from_buffer(buffer))
    }
}

/// Location of the bytes.
impl SharedBytes {
    /// Copies ranges of mapped files to huge pages, without changing contents or addresses. Call it
    /// once with all ranges that will be read repeatedly. Does nothing if memory is short.
    pub fn use_huge_pages<'a>(all: impl IntoIterator<Item = &'a SharedBytes>) {
        #[cfg(not(target_arch = "wasm32"))]
        {
            let mut maps: Vec<(&Arc<Map>, Vec<Range<usize>>)> = Vec::new();
            for bytes in all {
                let Owner::Map(map) = &bytes.owner else {
                    continue;
                };
                match maps.iter_mut().find(|(known, _)| Arc::ptr_eq(known, map)) {
                    Some((_, wanted)) => wanted.push(bytes.range.clone()),
                    None => maps.push((map, vec![bytes.range.clone()])),
                }
            }
            maps.iter()
                .for_each(|(map, wanted)| map.use_huge_pages(wanted));
        }
        #[cfg(target_arch = "wasm32")]
        let _ = all.into_iter();
    }

    /// True if the bytes are part of a mapped file.
    pub fn is_mapped(&self) -> bool {
        match &self.owner {
            #[cfg(not(target_arch = "wasm32"))]
            Owner::Map(_) => true,
            Owner::Vec(_) | Owner::Aligned(_) => false,
        }
    }

    /// True if dropping the bytes frees their memory.
    pub(crate) fn is_sole_owner(&self) -> bool {
        match &self.owner {
            #[cfg(not(target_arch = "wasm32"))]
            Owner::Map(_) => false,
            Owner::Vec(bytes) => Arc::strong_count(bytes) == 1,
            Owner::Aligned(buffer) => Arc::strong_count(buffer) == 1,
        }
    }

    /// Releases the memory of a part of a mapped file until it is read again. Does nothing for
    /// other bytes.
    pub fn release(&self, part: Range<usize>) {
        #[cfg(not(target_arch = "wasm32"))]
        if let (Owner::Map(map), Some(part)) = (&self.owner, self.slice(part)) {
            map.release(part.range);
        }
        #[cfg(target_arch = "wasm32")]
        let _ = part;
    }

    /// True if the bytes are in memory of the process instead of a mapped file.
    pub fn is_own(&self) -> bool {
        match &self.owner {
            #[cfg(not(target_arch = "wasm32"))]
            Owner::Map(map) => map.is_in_huge_pages(),
            Owner::Vec(_) | Owner::Aligned(_) => true,
        }
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> SharedBytes {
        let range = 0..bytes.len();
        SharedBytes {
            owner: Owner::Vec(Arc::new(bytes)),
            range,
            origin: None,
        }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.owner {
            #[cfg(not(target_arch = "wasm32"))]
            Owner::Map(map) => map,
            Owner::Vec(bytes) => bytes,
            Owner::Aligned(buffer) => buffer.as_slice(),
        };
        &all[self.range.clone()]
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let owner = match &self.owner {
            #[cfg(not(target_arch = "wasm32"))]
            Owner::Map(_) => "map",
            Owner::Vec(_) | Owner::Aligned(_) => "heap",
        };
        write!(f, "SharedBytes({} bytes, {owner})", self.len())
    }
}

/// Heap memory aligned to cache lines, so that blocks and vectors can be read in place.
struct AlignedBuffer {
    bytes: Vec<u8>,
    /// Offset of the first aligned byte.
    start: usize,
    len: usize,
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl AlignedBuffer {
    /// Zeros, which the system allocates on first access by any thread.
    fn zeroed(len: usize) -> io::Result<AlignedBuffer> {
        let with_line = len.checked_add(LINE).ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes = bytemuck::allocation::try_zeroed_vec::<u8>(with_line);
        #[cfg_attr(target_arch = "wasm32", allow(unused_mut))]
        let mut bytes = bytes.map_err(|()| io::ErrorKind::OutOfMemory)?;
        #[cfg(not(target_arch = "wasm32"))]
        super::huge::advise(&mut bytes);
        // The alignment needs at most one line.
        let start = bytes.as_ptr().align_offset(LINE).min(LINE);
        Ok(AlignedBuffer { bytes, start, len })
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn mapped_and_read_ranges_are_equal() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..=255).collect();
        file.write_all(&content).unwrap();
        for mmap in [true, false] {
            let source = Source::open(file.path(), mmap, true).unwrap();
            assert_eq!(source.len(), 256);
            assert_eq!(&*source.read(3..9).unwrap(), &content[3..9]);
            assert_eq!(&*source.read(256..256).unwrap(), &[0u8; 0]);
            assert!(source.read(3..257).is_err());
            assert!(source.read(9..u64::MAX).is_err());
        }
    }

    #[test]
    fn aligned_copies_only_unaligned_bytes() {
        let bytes = SharedBytes::build::<io::Error>(64, |all| {
            all.fill(7);
            Ok(())
        })
        .unwrap();
        let even = bytes.slice(8..16).unwrap();
        let address = even.as_ptr();
        assert_eq!(even.aligned(8).unwrap().as_ptr(), address);
        let odd = bytes.slice(3..11).unwrap().aligned(8).unwrap();
        assert_eq!(odd.as_ptr() as usize % 8, 0);
        assert_eq!(&*odd, &[7; 8]);
        assert!(bytes.slice(60..65).is_none());
    }

    #[test]
    fn directories_are_refused() {
        assert!(Source::open(&std::env::temp_dir(), true, true).is_err());
    }
}
