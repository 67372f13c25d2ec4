//! Blocks of layers with an attention window. Such a layer needs only the positions that later tokens can
//! see, so its blocks come from a pool of their own: a [`WindowTable`] gives them back as a sequence moves
//! on.
//!
//! A full window block is attached to the node of the prefix tree that holds the same positions in the layers
//! without a window. There it is found again, until its pool needs it for other positions.

use super::BlockId;
use super::pool::{Allocated, BlockPool};
use crate::graph::Window;

/// Layers that share an attention window, and the number of their blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowGroup {
    /// Window of the layers.
    pub window: Window,
    /// Number of their blocks.
    pub n_blocks: u32,
}

impl WindowGroup {
    /// Maximum blocks of a sequence between two steps: those that a token at the start of its last block can
    /// see, and that block.
    pub fn blocks_per_sequence(&self, block_size: usize) -> usize {
        self.window.span().saturating_sub(1).div_ceil(block_size) + 1
    }
}

/// Blocks of a sequence in the layers of one window, by index as in its other table. Entries that nothing can
/// see are [`BlockId::NONE`].
#[derive(Clone, Debug, Default)]
pub struct WindowTable {
    blocks: Vec<BlockId>,
    /// Index of the first entry that may have a block.
    first: usize,
}

impl WindowTable {
    /// The entries.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Number of entries, with and without a block.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Index of the first entry with a block.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Number of blocks.
    pub fn n_held(&self) -> usize {
        self.blocks.len() - self.first
    }

    fn get(&self, index: usize) -> Option<BlockId> {
        let block = self.blocks.get(index).copied();
        block.filter(|&block| block != BlockId::NONE)
    }

    fn replace(&mut self, index: usize, block: BlockId) {
        if let Some(entry) = self.blocks.get_mut(index) {
            *entry = block;
        }
    }
}

/// Bookkeeping of the blocks of one window.
#[derive(Debug)]
pub struct WindowBlocks {
    group: WindowGroup,
    block_size: usize,
    pool: BlockPool,
    /// Block attached to each node.
    of_node: Vec<Option<BlockId>>,
    /// Node to which each block is attached. A block without references is cached if it has one, else free.
    node_of: Vec<Option<BlockId>>,
}

impl WindowBlocks {
    /// Bookkeeping for the blocks of `group`, all free, beside `n_nodes` blocks of the other layers.
    pub fn new(group: WindowGroup, block_size: usize, n_nodes: u32) -> Self {
        Self {
            group,
            block_size,
            pool: BlockPool::new(group.n_blocks),
            of_node: vec![None; n_nodes as usize],
            node_of: vec![None; group.n_blocks as usize],
        }
    }

    /// The layers and the number of blocks.
    pub fn group(&self) -> WindowGroup {
        self.group
    }

    /// Index of the first block that a token at position `n_tokens` or a later one can see.
    pub fn first_visible(&self, n_tokens: usize) -> usize {
        self.group.window.first(n_tokens) / self.block_size
    }

    /// Number of blocks that can still be allocated.
    pub fn n_available(&self) -> usize {
        self.pool.n_free() + self.pool.n_cached()
    }

    /// Number of references to a block.
    pub fn references(&self, block: BlockId) -> u32 {
        self.pool.references(block)
    }

    /// The block attached to `node`. Adds no reference.
    pub fn find(&self, node: BlockId) -> Option<BlockId> {
        *self.of_node.get(node.index())?
    }

    /// Lowest index of a block that a sequence needs to continue after `n_tokens` tokens, and that is neither
    /// in its table nor attached to its node in `nodes`.
    pub fn missing(
        &self,
        table: &WindowTable,
        nodes: &[BlockId],
        n_tokens: usize,
    ) -> Option<usize> {
        let needed = self.first_visible(n_tokens)..n_tokens.div_ceil(self.block_size);
        needed.into_iter().find(|&index| {
            let attached = || self.find(*nodes.get(index)?);
            table.get(index).or_else(attached).is_none()
        })
    }

    /// Gives a table the entries of `n_tokens` positions, with the blocks that a sequence needs to continue
    /// there. None of them may be [missing](Self::missing).
    pub fn hold(&mut self, table: &mut WindowTable, nodes: &[BlockId], n_tokens: usize) {
        let len = n_tokens.div_ceil(self.block_size);
        self.release_tail(table, len);
        table.blocks.resize(len, BlockId::NONE);
        let first = self.first_visible(n_tokens).min(len);
        for index in first..len {
            let attached = nodes.get(index).and_then(|&node| self.find(node));
            if let Some(block) = attached.filter(|_| table.get(index).is_none()) {
                self.pool.retain(block);
                table.replace(index, block);
            }
        }
        self.release_range(table, table.first..first);
        table.first = first;
    }

