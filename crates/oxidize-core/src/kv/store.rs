//! KV blocks on disk, so that a prefix computed before a restart is reused after it.
//!
//! Each block is a file named by a digest of the model, the tenant and all tokens up to the block's end, so
//! the name determines the content. Files are written atomically and carry a checksum. The backend defines
//! the bytes of a block; the engine decides which blocks to store.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::clock::time_of_day;
use crate::error::{Error, Result};
use crate::io::save_atomically;

/// Start of every file; the last byte is the version of the layout.
const MAGIC: [u8; 8] = *b"oxidkv\0\x01";
const CHECKSUM: usize = 32;
/// Bytes of a file besides the content of its block: magic, name and checksum.
const OVERHEAD: usize = MAGIC.len() + 32 + CHECKSUM;
/// Age above which a temporary file counts as left behind by a killed process.
const ABANDONED: Duration = Duration::from_secs(600);

/// Digest of everything that the content of a block depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName([u8; 32]);

/// Directory of blocks, limited in size by evicting the least recently used ones.
#[derive(Debug)]
pub struct BlockStore {
    directory: PathBuf,
    root: BlockName,
    limit: u64,
    stored: HashMap<BlockName, Stored>,
    /// Sum of the sizes of all blocks.
    bytes: u64,
    by_use: BTreeSet<(u64, BlockName)>,
    time: u64,
}

/// A block of a store.
#[derive(Clone, Copy, Debug)]
struct Stored {
    /// Logical time of the last use.
    used: u64,
    /// Size of its content.
    bytes: u64,
}

impl BlockStore {
    /// Opens a directory, creating it if needed. Blocks of other models in it are ignored and kept; blocks of
    /// this model count towards `limit` bytes. `fingerprint` identifies the model and the layout of its
    /// cache.
    pub fn open(directory: &Path, fingerprint: [u8; 32], limit: u64) -> Result<BlockStore> {
        let root = BlockName(fingerprint);
        let directory = directory.join(root.hex().split_at(16).0);
        fs::create_dir_all(&directory).map_err(Error::io(&directory))?;
        let now = time_of_day();
        let mut found: Vec<(SystemTime, BlockName, u64)> = Vec::new();
        for entry in fs::read_dir(&directory).map_err(Error::io(&directory))? {
            let entry = entry.map_err(Error::io(&directory))?;
            let metadata = entry.metadata().ok();
            let modified = metadata.as_ref().and_then(|data| data.modified().ok());
            let modified = modified.unwrap_or(SystemTime::UNIX_EPOCH);
            let len = metadata.map_or(0, |metadata| metadata.len());
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if let Some(block) = BlockName::from_hex(&name) {
                found.push((modified, block, len.saturating_sub(OVERHEAD as u64)));
            } else if name.ends_with(".partial")
                && now
                    .duration_since(modified)
                    .is_ok_and(|age| age > ABANDONED)
            {
                // Left behind by a process that was killed.
                let _ = fs::remove_file(entry.path());
            }
        }
        found.sort();
        let mut store = BlockStore {
            directory,
            root,
            limit,
            stored: HashMap::new(),
            bytes: 0,
            by_use: BTreeSet::new(),
            time: 0,
        };
        for (_, name, bytes) in found {
            store.touch(name, bytes);
        }
        store.shrink();
        Ok(store)
    }

    /// Name of the block that holds `tokens` after `parent`, or at the start of a sequence. `salt` separates
    /// tenants that must not share blocks.
    pub fn name(&self, salt: u64, parent: Option<BlockName>, tokens: &[u32]) -> BlockName {
        let mut hash = Sha256::new();
        hash.update(parent.unwrap_or(self.root).0);
        if parent.is_none() {
            hash.update(salt.to_le_bytes());
        }
        tokens
            .iter()
            .for_each(|token| hash.update(token.to_le_bytes()));
        BlockName(hash.finalize().into())
    }

    /// Names of the full blocks of a sequence.
    pub fn names(&self, salt: u64, tokens: &[u32], block_size: usize) -> Vec<BlockName> {
        let mut names: Vec<BlockName> = Vec::new();
        for tokens in tokens.chunks_exact(block_size) {
            names.push(self.name(salt, names.last().copied(), tokens));
        }
        names
    }

    /// Name of the window block of a group of layers that holds the same positions as the block `name`.
    pub fn window_name(&self, name: BlockName, group: usize) -> BlockName {
        let mut hash = Sha256::new();
        hash.update(name.0);
        hash.update(b"window");
        hash.update((group as u64).to_le_bytes());
        BlockName(hash.finalize().into())
    }

    /// True if the block is stored.
    pub fn contains(&self, name: BlockName) -> bool {
        self.stored.contains_key(&name)
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.stored.len()
    }

    /// True if no block is stored.
    pub fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Bytes of a block, if it is stored. A damaged file is removed.
    pub fn load(&mut self, name: BlockName) -> Option<Vec<u8>> {
        if !self.contains(name) {
            return None;
        }
        match fs::read(self.path(name))
            .ok()
            .and_then(|file| self.unpack(name, file))
        {
            Some(bytes) => {
                self.touch(name, bytes.len() as u64);
                Some(bytes)
            }
            None => {
                tracing::warn!("a cached block on disk is damaged; removed it");
                self.remove(name);
                None
            }
        }
    }

    /// Records a block of `bytes` that was written, and evicts blocks if the store is over its limit.
    pub fn add(&mut self, name: BlockName, bytes: u64) {
        self.touch(name, bytes);
        self.shrink();
    }

    /// Writer of blocks, usable on another thread.
    pub fn writer(&self) -> BlockWriter {
        BlockWriter {
            directory: self.directory.clone(),
        }
    }

