//! Bookkeeping of recurrent-state checkpoints: copies of a sequence's state at the end of a KV block. A model
//! with recurrent state can resume only at a checkpoint. The copies live in the backend's session; this
//! module only assigns their indices.

use std::collections::{BTreeMap, BTreeSet};

use super::BlockId;

/// Assignment of checkpoint indices. The checkpoint of a block is found through the block, and the least
/// recently used one is evicted when its index is needed.
#[derive(Debug, Default)]
pub struct Checkpoints {
    free: Vec<u32>,
    entries: BTreeMap<BlockId, Entry>,
    /// Entries from least to most recently used.
    order: BTreeSet<(u64, BlockId)>,
    /// Indices reserved by a sequence for rolling back drafts.
    reserved: BTreeSet<u32>,
    time: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    index: u32,
    last_used: u64,
}

impl Checkpoints {
    /// Bookkeeping for `n` checkpoints, all free.
    pub fn new(n: u32) -> Self {
        Self {
            free: (0..n).rev().collect(),
            ..Self::default()
        }
    }

    /// True if there is a checkpoint at the end of `block`.
    pub fn contains(&self, block: BlockId) -> bool {
        self.entries.contains_key(&block)
    }

    /// Index of the checkpoint at the end of `block`, which becomes the most recently used.
    pub fn find(&mut self, block: BlockId) -> Option<u32> {
        let entry = self.entries.get_mut(&block)?;
        self.time += 1;
        self.order.remove(&(entry.last_used, block));
        entry.last_used = self.time;
        self.order.insert((entry.last_used, block));
        Some(entry.index)
    }

    /// Index to which the caller must copy the state at the end of `block`. `None` if there is a checkpoint
    /// already or no index is free. With `evict`, the least recently used checkpoint is evicted if no index
    /// is free.
    pub fn insert(&mut self, block: BlockId, evict: bool) -> Option<u32> {
        if self.find(block).is_some() {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if evict => self.evict()?,
            None => return None,
        };
        self.time += 1;
        let last_used = self.time;
        self.entries.insert(block, Entry { index, last_used });
        self.order.insert((last_used, block));
        Some(index)
    }

    /// Drops the checkpoint of `block`, if there is one.
    pub fn remove(&mut self, block: BlockId) {
        if let Some(entry) = self.entries.remove(&block) {
            self.order.remove(&(entry.last_used, block));
            self.free.push(entry.index);
        }
    }

    /// Drops the checkpoint with this index, if there is one.
    pub fn remove_index(&mut self, index: u32) {
        let found = self.entries.iter().find(|(_, entry)| entry.index == index);
        if let Some(block) = found.map(|(&block, _)| block) {
            self.remove(block);
        }
    }

    /// Takes an index for the caller's own use until it calls [`release`](Self::release), evicting a
    /// checkpoint if none is free.
    pub fn reserve(&mut self) -> Option<u32> {
        let index = self.free.pop().or_else(|| self.evict())?;
        self.reserved.insert(index);
        Some(index)
    }

    /// Returns an index taken with [`reserve`](Self::reserve).
    pub fn release(&mut self, index: u32) {
        if self.reserved.remove(&index) {
            self.free.push(index);
        }
    }

    /// Blocks that have a checkpoint.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.entries.keys().copied()
    }

    /// Checks that each of `n` indices is exactly one of free, assigned and reserved.
    pub fn check_integrity(&self, n: u32) -> Result<(), String> {
        let assigned = self.entries.values().map(|entry| entry.index);
        let mut indices: Vec<u32> = self.free.iter().chain(&self.reserved).copied().collect();
        indices.extend(assigned);
        indices.sort_unstable();
        if !indices.iter().copied().eq(0..n) {
            return Err(format!(
                "free, assigned and reserved checkpoints are {indices:?}"
            ));
        }
        let mut order: Vec<(u64, BlockId)> = self
            .entries
            .iter()
            .map(|(&block, entry)| (entry.last_used, block))
            .collect();
        order.sort_unstable();
        match self.order.iter().eq(&order) {
            true => Ok(()),
            false => Err("the eviction order of checkpoints is inconsistent".into()),
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let (_, block) = self.order.pop_first()?;
        self.entries.remove(&block).map(|entry| entry.index)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_checkpoint_is_evicted() {
        let mut checkpoints = Checkpoints::new(2);
        let (a, b, c) = (BlockId(4), BlockId(5), BlockId(6));
        let index = checkpoints.insert(a, false).unwrap();
        checkpoints.insert(b, false).unwrap();
        assert_eq!(
            checkpoints.insert(a, true),
            None,
            "the block has a checkpoint"
        );
        assert_eq!(checkpoints.insert(c, false), None, "no index is free");
        assert_eq!(checkpoints.find(b), Some(1 - index));
        assert_eq!(checkpoints.insert(c, true), Some(index));
        assert!(!checkpoints.contains(a));
        checkpoints.check_integrity(2).unwrap();
    }

    #[test]
    fn reserved_index_is_not_evicted() {
        let mut checkpoints = Checkpoints::new(1);
        checkpoints.insert(BlockId(0), true).unwrap();
        let index = checkpoints.reserve().unwrap();
        assert!(!checkpoints.contains(BlockId(0)));
        assert_eq!(checkpoints.reserve(), None);
        assert_eq!(checkpoints.insert(BlockId(1), true), None);
        checkpoints.release(index);
        checkpoints.release(index);
        checkpoints.check_integrity(1).unwrap();
        checkpoints.insert(BlockId(1), false).unwrap();
        checkpoints.remove_index(index);
        checkpoints.remove(BlockId(1));
        checkpoints.check_integrity(1).unwrap();
    }
}
