//! Bookkeeping of the paged KV cache: ownership of blocks, and lookup of blocks by content. The bytes of a
//! block live in the backend's session, which identifies it by its [`BlockId`]. `pool` counts references, `prefix`
//! finds blocks by content, `checkpoint` tracks copies of recurrent state at block ends, and `windows` has the
//! blocks of layers with an attention window; the scheduler uses all of them through [`KvBlocks`]. `store`
//! keeps blocks on disk for the engine.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod checkpoint;
mod pool;
mod prefix;
mod store;
mod windows;

pub use checkpoint::Checkpoints;
pub use pool::{Allocated, BlockPool};
pub use prefix::{BlockKey, PrefixCache};
pub use store::{BlockName, BlockStore, BlockWriter};
pub use windows::{WindowBlocks, WindowGroup, WindowTable};

/// A fixed-size block of the KV cache, which holds `block_size` positions of every layer of a group. Layers
/// that share an attention window may form a group, whose blocks are numbered on their own; all others are
/// group 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Entry of a block table for positions that no token can see any more.
    pub const NONE: BlockId = BlockId(u32::MAX);

    /// Index of the block in an array over all blocks.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A copy of a whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Group of layers of the blocks.
    pub group: usize,
    /// Block to read.
    pub from: BlockId,
    /// Block to write.
    pub to: BlockId,
}

/// Block pool, prefix cache, checkpoints and window blocks, kept consistent with each other.
///
/// A block is *free*, *used* (it has references) or *cached* (it has none, but its content is known and can
/// be reused). Only full blocks become known, and a known block is never written:
/// [`make_writable`](Self::make_writable) returns a copy or makes it unknown first.
#[derive(Debug)]
pub struct KvBlocks {
    pool: BlockPool,
    prefix: PrefixCache,
    checkpoints: Checkpoints,
    n_checkpoints: u32,
    /// Blocks of each group of layers with a window: those of groups 1 and up.
    windows: Vec<WindowBlocks>,
    block_size: usize,
}

impl KvBlocks {
    /// Bookkeeping for `n_blocks` blocks of `block_size` positions, all free.
    pub fn new(n_blocks: u32, block_size: usize) -> Self {
        Self {
            pool: BlockPool::new(n_blocks),
            prefix: PrefixCache::new(n_blocks),
            checkpoints: Checkpoints::new(0),
            n_checkpoints: 0,
            windows: Vec::new(),
            block_size,
        }
    }

    /// Adds `n_checkpoints` copies of recurrent state, all free.
    pub fn with_checkpoints(self, n_checkpoints: u32) -> Self {
        Self {
            checkpoints: Checkpoints::new(n_checkpoints),
            n_checkpoints,
            ..self
        }
    }

    /// Adds the blocks of layers with a window, all free.
    pub fn with_windows(self, groups: &[WindowGroup]) -> Self {
        let n_nodes = self.pool.n_blocks() as u32;
        let windows = groups.iter();
        let windows = windows.map(|&group| WindowBlocks::new(group, self.block_size, n_nodes));
        Self {
            windows: windows.collect(),
            ..self
        }
    }