    /// Allocates blocks until the table has `len` entries; false if every block is used before that.
    pub fn extend(&mut self, table: &mut WindowTable, len: usize) -> bool {
        while table.len() < len {
            let Some(block) = self.allocate() else {
                return false;
            };
            table.blocks.push(block);
        }
        true
    }

    /// Releases the blocks that a sequence of `n_tokens` tokens no longer needs: not even to continue from the
    /// start of its last block, as a request does that finds the sequence in the prefix cache.
    pub fn release_behind(&mut self, table: &mut WindowTable, n_tokens: usize) {
        let first = self.first_visible(n_tokens / self.block_size * self.block_size);
        let first = first.min(table.len());
        if first > table.first {
            self.release_range(table, table.first..first);
            table.first = first;
        }
    }

    /// Shortens a table to `keep` entries, from its end as
    /// [`KvBlocks::release_tail`](super::KvBlocks::release_tail) does.
    pub fn release_tail(&mut self, table: &mut WindowTable, keep: usize) {
        self.release_range(table, keep..table.len());
        table.blocks.truncate(keep);
        table.first = table.first.min(table.len());
    }

    /// Makes the block at `index` of a table writable: the block itself, or a new one if it is shared, to which
    /// the caller must copy the content. Returns the old and the new block. `None` if every block is used.
    pub fn make_writable(
        &mut self,
        table: &mut WindowTable,
        index: usize,
    ) -> Option<(BlockId, BlockId)> {
        let block = table.get(index)?;
        if self.pool.references(block) == 1 {
            self.detach_block(block);
            return Some((block, block));
        }
        let copy = self.allocate()?;
        self.release(block);
        table.replace(index, copy);
        Some((block, copy))
    }

    /// Attaches the block at `index` of a table to `node`. If the node has one already, the table shares it
    /// from now on.
    pub fn publish(&mut self, table: &mut WindowTable, index: usize, node: BlockId) {
        let Some(block) = table.get(index) else {
            return;
        };
        match self.find(node) {
            Some(known) if known != block => {
                self.pool.retain(known);
                self.release(block);
                table.replace(index, known);
            }
            Some(_) => {}
            None => {
                self.detach_block(block);
                if let Some(entry) = self.of_node.get_mut(node.index()) {
                    *entry = Some(block);
                }
                if let Some(entry) = self.node_of.get_mut(block.index()) {
                    *entry = Some(node);
                }
            }
        }
    }

    /// Allocates a block and attaches it to `node`, which has none. The caller fills it and then
    /// [releases](Self::release) its reference.
    pub fn restore(&mut self, node: BlockId) -> Option<BlockId> {
        let block = self.allocate()?;
        let mut table = WindowTable {
            blocks: vec![block],
            first: 0,
        };
        self.publish(&mut table, 0, node);
        Some(block)
    }

    /// A copy of the first `len` entries of a table, which shares its blocks.
    pub fn share(&mut self, table: &WindowTable, len: usize) -> WindowTable {
        let blocks: Vec<BlockId> = table.blocks.iter().take(len).copied().collect();
        let first = table.first.min(blocks.len());
        let held = blocks.iter().skip(first);
        held.for_each(|&block| self.pool.retain(block));
        WindowTable { blocks, first }
    }

    /// Adds a reference to a used or attached block.
    pub fn retain(&mut self, block: BlockId) {
        self.pool.retain(block);
    }

    /// Drops one reference to a block.
    pub fn release(&mut self, block: BlockId) {
        let attached = self.node_of.get(block.index()).is_some_and(Option::is_some);
        self.pool.release(block, attached);
    }

    /// Detaches the block of a node, whose content is about to be forgotten.
    pub fn detach(&mut self, node: BlockId) {
        if let Some(block) = self.find(node) {
            self.detach_block(block);
            self.pool.discard(block);
        }
    }

    fn detach_block(&mut self, block: BlockId) {
        let node = self.node_of.get_mut(block.index()).and_then(Option::take);
        if let Some(entry) = node.and_then(|node| self.of_node.get_mut(node.index())) {
            *entry = None;
        }
    }

    fn allocate(&mut self) -> Option<BlockId> {
        let Allocated { block, evicted } = self.pool.allocate()?;
        if evicted {
            self.detach_block(block);
        }
        Some(block)
    }

    /// Releases the blocks of a range of entries, the last one first.
    fn release_range(&mut self, table: &mut WindowTable, range: std::ops::Range<usize>) {
        for index in range.rev() {
            if let Some(block) = table.get(index) {
                self.release(block);
                table.replace(index, BlockId::NONE);
            }
        }
    }

