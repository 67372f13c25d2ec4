//! Byte trie that finds all keys that are a prefix of a text in one walk. Used for special tokens,
//! Unigram, WordPiece and RWKV.

use super::TokenId;

/// Byte trie with nodes in breadth-first order: the children of a node are contiguous.
#[derive(Debug)]
pub(super) struct Trie {
    /// Byte on the edge to each node.
    labels: Vec<u8>,
    /// First child of each node; the entry of the next node is the end.
    children: Vec<u32>,
    /// Id of the key that ends at each node, or [`NO_VALUE`].
    values: Vec<TokenId>,
    /// Children of the root by byte: most walks end there.
    roots: Box<[u32; 256]>,
}

const NO_VALUE: TokenId = TokenId::MAX;
const NO_NODE: u32 = u32::MAX;

impl Trie {
    /// Builds a trie over `keys`. The first of equal keys is kept; empty keys are skipped.
    pub(super) fn new<'k>(keys: impl IntoIterator<Item = (&'k [u8], TokenId)>) -> Trie {
        let mut keys: Vec<(&[u8], TokenId)> = keys.into_iter().collect();
        keys.retain(|(key, _)| !key.is_empty());
        keys.sort_by_key(|&(key, _)| key);
        keys.dedup_by_key(|(key, _)| *key);

        let mut trie = Trie {
            labels: vec![0],
            children: Vec::new(),
            values: vec![NO_VALUE],
            roots: Box::new([NO_NODE; 256]),
        };
        // A node is a range of keys that share their first `depth` bytes.
        let mut level = vec![(0, keys.len())];
        let mut depth = 0;
        while !level.is_empty() {
            let mut below = Vec::new();
            for (start, end) in level {
                trie.children.push(trie.labels.len() as u32);
                let mut at = start;
                while let Some((key, id)) = keys.get(at..end).and_then(<[_]>::first) {
                    let Some(&label) = key.get(depth) else {
                        // The key that ends at the node itself sorts first in its range.
                        at += 1;
                        continue;
                    };
                    let same = keys.get(at..end).unwrap_or_default();
                    let next = at + same.partition_point(|(key, _)| key.get(depth) == Some(&label));
                    trie.labels.push(label);
                    trie.values.push(if key.len() == depth + 1 {
                        *id
                    } else {
                        NO_VALUE
                    });
                    below.push((at, next));
                    at = next;
                }
            }
            level = below;
            depth += 1;
        }
        trie.children.push(trie.labels.len() as u32);
        for node in 1..trie.children.get(1).map_or(1, |&end| end as usize) {
            if let Some(root) = trie
                .labels
                .get(node)
                .and_then(|&label| trie.roots.get_mut(usize::from(label)))
            {
                *root = node as u32;
            }
        }
        trie
    }

    /// True if a key starts with `byte`.
    #[inline]
    pub(super) fn may_start(&self, byte: u8) -> bool {
        self.roots
            .get(usize::from(byte))
            .is_some_and(|&node| node != NO_NODE)
    }

    /// Calls `each` with the length and id of every key that is a prefix of `text`, shortest first.
    #[inline]
    pub(super) fn prefixes(&self, text: &[u8], mut each: impl FnMut(usize, TokenId)) {
        let Some((&first, rest)) = text.split_first() else {
            return;
        };
        let Some(&root) = self.roots.get(usize::from(first)) else {
            return;
        };
        let mut node = root as usize;
        let mut rest = rest.iter();
        let mut len = 1;
        while let Some(&value) = self.values.get(node) {
            if value != NO_VALUE {
                each(len, value);
            }
            let Some(&byte) = rest.next() else { return };
            let Some(child) = self.child(node, byte) else {
                return;
            };
            node = child;
            len += 1;
        }
    }

    /// Longest key that is a prefix of `text`.
    #[inline]
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, TokenId)> {
        let mut found = None;
        self.prefixes(text, |len, id| found = Some((len, id)));
        found
    }

    #[inline]
    fn child(&self, node: usize, byte: u8) -> Option<usize> {
        let start = *self.children.get(node)? as usize;
        let end = *self.children.get(node + 1)? as usize;
        let labels = self.labels.get(start..end)?;
        if labels.len() <= 8 {
            labels
                .iter()
                .position(|&label| label == byte)
                .map(|i| start + i)
        } else {
            labels.binary_search(&byte).ok().map(|i| start + i)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trie(keys: &[&str]) -> Trie {
        Trie::new(
            keys.iter()
                .enumerate()
                .map(|(id, key)| (key.as_bytes(), id as TokenId)),
        )
    }

    #[test]
    fn prefixes_are_found_shortest_first() {
        let trie = trie(&["abc", "a", "", "ab", "b", "ab", "abcd"]);
        let mut found = Vec::new();
        trie.prefixes(b"abcx", |len, id| found.push((len, id)));
        assert_eq!(found, [(1, 1), (2, 3), (3, 0)]);
        assert_eq!(trie.longest(b"abcde"), Some((4, 6)));
        assert_eq!(trie.longest(b"xa"), None);
        assert_eq!(trie.longest(b""), None);
        assert!(trie.may_start(b'b') && !trie.may_start(b'c'));
    }

    #[test]
    fn every_key_of_many_is_found() {
        let keys: Vec<String> = (0..3000).map(|i| format!("{:x}", i * 7919)).collect();
        let trie = Trie::new(
            keys.iter()
                .enumerate()
                .map(|(id, key)| (key.as_bytes(), id as u32)),
        );
        for (id, key) in keys.iter().enumerate() {
            assert_eq!(trie.longest(key.as_bytes()), Some((key.len(), id as u32)));
        }
    }

    #[test]
    fn empty_trie_matches_nothing() {
        assert_eq!(trie(&[]).longest(b"a"), None);
    }
}
