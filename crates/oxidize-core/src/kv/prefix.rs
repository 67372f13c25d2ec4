//! Content index of full KV blocks, used to reuse computed prefixes. Blocks form a tree: the content of a
//! block is its tokens after all tokens of its ancestors. The lifetime of a block is tracked by `pool`; the
//! parent module joins the two.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::BlockId;

/// Index from content to block.
///
/// A hash of salt, parent and tokens selects candidates, and their stored tokens are compared: a hash
/// collision costs a comparison and never returns a wrong block.
#[derive(Debug)]
pub struct PrefixCache {
    entries: Vec<Option<Entry>>,
    index: BTreeSet<(u64, BlockId)>,
}

/// Content of a full block.
#[derive(Clone, Copy, Debug)]
pub struct BlockKey<'a> {
    /// Namespace for tenants and adapters that must not share blocks: the same tokens under another salt are
    /// different content.
    pub salt: u64,
    /// Block of the preceding tokens, which must be known; `None` at the start of a sequence.
    pub parent: Option<BlockId>,
    /// Tokens of this block.
    pub tokens: &'a [u32],
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    salt: u64,
    /// Stays valid, because a block is removed only after all its children.
    parent: Option<BlockId>,
    tokens: Box<[u32]>,
    /// Number of known blocks whose parent is this one.
    children: u32,
}

impl PrefixCache {
    /// Empty index over `n_blocks` blocks.
    pub fn new(n_blocks: u32) -> Self {
        Self {
            entries: (0..n_blocks).map(|_| None).collect(),
            index: BTreeSet::new(),
        }
    }

    /// Block that holds this content, if it is known.
    pub fn find(&self, key: &BlockKey<'_>) -> Option<BlockId> {
        let hash = self.hash(key)?;
        let same_hash = (hash, BlockId(0))..=(hash, BlockId(u32::MAX));
        self.index
            .range(same_hash)
            .map(|&(_, block)| block)
            .find(|&block| {
                self.entry(block).is_some_and(|entry| {
                    entry.salt == key.salt
                        && entry.parent == key.parent
                        && *entry.tokens == *key.tokens
                })
            })
    }

    /// Records the content of `block`. The content must not be known yet, and the block must have none.
    pub fn insert(&mut self, key: &BlockKey<'_>, block: BlockId) {
        debug_assert!(self.find(key).is_none() && !self.contains(block));
        let Some(hash) = self.hash(key) else {
            debug_assert!(false, "the parent of {block:?} is not known");
            return;
        };
        if let Some(parent) = self.parent_entry(key.parent) {
            parent.children += 1;
        }
        let BlockKey {
            salt,
            parent,
            tokens,
        } = *key;
        if let Some(entry) = self.entries.get_mut(block.index()) {
            *entry = Some(Entry {
                hash,
                salt,
                parent,
                tokens: tokens.into(),
                children: 0,
            });
            self.index.insert((hash, block));
        }
    }

    /// Removes a block without children from the index.
    pub fn remove(&mut self, block: BlockId) {
        let Some(entry) = self.entries.get_mut(block.index()).and_then(Option::take) else {
            return;
        };
        debug_assert_eq!(
            entry.children, 0,
            "{block:?} is removed before its children"
        );
        self.index.remove(&(entry.hash, block));
        if let Some(parent) = self.parent_entry(entry.parent) {
            parent.children -= 1;
        }
    }

    /// True if the content of the block is known.
    pub fn contains(&self, block: BlockId) -> bool {
        self.entry(block).is_some()
    }

    /// Number of known blocks whose parent is `block`.
    pub fn children(&self, block: BlockId) -> u32 {
        self.entry(block).map_or(0, |entry| entry.children)
    }

    /// Tokens of a known block.
    pub fn tokens(&self, block: BlockId) -> Option<&[u32]> {
        self.entry(block).map(|entry| &*entry.tokens)
    }