    /// Checks that pool and attachments are consistent, with `references` as counted by the caller. `is_known`
    /// tells whether the content of a node is known.
    pub fn check_integrity(
        &self,
        references: &[u32],
        is_known: impl Fn(BlockId) -> bool,
    ) -> Result<(), String> {
        self.pool.check_integrity(references)?;
        for (node, block) in (0..).map(BlockId).zip(&self.of_node) {
            let Some(block) = *block else { continue };
            if self.node_of.get(block.index()) != Some(&Some(node)) {
                return Err(format!("{block:?} is not attached to {node:?} in return"));
            }
            if !is_known(node) {
                return Err(format!(
                    "{node:?} has the window block {block:?}, but its content is not known"
                ));
            }
        }
        for (block, node) in (0..).map(BlockId).zip(&self.node_of) {
            let unused = self.pool.references(block) == 0;
            let cached = self.pool.cached_since(block).is_some();
            if unused && cached != node.is_some() {
                return Err(format!(
                    "window block {block:?} of {node:?} is cached: {cached}"
                ));
            }
            if node.is_some_and(|node| self.find(node) != Some(block)) {
                return Err(format!("{node:?} is not attached to {block:?} in return"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// Three blocks of two positions, for a window of three.
    fn blocks() -> WindowBlocks {
        let group = WindowGroup {
            window: Window::Sliding(3),
            n_blocks: 3,
        };
        WindowBlocks::new(group, 2, 8)
    }

    fn check(windows: &WindowBlocks, tables: &[&WindowTable]) {
        let mut references = vec![0; windows.group.n_blocks as usize];
        let held = tables.iter().flat_map(|table| &table.blocks[table.first..]);
        held.for_each(|block| references[block.index()] += 1);
        windows.check_integrity(&references, |_| true).unwrap();
    }

    #[test]
    fn a_table_keeps_what_its_last_block_needs() {
        let mut windows = blocks();
        let mut table = WindowTable::default();
        for n_tokens in 1..40 {
            assert!(windows.extend(&mut table, usize::div_ceil(n_tokens, 2)));
            windows.release_behind(&mut table, n_tokens);
            // From position 2⌊n/2⌋ on, the two positions before it are visible.
            assert_eq!(table.first(), (n_tokens / 2).saturating_sub(1));
            assert!(table.n_held() <= windows.group.blocks_per_sequence(2));
            check(&windows, &[&table]);
        }
    }

    #[test]
    fn a_chunk_is_released_at_its_end() {
        let group = WindowGroup {
            window: Window::Chunk(4),
            n_blocks: 3,
        };
        let mut windows = WindowBlocks::new(group, 2, 8);
        let mut table = WindowTable::default();
        for (n_tokens, first) in [(1, 0), (2, 0), (3, 0), (4, 2), (5, 2), (6, 2), (8, 4)] {
            assert!(windows.extend(&mut table, usize::div_ceil(n_tokens, 2)));
            windows.release_behind(&mut table, n_tokens);
            assert_eq!(table.first(), first, "{n_tokens} tokens");
            check(&windows, &[&table]);
        }
    }

    #[test]
    fn attached_blocks_are_found_until_they_are_evicted() {
        let mut windows = blocks();
        let nodes = [BlockId(4), BlockId(6), BlockId(7)];
        let mut table = WindowTable::default();
        assert!(windows.extend(&mut table, 2));
        for (index, &node) in nodes[..2].iter().enumerate() {
            windows.publish(&mut table, index, node);
        }
        windows.release_tail(&mut table, 0);
        check(&windows, &[]);
        assert_eq!(windows.missing(&table, &nodes, 4), None);
        assert_eq!(windows.missing(&table, &nodes, 6), Some(2));

        // Two free or cached blocks are taken: the block of the second node is evicted, which was released first.
        let mut other = WindowTable::default();
        assert!(windows.extend(&mut other, 2));
        assert_eq!(windows.missing(&table, &nodes, 4), Some(1));
        assert_eq!(windows.missing(&table, &nodes, 2), None);
        windows.hold(&mut table, &nodes, 2);
        assert!(!windows.extend(&mut other, 3));
        check(&windows, &[&table, &other]);
    }

    #[test]
    fn a_shared_block_is_copied_and_an_attached_one_detached_before_a_write() {
        let mut windows = blocks();
        let mut table = WindowTable::default();
        assert!(windows.extend(&mut table, 1));
        windows.publish(&mut table, 0, BlockId(5));
        let mut child = windows.share(&table, 1);
        let (from, to) = windows.make_writable(&mut child, 0).unwrap();
        assert_eq!((table.blocks()[0], child.blocks()[0]), (from, to));
        check(&windows, &[&table, &child]);
        assert_eq!(windows.make_writable(&mut table, 0), Some((from, from)));
        assert_eq!(windows.find(BlockId(5)), None);
        check(&windows, &[&table, &child]);
    }
}
