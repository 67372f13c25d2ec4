//! Blocks of the KV cache on disk, so that a prefix computed before a restart is found after it.
//!
//! A block is a file, named by a digest of the model, the tenant and every token up to its end: what is found under
//! a name is what the name says. Files appear whole or not at all, and each carries a checksum. The bytes are the
//! backend's; the engine decides what to keep.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::io::save_atomically;

/// Begins every file; the last byte is the version of the layout.
const MAGIC: [u8; 8] = *b"oxidkv\0\x01";
const CHECKSUM: usize = 32;
/// How old a temporary file is when nobody can be writing it any more.
const ABANDONED: Duration = Duration::from_secs(600);

/// Names a block by everything that its content depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName([u8; 32]);

/// A folder of blocks of one size.
#[derive(Debug)]
pub struct BlockStore {
    folder: PathBuf,
    root: BlockName,
    block_bytes: usize,
    limit: u64,
    /// When each block was last used, on a scale that only orders.
    used: HashMap<BlockName, u64>,
    by_use: BTreeSet<(u64, BlockName)>,
    time: u64,
}

impl BlockStore {
    /// Opens a folder, which is made if it is not there. Blocks of other models stay, unseen; those of this one count
    /// towards `limit` bytes. `fingerprint` stands for the model and how its cache is laid out.
    pub fn open(
        folder: &Path,
        fingerprint: [u8; 32],
        block_bytes: usize,
        limit: u64,
    ) -> Result<BlockStore> {
        let root = BlockName(fingerprint);
        let folder = folder.join(root.hex().split_at(16).0);
        fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        let mut found: Vec<(SystemTime, BlockName)> = Vec::new();
        for entry in fs::read_dir(&folder).map_err(Error::io(&folder))? {
            let entry = entry.map_err(Error::io(&folder))?;
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let modified = modified.unwrap_or(SystemTime::UNIX_EPOCH);
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if let Some(block) = BlockName::from_hex(&name) {
                found.push((modified, block));
            } else if name.ends_with(".partial")
                && modified.elapsed().is_ok_and(|age| age > ABANDONED)
            {
                // Left by a process that was killed.
                let _ = fs::remove_file(entry.path());
            }
        }
        found.sort();
        let mut store = BlockStore {
            folder,
            root,
            block_bytes,
            limit,
            used: HashMap::new(),
            by_use: BTreeSet::new(),
            time: 0,
        };
        found.into_iter().for_each(|(_, name)| store.touch(name));
        store.shrink();
        Ok(store)
    }

    /// The name of the block that holds `tokens` after `parent`, or at the start of a sequence. `salt` separates those
    /// who must not find each other's blocks.
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

    /// The names of the whole blocks of a sequence.
    pub fn names(&self, salt: u64, tokens: &[u32], block_size: usize) -> Vec<BlockName> {
        let mut names: Vec<BlockName> = Vec::new();
        for tokens in tokens.chunks_exact(block_size) {
            names.push(self.name(salt, names.last().copied(), tokens));
        }
        names
    }

    /// Whether there is such a block.
    pub fn contains(&self, name: BlockName) -> bool {
        self.used.contains_key(&name)
    }

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// The bytes of a block, if it is there and whole. A file that is not is removed.
    pub fn load(&mut self, name: BlockName) -> Option<Vec<u8>> {
        if !self.contains(name) {
            return None;
        }
        match fs::read(self.path(name))
            .ok()
            .and_then(|file| self.unwrap(name, file))
        {
            Some(bytes) => {
                self.touch(name);
                Some(bytes)
            }
            None => {
                tracing::warn!("a cached block on disk is damaged and is dropped");
                self.remove(name);
                None
            }
        }
    }

    /// Takes note of a block that was written, and makes room if there are too many.
    pub fn add(&mut self, name: BlockName) {
        self.touch(name);
        self.shrink();
    }

    /// What writes blocks, on whatever thread.
    pub fn writer(&self) -> BlockWriter {
        BlockWriter {
            folder: self.folder.clone(),
        }
    }

    fn path(&self, name: BlockName) -> PathBuf {
        self.folder.join(name.hex())
    }

    fn unwrap(&self, name: BlockName, mut file: Vec<u8>) -> Option<Vec<u8>> {
        let head = MAGIC.len() + name.0.len();
        let body_end = file.len().checked_sub(CHECKSUM)?;
        if body_end.checked_sub(head)? != self.block_bytes {
            return None;
        }
        let (body, checksum) = file.split_at(body_end);
        let whole = body.starts_with(&MAGIC)
            && body.get(MAGIC.len()..head)? == name.0
            && Sha256::digest(body).as_slice() == checksum;
        if !whole {
            return None;
        }
        file.truncate(body_end);
        file.drain(..head);
        Some(file)
    }

