//! [`PieceMap`]: which pieces of a partial file are there, in a small file beside it that survives a kill.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::write_at;
use crate::error::{Error, Result};

/// Maximum number of pieces: 16 TB in pieces of 1 MiB.
pub(crate) const MAX_PIECES: u64 = 1 << 24;

/// Marks of a piece in the file.
const MISSING: u8 = b'-';
const THERE: u8 = b'+';

/// The pieces of a partial file. A piece is marked after its bytes are written.
#[derive(Debug)]
pub(crate) struct PieceMap {
    header: Header,
    pieces: Vec<Piece>,
    file: File,
    /// Length of the first line of the file.
    start: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Missing,
    Taken,
    There,
}

/// First line of the file. Another header starts the download anew.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    size: u64,
    piece: u64,
    /// Identity of the bytes: a checksum or an ETag.
    identity: String,
}

impl PieceMap {
    /// Opens the map of a file of `size` bytes, or makes a new one if there is none of the same bytes. `size` must
    /// be at most [`MAX_PIECES`] pieces. `partial_len` is the length of the partial file.
    pub(crate) fn open(
        path: &Path,
        size: u64,
        piece: u64,
        identity: &str,
        partial_len: u64,
    ) -> Result<PieceMap> {
        let piece = piece.max(1);
        let header = Header {
            size,
            piece,
            identity: identity.to_owned(),
        };
        let count = usize::try_from(size.div_ceil(piece).min(MAX_PIECES)).unwrap_or(0);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(Error::file(path))?;
        let mut old = Vec::new();
        let limit = MAX_PIECES + (1 << 16);
        (&mut file)
            .take(limit)
            .read_to_end(&mut old)
            .map_err(Error::file(path))?;
        if let Some(pieces) = read(&old, &header, count).filter(|_| partial_len == size) {
            let start = (old.len() - count) as u64;
            return Ok(PieceMap {
                header,
                pieces,
                file,
                start,
            });
        }
        let mut text = serde_json::to_vec(&header).unwrap_or_default();
        text.push(b'\n');
        let start = text.len() as u64;
        text.resize(text.len() + count, MISSING);
        file.set_len(0).map_err(Error::file(path))?;
        write_at(&file, &text, 0).map_err(Error::file(path))?;
        file.flush().map_err(Error::file(path))?;
        Ok(PieceMap {
            header,
            pieces: vec![Piece::Missing; count],
            file,
            start,
        })
    }

    /// Bytes that are there.
    pub(crate) fn bytes_there(&self) -> u64 {
        let there = self
            .pieces
            .iter()
            .enumerate()
            .filter(|(_, piece)| **piece == Piece::There);
        there
            .map(|(index, _)| self.range(index))
            .map(|range| range.end - range.start)
            .sum()
    }

    /// Takes a run of up to `max` missing pieces that follow each other, and returns its bytes.
    pub(crate) fn take(&mut self, max: usize) -> Option<Range<u64>> {
        let first = self
            .pieces
            .iter()
            .position(|piece| *piece == Piece::Missing)?;
        let mut last = first;
        for (index, piece) in self
            .pieces
            .iter_mut()
            .enumerate()
            .skip(first)
            .take(max.max(1))
        {
            if *piece != Piece::Missing {
                break;
            }
            *piece = Piece::Taken;
            last = index;
        }
        Some(self.range(first).start..self.range(last).end)
    }

    /// Marks the pieces that end within `bytes`, which are written; `bytes.start` is within a taken run.
    pub(crate) fn mark(&mut self, bytes: Range<u64>) -> std::io::Result<()> {
        let first = bytes.start / self.header.piece;
        for index in first..self.pieces.len() as u64 {
            let position = usize::try_from(index).unwrap_or(usize::MAX);
            if self.range(position).end > bytes.end {
                break;
            }
            write_at(&self.file, &[THERE], self.start + index)?;
            if let Some(piece) = self.pieces.get_mut(position) {
                *piece = Piece::There;
            }
        }
        Ok(())
    }

    /// Number of missing pieces that nobody has taken.
    pub(crate) fn missing(&self) -> usize {
        self.pieces
            .iter()
            .filter(|piece| **piece == Piece::Missing)
            .count()
    }

    fn range(&self, index: usize) -> Range<u64> {
        let start = (index as u64).saturating_mul(self.header.piece);
        start
            ..start
                .saturating_add(self.header.piece)
                .min(self.header.size)
    }
}

/// The pieces in the text of a map, if it has this header.
fn read(text: &[u8], header: &Header, count: usize) -> Option<Vec<Piece>> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let (first, marks) = text.split_at_checked(end + 1)?;
    let old: Header = serde_json::from_slice(first).ok()?;
    if old != *header || marks.len() != count {
        return None;
    }
    let piece = |mark: &u8| match *mark {
        MISSING => Some(Piece::Missing),
        THERE => Some(Piece::There),
        _ => None,
    };
    marks.iter().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_pieces_survive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut map = PieceMap::open(&path, 25, 10, "e", 25).unwrap();
        assert_eq!(map.take(2), Some(0..20));
        assert_eq!(map.take(2), Some(20..25));
        assert_eq!((map.take(1), map.missing()), (None, 0));
        // A piece counts when its last byte is there.
        map.mark(0..9).unwrap();
        assert_eq!(map.bytes_there(), 0);
        map.mark(9..10).unwrap();
        map.mark(20..25).unwrap();
        assert_eq!(map.bytes_there(), 15);
        let mut again = PieceMap::open(&path, 25, 10, "e", 25).unwrap();
        assert_eq!(again.bytes_there(), 15);
        assert_eq!((again.take(9), again.take(9)), (Some(10..20), None));
        for (size, piece, identity, length) in [
            (26, 10, "e", 26),
            (25, 9, "e", 25),
            (25, 10, "f", 25),
            (25, 10, "f", 0),
        ] {
            let fresh = PieceMap::open(&path, size, piece, identity, length).unwrap();
            assert_eq!(fresh.bytes_there(), 0);
        }
    }

    #[test]
    fn a_damaged_map_starts_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        drop(PieceMap::open(&path, 25, 10, "e", 25).unwrap());
        let good = std::fs::read(&path).unwrap();
        for bad in [
            &b""[..],
            b"\n",
            b"{}\n+++",
            b"+++",
            &good[..good.len() - 1],
            &[&good[..], b"+"].concat(),
            b"\xff\xfe\n+",
        ] {
            std::fs::write(&path, bad).unwrap();
            let map = PieceMap::open(&path, 25, 10, "e", 25).unwrap();
            assert_eq!(map.bytes_there(), 0);
            assert_eq!(std::fs::read(&path).unwrap(), good);
        }
    }
}