    fn path(&self, name: BlockName) -> PathBuf {
        self.directory.join(name.hex())
    }

    fn unpack(&self, name: BlockName, mut file: Vec<u8>) -> Option<Vec<u8>> {
        let head = OVERHEAD - CHECKSUM;
        let body_end = file.len().checked_sub(CHECKSUM)?;
        let (body, checksum) = file.split_at(body_end);
        let valid = body.starts_with(&MAGIC)
            && body.get(MAGIC.len()..head)? == name.0
            && Sha256::digest(body).as_slice() == checksum;
        if !valid {
            return None;
        }
        file.truncate(body_end);
        file.drain(..head);
        Some(file)
    }

    fn touch(&mut self, name: BlockName, bytes: u64) {
        self.forget(name);
        self.time += 1;
        let used = self.time;
        self.stored.insert(name, Stored { used, bytes });
        self.by_use.insert((used, name));
        self.bytes += bytes;
    }

    fn shrink(&mut self) {
        while self.bytes > self.limit {
            let Some(&(_, oldest)) = self.by_use.first() else {
                return;
            };
            self.remove(oldest);
        }
    }

    fn forget(&mut self, name: BlockName) {
        if let Some(Stored { used, bytes }) = self.stored.remove(&name) {
            self.by_use.remove(&(used, name));
            self.bytes -= bytes;
        }
    }

    fn remove(&mut self, name: BlockName) {
        self.forget(name);
        // An error means that the file is gone already or cannot be removed; either way it is no longer used.
        let _ = fs::remove_file(self.path(name));
    }
}

/// Writer of blocks to the directory of a store.
#[derive(Clone, Debug)]
pub struct BlockWriter {
    directory: PathBuf,
}

impl BlockWriter {
    /// Writes a block atomically: after an error or a kill there is no file under its name.
    pub fn write(&self, name: BlockName, bytes: &[u8]) -> Result<()> {
        let path = self.directory.join(name.hex());
        let mut hash = Sha256::new();
        save_atomically(&path, |out| {
            for part in [&MAGIC[..], &name.0, bytes] {
                hash.update(part);
                out.write_all(part).map_err(Error::io(&path))?;
            }
            let checksum = hash.finalize_reset();
            out.write_all(&checksum).map_err(Error::io(&path))
        })
    }
}

impl BlockName {
    fn hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_hex(text: &str) -> Option<BlockName> {
        let mut name = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (index, byte) in name.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(BlockName(name))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    const SIZE: usize = 100;

    fn open(directory: &Path, limit: usize) -> BlockStore {
        BlockStore::open(directory, [7; 32], (limit * SIZE) as u64).unwrap()
    }

    fn store_block(store: &mut BlockStore, name: BlockName, byte: u8) {
        store.writer().write(name, &[byte; SIZE]).unwrap();
        store.add(name, SIZE as u64);
    }

    #[test]
    fn blocks_persist_after_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = open(directory.path(), 10);
        let names = store.names(0, &[1, 2, 3, 4, 5], 2);
        assert_eq!(names.len(), 2);
        store_block(&mut store, names[0], 1);
        store_block(&mut store, names[1], 2);
        let mut again = open(directory.path(), 10);
        assert_eq!(again.len(), 2);
        assert_eq!(again.load(names[1]), Some(vec![2; SIZE]));
        assert_eq!(
            again.load(again.name(1, None, &[1, 2])),
            None,
            "another tenant"
        );
        let other = BlockStore::open(directory.path(), [8; 32], 1000).unwrap();
        assert!(other.is_empty(), "another model");
    }

    #[test]
    fn names_depend_on_all_preceding_tokens() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path(), 1);
        let last = |salt, tokens: &[u32]| *store.names(salt, tokens, 2).last().unwrap();
        assert_eq!(last(0, &[1, 2, 3, 4]), last(0, &[1, 2, 3, 4, 9]));
        assert_ne!(last(0, &[1, 2, 3, 4]), last(0, &[1, 5, 3, 4]));
        assert_ne!(last(0, &[1, 2, 3, 4]), last(1, &[1, 2, 3, 4]));
    }

    #[test]
    fn corruption_of_any_byte_is_detected() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = open(directory.path(), 10);
        let name = store.name(0, None, &[1]);
        store_block(&mut store, name, 3);
        let path = store.path(name);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            store.touch(name, SIZE as u64);
            assert_eq!(store.load(name), None, "byte {at}");
            assert!(!path.exists());
        }
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            store.touch(name, SIZE as u64);
            assert_eq!(store.load(name), None, "length {length}");
        }
        fs::write(&path, &good).unwrap();
        store.touch(name, SIZE as u64);
        assert_eq!(store.load(name), Some(vec![3; SIZE]));
    }

    #[test]
    fn least_recently_used_blocks_are_evicted() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = open(directory.path(), 2);
        let names: Vec<BlockName> = (0..3).map(|token| store.name(0, None, &[token])).collect();
        store_block(&mut store, names[0], 0);
        store_block(&mut store, names[1], 1);
        assert!(store.load(names[0]).is_some());
        store_block(&mut store, names[2], 2);
        assert!(store.contains(names[0]) && !store.contains(names[1]) && store.contains(names[2]));
        assert_eq!(fs::read_dir(&store.directory).unwrap().count(), 2);
        assert_eq!(open(directory.path(), 1).len(), 1);
    }

    #[test]
    fn failed_write_leaves_no_file() {
        // A file in place of the directory makes every write fail, even for root.
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path(), 2);
        fs::remove_dir(&store.directory).unwrap();
        fs::write(&store.directory, b"").unwrap();
        let name = store.name(0, None, &[1]);
        assert!(store.writer().write(name, &[0; SIZE]).is_err());
        assert!(!store.contains(name));
    }
}