    /// All known blocks, each with its parent.
    pub fn edges(&self) -> impl Iterator<Item = (BlockId, Option<BlockId>)> + '_ {
        let entries = (0..).map(BlockId).zip(&self.entries);
        entries.filter_map(|(block, entry)| Some((block, entry.as_ref()?.parent)))
    }

    /// Checks that index, entries and child counts are consistent.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut children = vec![0; self.entries.len()];
        let mut n_known = 0;
        for (block, parent) in self.edges() {
            n_known += 1;
            if !self
                .entry(block)
                .is_some_and(|entry| self.index.contains(&(entry.hash, block)))
            {
                return Err(format!("{block:?} is known but not indexed"));
            }
            let Some(parent) = parent else { continue };
            if !self.contains(parent) {
                return Err(format!(
                    "{block:?} has the parent {parent:?}, which is not known"
                ));
            }
            if let Some(count) = children.get_mut(parent.index()) {
                *count += 1;
            }
        }
        if n_known != self.index.len() {
            return Err(format!(
                "{n_known} blocks are known, {} are indexed",
                self.index.len()
            ));
        }
        match (0..)
            .map(BlockId)
            .zip(&children)
            .find(|&(id, &n)| self.children(id) != n)
        {
            Some((id, n)) => Err(format!(
                "{id:?} counts {} children, but has {n}",
                self.children(id)
            )),
            None => Ok(()),
        }
    }

    /// Hash of the content; `None` if the parent is not known. SipHash, because clients choose the tokens and
    /// must not be able to make many blocks collide.
    fn hash(&self, key: &BlockKey<'_>) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        match key.parent {
            Some(parent) => (1u8, self.entry(parent)?.hash).hash(&mut hasher),
            None => (0u8, key.salt).hash(&mut hasher),
        }
        key.tokens.hash(&mut hasher);
        Some(hasher.finish())
    }

    fn entry(&self, block: BlockId) -> Option<&Entry> {
        self.entries.get(block.index())?.as_ref()
    }

    fn parent_entry(&mut self, parent: Option<BlockId>) -> Option<&mut Entry> {
        self.entries.get_mut(parent?.index())?.as_mut()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn key(parent: Option<u32>, tokens: &[u32]) -> BlockKey<'_> {
        BlockKey {
            salt: 0,
            parent: parent.map(BlockId),
            tokens,
        }
    }

    #[test]
    fn content_includes_the_parents() {
        let mut cache = PrefixCache::new(4);
        cache.insert(&key(None, &[1, 2]), BlockId(0));
        cache.insert(&key(None, &[3, 4]), BlockId(1));
        cache.insert(&key(Some(0), &[5, 6]), BlockId(2));
        assert_eq!(cache.find(&key(Some(0), &[5, 6])), Some(BlockId(2)));
        assert_eq!(cache.find(&key(Some(1), &[5, 6])), None);
        assert_eq!(cache.find(&key(None, &[5, 6])), None);
        cache.check_integrity().unwrap();
    }

    #[test]
    fn hash_collision_finds_no_wrong_block() {
        let mut cache = PrefixCache::new(3);
        let wanted = key(None, &[1, 2]);
        let hash = cache.hash(&wanted).unwrap();
        // Forged collisions: entries with other tokens and another salt under the hash of `wanted`.
        cache.insert(&key(None, &[7, 7]), BlockId(1));
        cache.insert(&BlockKey { salt: 5, ..wanted }, BlockId(2));
        cache.index.insert((hash, BlockId(1)));
        cache.index.insert((hash, BlockId(2)));
        assert_eq!(cache.find(&wanted), None);
        assert!(cache.check_integrity().is_err());
        cache.insert(&wanted, BlockId(0));
        assert_eq!(cache.find(&wanted), Some(BlockId(0)));
    }

    #[test]
    fn removal_updates_child_count() {
        let mut cache = PrefixCache::new(2);
        cache.insert(&key(None, &[1]), BlockId(0));
        cache.insert(&key(Some(0), &[2]), BlockId(1));
        assert_eq!(cache.children(BlockId(0)), 1);
        cache.remove(BlockId(1));
        assert_eq!(cache.children(BlockId(0)), 0);
        assert_eq!(cache.find(&key(Some(0), &[2])), None);
        cache.check_integrity().unwrap();
    }
}
