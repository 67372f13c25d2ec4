//! Reference counts of KV blocks and the eviction order of unused ones. The content of a block is tracked by
//! `prefix`; the parent module joins the two.

use std::collections::BTreeSet;

use super::BlockId;

/// Reference-counted blocks, numbered from zero. A block without references is free or, if its content is
/// known, cached; cached blocks are evicted least recently used first.
#[derive(Debug)]
pub struct BlockPool {
    /// Free blocks; the last one is allocated next.
    free: Vec<BlockId>,
    blocks: Vec<Block>,
    /// Cached blocks by the time of their last release, which makes eviction deterministic.
    cached: BTreeSet<(u64, BlockId)>,
    /// Logical clock that counts releases.
    time: u64,
}

/// Result of [`BlockPool::allocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Allocated block, with one reference.
    pub block: BlockId,
    /// True if the block was cached until now: its previous content is no longer available.
    pub evicted: bool,
}

#[derive(Clone, Debug, Default)]
struct Block {
    references: u32,
    /// Time of the last release; with the id, the block's key in `cached`.
    released: u64,
}

impl BlockPool {
    /// Pool of `n_blocks` free blocks.
    pub fn new(n_blocks: u32) -> Self {
        Self {
            free: (0..n_blocks).rev().map(BlockId).collect(),
            blocks: vec![Block::default(); n_blocks as usize],
            cached: BTreeSet::new(),
            time: 0,
        }
    }

    /// Returns a free block, else evicts the cached block that was released longest ago.
    pub fn allocate(&mut self) -> Option<Allocated> {
        let (block, evicted) = match self.free.pop() {
            Some(block) => (block, false),
            None => (self.cached.pop_first()?.1, true),
        };
        if let Some(state) = self.blocks.get_mut(block.index()) {
            state.references = 1;
        }
        Some(Allocated { block, evicted })
    }

    /// Adds a reference to a used or cached block.
    pub fn retain(&mut self, block: BlockId) {
        let Some(state) = self.blocks.get_mut(block.index()) else {
            return;
        };
        if state.references == 0 {
            let was_cached = self.cached.remove(&(state.released, block));
            debug_assert!(was_cached, "{block:?} is free and cannot be retained");
        }
        state.references += 1;
    }

    /// Drops one reference. The last one leaves the block cached if `keep` is set, else free.
    pub fn release(&mut self, block: BlockId, keep: bool) {
        let Some(state) = self.blocks.get_mut(block.index()) else {
            return;
        };
        debug_assert!(
            state.references > 0,
            "{block:?} is released more often than retained"
        );
        state.references = state.references.saturating_sub(1);
        if state.references > 0 {
            return;
        }
        if keep {
            self.time += 1;
            state.released = self.time;
            self.cached.insert((state.released, block));
        } else {
            self.free.push(block);
        }
    }

    /// Frees all cached blocks and returns them.
    pub fn free_cached(&mut self) -> Vec<BlockId> {
        let blocks: Vec<BlockId> = self.cached().collect();
        self.cached.clear();
        self.free.extend_from_slice(&blocks);
        blocks
    }

    /// Frees a block if it is cached.
    pub fn discard(&mut self, block: BlockId) {
        if let Some(released) = self.cached_since(block) {
            self.cached.remove(&(released, block));
            self.free.push(block);
        }
    }

    /// Number of references to a block.
    pub fn references(&self, block: BlockId) -> u32 {
        self.blocks
            .get(block.index())
            .map_or(0, |state| state.references)
    }

    /// Cached blocks in eviction order.
    pub fn cached(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.cached.iter().map(|&(_, block)| block)
    }

    /// Logical time at which a cached block was released; `None` for other blocks.
    pub fn cached_since(&self, block: BlockId) -> Option<u64> {
        let released = self.blocks.get(block.index())?.released;
        self.cached.contains(&(released, block)).then_some(released)
    }

    /// Number of free blocks.
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Number of cached blocks.
    pub fn n_cached(&self) -> usize {
        self.cached.len()
    }

    /// Number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Checks that each block is exactly one of free, cached and used, and that its reference count equals
    /// the caller's count in `references`.
    pub fn check_integrity(&self, references: &[u32]) -> Result<(), String> {
        let mut unused = vec![false; self.blocks.len()];
        for block in self.free.iter().copied().chain(self.cached()) {
            match unused.get_mut(block.index()) {
                Some(seen @ false) => *seen = true,
                Some(_) => return Err(format!("{block:?} is free or cached twice")),
                None => return Err(format!("{block:?} is not a block of this pool")),
            }
        }
        if references.len() != self.blocks.len() {
            return Err(format!(
                "the pool has {} blocks, the caller counted {}",
                self.blocks.len(),
                references.len()
            ));
        }
        for (id, ((state, &counted), &unused)) in (0..)
            .map(BlockId)
            .zip(self.blocks.iter().zip(references).zip(&unused))
        {
            if state.references != counted {
                let held = state.references;
                return Err(format!(
                    "{id:?} has {held} references, the caller counted {counted}"
                ));
            }
            if unused != (counted == 0) {
                return Err(format!(
                    "{id:?} has {counted} references, but unused is {unused}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn free_blocks_are_allocated_before_cached_ones() {
        let mut pool = BlockPool::new(3);
        let first = pool.allocate().unwrap().block;
        let second = pool.allocate().unwrap().block;
        pool.release(first, true);
        pool.release(second, true);
        assert!(!pool.allocate().unwrap().evicted);
        assert_eq!(
            pool.allocate(),
            Some(Allocated {
                block: first,
                evicted: true
            })
        );
        assert_eq!(
            pool.allocate(),
            Some(Allocated {
                block: second,
                evicted: true
            })
        );
        assert_eq!(pool.allocate(), None);
    }

    #[test]
    fn retain_moves_block_to_end_of_eviction_order() {
        let mut pool = BlockPool::new(2);
        let first = pool.allocate().unwrap().block;
        let second = pool.allocate().unwrap().block;
        pool.release(first, true);
        pool.release(second, true);
        pool.retain(first);
        assert_eq!(pool.cached_since(first), None);
        pool.release(first, true);
        assert_eq!(pool.cached().collect::<Vec<_>>(), [second, first]);
        pool.check_integrity(&[0, 0]).unwrap();
    }

    #[test]
    fn integrity_check_compares_reference_counts() {
        let mut pool = BlockPool::new(2);
        let block = pool.allocate().unwrap().block;
        pool.retain(block);
        pool.check_integrity(&[2, 0]).unwrap();
        assert!(pool.check_integrity(&[1, 0]).is_err());
        assert!(pool.check_integrity(&[2]).is_err());
    }
}