    fn touch(&mut self, name: BlockName) {
        self.time += 1;
        if let Some(before) = self.used.insert(name, self.time) {
            self.by_use.remove(&(before, name));
        }
        self.by_use.insert((self.time, name));
    }

    fn shrink(&mut self) {
        let most = self.limit / (self.block_bytes as u64).max(1);
        while self.used.len() as u64 > most {
            let Some(&(_, oldest)) = self.by_use.first() else {
                return;
            };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, name: BlockName) {
        if let Some(time) = self.used.remove(&name) {
            self.by_use.remove(&(time, name));
        }
        // Gone already, or in the way of nobody.
        let _ = fs::remove_file(self.path(name));
    }
}

/// Writes blocks to a store's folder.
#[derive(Clone, Debug)]
pub struct BlockWriter {
    folder: PathBuf,
}

impl BlockWriter {
    /// Writes a block; after an error, or if the process is killed, there is nothing under its name.
    pub fn write(&self, name: BlockName, bytes: &[u8]) -> Result<()> {
        let path = self.folder.join(name.hex());
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

    fn open(folder: &Path, limit: usize) -> BlockStore {
        BlockStore::open(folder, [7; 32], SIZE, (limit * SIZE) as u64).unwrap()
    }

    fn keep(store: &mut BlockStore, name: BlockName, byte: u8) {
        store.writer().write(name, &[byte; SIZE]).unwrap();
        store.add(name);
    }

    #[test]
    fn blocks_outlive_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), 10);
        let names = store.names(0, &[1, 2, 3, 4, 5], 2);
        assert_eq!(names.len(), 2);
        keep(&mut store, names[0], 1);
        keep(&mut store, names[1], 2);
        let mut again = open(folder.path(), 10);
        assert_eq!(again.len(), 2);
        assert_eq!(again.load(names[1]), Some(vec![2; SIZE]));
        assert_eq!(
            again.load(again.name(1, None, &[1, 2])),
            None,
            "another tenant"
        );
        let other = BlockStore::open(folder.path(), [8; 32], SIZE, 1000).unwrap();
        assert!(other.is_empty(), "another model");
    }

    #[test]
    fn names_depend_on_all_that_came_before() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), 1);
        let last = |salt, tokens: &[u32]| *store.names(salt, tokens, 2).last().unwrap();
        assert_eq!(last(0, &[1, 2, 3, 4]), last(0, &[1, 2, 3, 4, 9]));
        assert_ne!(last(0, &[1, 2, 3, 4]), last(0, &[1, 5, 3, 4]));
        assert_ne!(last(0, &[1, 2, 3, 4]), last(1, &[1, 2, 3, 4]));
    }

    #[test]
    fn damage_is_noticed_in_every_byte() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), 10);
        let name = store.name(0, None, &[1]);
        keep(&mut store, name, 3);
        let path = store.path(name);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            store.touch(name);
            assert_eq!(store.load(name), None, "byte {at}");
            assert!(!path.exists());
        }
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            store.touch(name);
            assert_eq!(store.load(name), None, "length {length}");
        }
        fs::write(&path, &good).unwrap();
        store.touch(name);
        assert_eq!(store.load(name), Some(vec![3; SIZE]));
    }

    #[test]
    fn the_least_recently_used_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), 2);
        let names: Vec<BlockName> = (0..3).map(|token| store.name(0, None, &[token])).collect();
        keep(&mut store, names[0], 0);
        keep(&mut store, names[1], 1);
        assert!(store.load(names[0]).is_some());
        keep(&mut store, names[2], 2);
        assert!(store.contains(names[0]) && !store.contains(names[1]) && store.contains(names[2]));
        assert_eq!(fs::read_dir(&store.folder).unwrap().count(), 2);
        assert_eq!(open(folder.path(), 1).len(), 1);
    }

    #[test]
    fn a_full_disk_leaves_nothing_behind() {
        // A folder that is a file cannot be written to, whoever asks.
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), 2);
        fs::remove_dir(&store.folder).unwrap();
        fs::write(&store.folder, b"").unwrap();
        let name = store.name(0, None, &[1]);
        assert!(store.writer().write(name, &[0; SIZE]).is_err());
        assert!(!store.contains(name));
    }
}