    /// Allocates a block with undefined content and one reference. If none is free, the least recently used
    /// cached block is evicted. `None` if every block is used.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let Allocated { block, evicted } = self.pool.allocate()?;
        if evicted {
            self.unpublish(block);
        }
        Some(block)
    }

    /// Adds a reference to a used or cached block.
    pub fn retain(&mut self, block: BlockId) {
        self.pool.retain(block);
    }

    /// Drops one reference. The last one leaves the block cached if its content is known, else free.
    pub fn release(&mut self, block: BlockId) {
        self.pool.release(block, self.prefix.contains(block));
    }

    /// Shortens a sequence's block table to `keep` blocks.
    ///
    /// The tail is released first, so that a cached block is always older than its parent: eviction takes
    /// leaves of the prefix tree and never cuts a branch.
    pub fn release_tail(&mut self, table: &mut Vec<BlockId>, keep: usize) {
        while table.len() > keep {
            if let Some(block) = table.pop() {
                self.release(block);
            }
        }
    }

    /// Returns the block to write to in place of `block`, to which the caller holds a reference: `block`
    /// itself if it is neither shared nor needed by a cached continuation, otherwise a new block to which the
    /// caller must copy the content. `None` if a new block is needed and every block is used.
    ///
    /// This never fails for the only user of a block: blocks that continue its content are then cached, so
    /// one of them can be evicted.
    pub fn make_writable(&mut self, block: BlockId) -> Option<BlockId> {
        if self.pool.references(block) == 1 {
            if !self.prefix.contains(block) {
                return Some(block);
            }
            if self.prefix.children(block) == 0 {
                self.unpublish(block);
                return Some(block);
            }
        }
        let copy = self.allocate()?;
        self.release(block);
        Some(copy)
    }

    /// The block that holds this content, if it is known. Adds no reference.
    pub fn find(&self, key: &BlockKey<'_>) -> Option<BlockId> {
        self.prefix.find(key)
    }

    /// Blocks that hold the longest known prefix of `tokens`, in whole blocks. Adds no reference. Of these
    /// positions, a sequence can [reuse](Self::resumable) those whose window blocks are there as well.
    pub fn find_prefix(&self, salt: u64, tokens: &[u32]) -> Vec<BlockId> {
        let mut found: Vec<BlockId> = Vec::new();
        for tokens in tokens.chunks_exact(self.block_size) {
            let key = BlockKey {
                salt,
                parent: found.last().copied(),
                tokens,
            };
            match self.prefix.find(&key) {
                Some(block) => found.push(block),
                None => break,
            }
        }
        found
    }

    /// Number of the first `n_tokens` positions after which a sequence can continue: `n_tokens` itself, or else
    /// the longest prefix in whole blocks. Every window block that the next token can see must be in the
    /// sequence's table or attached to its node in `nodes`; with `from_checkpoint`, recurrent state must be
    /// there as well.
    pub fn resumable(
        &self,
        nodes: &[BlockId],
        tables: &[WindowTable],
        n_tokens: usize,
        from_checkpoint: bool,
    ) -> usize {
        let mut n_tokens = n_tokens;
        loop {
            let windows = self.windows.iter().zip(tables);
            let missing = windows.filter_map(|(w, table)| w.missing(table, nodes, n_tokens));
            let reached = match missing.min() {
                // Every longer prefix needs the missing block, too.
                Some(index) => index * self.block_size,
                None if from_checkpoint => {
                    let mut full = nodes.iter().take(n_tokens / self.block_size);
                    let last = full.rposition(|&node| self.checkpoints.contains(node));
                    last.map_or(0, |last| (last + 1) * self.block_size)
                }
                None => n_tokens,
            };
            if reached == n_tokens {
                return n_tokens;
            }
            n_tokens = reached;
        }
    }

    /// Gives a sequence with the blocks `nodes` the window blocks that it needs to continue after `n_tokens`
    /// tokens, which must be [resumable](Self::resumable).
    pub fn hold_windows(&mut self, tables: &mut [WindowTable], nodes: &[BlockId], n_tokens: usize) {
        for (windows, table) in self.windows.iter_mut().zip(tables) {
            windows.hold(table, nodes, n_tokens);
        }
    }

    /// Records that `block`, to which the caller holds a reference, holds the content of `key`.
    ///
    /// Returns the block that the caller holds a reference to from now on. If another block with the same
    /// content is known, that one is returned and `block` is released: sequences that computed the same
    /// content share it, and every known block stays reachable from its parent.
    pub fn publish(&mut self, key: &BlockKey<'_>, block: BlockId) -> BlockId {
        match self.prefix.find(key) {
            Some(known) if known != block => {
                self.pool.retain(known);
                self.release(block);
                known
            }
            Some(known) => known,
            None => {
                self.prefix.insert(key, block);
                block
            }
        }
    }

    /// Evicts all cached blocks, which become free.
    pub fn clear_cached(&mut self) {
        for block in self.pool.free_cached() {
            self.unpublish(block);
        }
    }

    fn unpublish(&mut self, block: BlockId) {
        self.prefix.remove(block);
        self.checkpoints.remove(block);
        self.windows.iter_mut().for_each(|w| w.detach(block));
    }

    /// Blocks of the layers with a window, by group from 1 on.
    pub fn windows(&self) -> &[WindowBlocks] {
        &self.windows
    }

    /// Mutable access to the window blocks.
    pub fn windows_mut(&mut self) -> &mut [WindowBlocks] {
        &mut self.windows
    }

    /// Checkpoints of recurrent state. Only a block whose content is known has one.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Mutable access to the checkpoints.
    pub fn checkpoints_mut(&mut self) -> &mut Checkpoints {
        &mut self.checkpoints
    }

    /// Number of references to a block.
    pub fn references(&self, block: BlockId) -> u32 {
        self.pool.references(block)
    }

    /// Tokens of a known block.
    pub fn known_tokens(&self, block: BlockId) -> Option<&[u32]> {
        self.prefix.tokens(block)
    }

    /// Number of free blocks.
    pub fn n_free(&self) -> usize {
        self.pool.n_free()
    }

    /// Number of cached blocks.
    pub fn n_cached(&self) -> usize {
        self.pool.n_cached()
    }

    /// Number of blocks that [`allocate`](Self::allocate) can still return: free and cached ones.
    pub fn n_available(&self) -> usize {
        self.pool.n_free() + self.pool.n_cached()
    }

    /// Number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.pool.n_blocks()
    }

    /// Checks that all parts are consistent with each other and with `references`, the number of references
    /// per block of each group that the caller counted.
    pub fn check_integrity(&self, references: &[Vec<u32>]) -> Result<(), String> {
        let (own, of_windows) = references.split_first().ok_or("no group is counted")?;
        if of_windows.len() != self.windows.len() {
            let n_groups = references.len();
            return Err(format!("{n_groups} groups are counted, one is missing"));
        }
        for (windows, references) in self.windows.iter().zip(of_windows) {
            windows.check_integrity(references, |node| self.prefix.contains(node))?;
        }
        self.pool.check_integrity(own)?;
        self.prefix.check_integrity()?;
        self.checkpoints.check_integrity(self.n_checkpoints)?;
        let mut checkpoints = self.checkpoints.blocks();
        if let Some(block) = checkpoints.find(|&block| !self.prefix.contains(block)) {
            return Err(format!(
                "{block:?} has a checkpoint, but its content is not known"
            ));
        }
        for (block, parent) in self.prefix.edges() {
            let cached = self.pool.cached_since(block);
            if self.pool.references(block) == 0 && cached.is_none() {
                return Err(format!("{block:?} is known but neither used nor cached"));
            }
            let Some(parent) = parent else { continue };
            // A used block must not have a cached parent, and a cached one must be older than it; see
            // `release_tail`.
            let parent_cached = self.pool.cached_since(parent);
            if parent_cached.is_some() && (cached.is_none() || cached >= parent_cached) {
                return Err(format!(
                    "{parent:?} would be evicted before its child {block:?}"
                ));
            }
        }
        match self
            .pool
            .cached()
            .find(|&block| !self.prefix.contains(block))
        {
            Some(block) => Err(format!("{block:?} is cached but its content is not known")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    const BLOCK_SIZE: usize = 2;

    /// Allocates and publishes blocks for `tokens`; returns the table.
    fn fill(kv: &mut KvBlocks, salt: u64, tokens: &[u32]) -> Vec<BlockId> {
        let mut table: Vec<BlockId> = Vec::new();
        for tokens in tokens.chunks_exact(BLOCK_SIZE) {
            let block = kv.allocate().unwrap();
            let parent = table.last().copied();
            table.push(kv.publish(
                &BlockKey {
                    salt,
                    parent,
                    tokens,
                },
                block,
            ));
        }
        table
    }

    fn check(kv: &KvBlocks, tables: &[&[BlockId]]) {
        let mut references = vec![0; kv.n_blocks()];
        tables
            .iter()
            .flat_map(|table| table.iter())
            .for_each(|b| references[b.index()] += 1);
        kv.check_integrity(&[references]).unwrap();
    }

    #[test]
    fn released_prefix_is_found_and_evicted_from_its_end() {
        let mut kv = KvBlocks::new(4, BLOCK_SIZE);
        let mut table = fill(&mut kv, 0, &[1, 2, 3, 4, 5, 6]);
        let first = table.clone();
        kv.release_tail(&mut table, 0);
        assert_eq!((kv.n_free(), kv.n_cached()), (1, 3));
        assert_eq!(kv.find_prefix(0, &[1, 2, 3, 4, 9, 9]), first[..2]);

        let taken = [kv.allocate().unwrap(), kv.allocate().unwrap()];
        assert_eq!(kv.find_prefix(0, &[1, 2, 3, 4, 5, 6]), first[..2]);
        check(&kv, &[&taken]);
    }

    #[test]
    fn other_salt_finds_nothing() {
        let mut kv = KvBlocks::new(4, BLOCK_SIZE);
        let table = fill(&mut kv, 7, &[1, 2, 3, 4]);
        assert!(kv.find_prefix(8, &[1, 2, 3, 4]).is_empty());
        assert_eq!(kv.find_prefix(7, &[1, 2, 3, 4]), table);
    }

    #[test]
    fn duplicate_content_is_stored_once() {
        let mut kv = KvBlocks::new(8, BLOCK_SIZE);
        let first = fill(&mut kv, 0, &[1, 2, 3, 4]);
        let second = fill(&mut kv, 0, &[1, 2, 3, 4]);
        assert_eq!(first, second);
        assert_eq!(kv.n_free(), 6);
        check(&kv, &[&first, &second]);
    }

    #[test]
    fn shared_block_is_copied_before_write() {
        let mut kv = KvBlocks::new(2, BLOCK_SIZE);
        let block = kv.allocate().unwrap();
        assert_eq!(kv.make_writable(block), Some(block));
        kv.retain(block);
        let copy = kv.make_writable(block).unwrap();
        assert_ne!(copy, block);
        assert_eq!((kv.references(block), kv.references(copy)), (1, 1));
        check(&kv, &[&[block], &[copy]]);
    }

    #[test]
    fn known_block_is_unpublished_or_copied_before_write() {
        let mut kv = KvBlocks::new(2, BLOCK_SIZE);
        let mut table = fill(&mut kv, 0, &[1, 2, 3, 4]);
        kv.release_tail(&mut table, 1);
        // The block has a cached child, so it is copied. The pool is full, so the child is evicted.
        let copy = kv.make_writable(table[0]).unwrap();
        assert_ne!(copy, table[0]);
        assert_eq!(kv.find_prefix(0, &[1, 2, 3, 4]), table);
        check(&kv, &[&[copy]]);

        // A block without children is written in place and is no longer found.
        let leaf = kv.publish(
            &BlockKey {
                salt: 0,
                parent: None,
                tokens: &[8, 9],
            },
            copy,
        );
        assert_eq!(kv.make_writable(leaf), Some(leaf));
        assert!(kv.find_prefix(0, &[8, 9]).is_empty());
        check(&kv, &[&[leaf]]);
    }

    #[test]
    fn allocate_fails_when_every_block_is_used() {
        let mut kv = KvBlocks::new(1, BLOCK_SIZE);
        let block = kv.allocate().unwrap();
        assert_eq!(kv.allocate(), None);
        kv.release(block);
        assert_eq!(kv.allocate(), Some(block));
    }

    #[test]
    fn clearing_frees_cached_blocks_only() {
        let mut kv = KvBlocks::new(4, BLOCK_SIZE);
        let mut gone = fill(&mut kv, 0, &[1, 2, 3, 4]);
        let kept = fill(&mut kv, 0, &[5, 6]);
        kv.release_tail(&mut gone, 0);
        kv.clear_cached();
        assert_eq!((kv.n_free(), kv.n_cached()), (3, 0));
        assert!(kv.find_prefix(0, &[1, 2]).is_empty());
        assert_eq!(kv.find_prefix(0, &[5, 6]), kept);
        check(&kv, &[&kept]);
    }

    #[test]
    fn integrity_check_reports_leaked_block() {
        let mut kv = KvBlocks::new(2, BLOCK_SIZE);
        let block = kv.allocate().unwrap();
        let error = kv.check_integrity(&[vec![0, 0]]).unwrap_err();
        assert!(error.contains(&format!("{block:?}")), "{error}");
    }
}
