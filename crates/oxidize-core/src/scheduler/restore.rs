//! Restoring blocks that were stored elsewhere: the scheduler allocates them, its caller fills them.

use super::{PrefixReuse, Scheduler};
use crate::kv::{BlockId, BlockKey};

/// Blocks of a sequence that are stored elsewhere.
pub trait BlockSource {
    /// True if the block of this group and index is stored.
    fn contains(&self, group: usize, index: usize) -> bool;

    /// Writes the stored block of this group and index to `block`; false if that fails.
    fn fill(&mut self, group: usize, index: usize, block: BlockId) -> bool;
}

impl Scheduler {
    /// Blocks that hold the longest known prefix of `tokens`, in whole blocks.
    pub fn known_prefix(&self, salt: u64, tokens: &[u32]) -> Vec<BlockId> {
        self.kv.find_prefix(salt, tokens)
    }

    /// Window block of group `group` that belongs to a known block, if it is still there.
    pub fn window_block(&self, group: usize, known: BlockId) -> Option<BlockId> {
        self.kv.windows().get(group.checked_sub(1)?)?.find(known)
    }

    /// Restores more of the prefix of `tokens`: blocks of `source` after the known ones, and the window blocks
    /// that a sequence needs to continue there. Ends where a block cannot be filled or none is available.
    /// Returns the number of blocks of group 0 that were filled. Blocks of running sequences are never evicted
    /// for this.
    pub fn restore(&mut self, salt: u64, tokens: &[u32], source: &mut impl BlockSource) -> usize {
        if self.config.reuse != PrefixReuse::Blocks || self.in_flight.is_some() {
            return 0;
        }
        let mut table = self.known_prefix(salt, tokens);
        let n_known = table.len();
        let end = self.restorable(&table, tokens.len() / self.config.block_size, source);
        // References keep these blocks from being evicted for the next ones.
        table.iter().for_each(|&block| self.kv.retain(block));
        let full = tokens.chunks_exact(self.config.block_size);
        for (index, tokens) in full.enumerate().take(end).skip(n_known) {
            let Some(block) = self.kv.allocate() else {
                break;
            };
            if !source.fill(0, index, block) {
                self.kv.release(block);
                break;
            }
            let key = BlockKey {
                salt,
                parent: table.last().copied(),
                tokens,
            };
            table.push(self.kv.publish(&key, block));
        }
        let end = self.restorable(&table, table.len().min(end), source);
        self.restore_windows(table.get(..end).unwrap_or_default(), source);
        let n_restored = table.len() - n_known;
        self.kv.release_tail(&mut table, 0);
        n_restored
    }

    /// Length of the longest prefix, in blocks and at most `n_blocks`, that is known or in `source`, together
    /// with the window blocks at its end. `nodes` are the known blocks.
    fn restorable(&self, nodes: &[BlockId], n_blocks: usize, source: &impl BlockSource) -> usize {
        let is_there = |index: &usize| nodes.get(*index).is_some() || source.contains(0, *index);
        let mut end = (0..n_blocks).take_while(is_there).count();
        loop {
            let missing = (1..).zip(self.kv.windows()).filter_map(|(group, windows)| {
                let first = windows.first_visible(end * self.config.block_size);
                (first..end).find(|&index| {
                    let known = nodes.get(index).and_then(|&node| windows.find(node));
                    known.is_none() && !source.contains(group, index)
                })
            });
            match missing.min() {
                Some(index) => end = index,
                None => return end,
            }
        }
    }

    /// Fills the window blocks that a sequence needs to continue after the blocks `nodes`.
    fn restore_windows(&mut self, nodes: &[BlockId], source: &mut impl BlockSource) {
        for (group, windows) in (1..).zip(self.kv.windows_mut()) {
            let first = windows.first_visible(nodes.len() * self.config.block_size);
            // References keep these blocks from being evicted for the next ones.
            let mut held = Vec::new();
            for (index, &node) in nodes.iter().enumerate().skip(first) {
                if let Some(known) = windows.find(node) {
                    windows.retain(known);
                    held.push(known);
                    continue;
                }
                let Some(block) = windows.restore(node) else {
                    break;
                };
                held.push(block);
                if !source.fill(group, index, block) {
                    windows.detach(node);
                    break;
                }
            }
            held.into_iter()
                .rev()
                .for_each(|block| windows.release(block));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{SchedulerConfig, SeqId, SequenceRequest};
    use super::*;
    use crate::graph::Window;
    use crate::kv::WindowGroup;

    fn scheduler(n_blocks: u32) -> Scheduler {
        Scheduler::new(SchedulerConfig {
            n_blocks,
            block_size: 2,
            windows: Vec::new(),
            max_batch_tokens: 16,
            max_sequences: 4,
            max_outputs: 4,
            max_queue: 8,
            context_length: 32,
            reuse: PrefixReuse::Blocks,
            steps_per_priority: 64,
        })
        .unwrap()
    }

    /// A source that has all blocks of group 0, and window blocks from an index on.
    #[derive(Default)]
    struct Stored {
        filled: Vec<(usize, usize)>,
        windows_from: usize,
        is_damaged: bool,
    }

    impl BlockSource for Stored {
        fn contains(&self, group: usize, index: usize) -> bool {
            group == 0 || index >= self.windows_from
        }

        fn fill(&mut self, group: usize, index: usize, _: BlockId) -> bool {
            self.filled.push((group, index));
            !self.is_damaged
        }
    }

    #[test]
    fn restored_blocks_are_not_computed() {
        let mut scheduler = scheduler(8);
        let tokens = [1, 2, 3, 4, 5];
        let mut stored = Stored::default();
        let restored = scheduler.restore(9, &tokens, &mut stored);
        assert_eq!((restored, stored.filled), (2, vec![(0, 0), (0, 1)]));
        assert_eq!(
            scheduler.restore(9, &tokens, &mut Stored::default()),
            0,
            "the prefix is known now"
        );
        scheduler.check_integrity().unwrap();
        let request = SequenceRequest {
            salt: 9,
            ..SequenceRequest::new(SeqId(1), tokens.to_vec(), 4)
        };
        scheduler.submit(request).unwrap();
        assert_eq!(scheduler.plan().unwrap().tokens, [5]);
    }

    #[test]
    fn restoring_evicts_only_unused_blocks() {
        let mut scheduler = scheduler(3);
        // There are more blocks than fit: the first ones must not be evicted for the last ones.
        let restored = scheduler.restore(0, &[1, 2, 3, 4, 5, 6, 7, 8], &mut Stored::default());
        assert_eq!(restored, 3);
        scheduler.check_integrity().unwrap();
        let mut damaged = Stored {
            is_damaged: true,
            ..Stored::default()
        };
        assert_eq!(scheduler.restore(0, &[9, 9], &mut damaged), 0);
        scheduler.check_integrity().unwrap();
        scheduler
            .submit(SequenceRequest::new(SeqId(1), vec![7; 5], 1))
            .unwrap();
        let step = scheduler.plan().unwrap();
        assert_eq!(
            scheduler.restore(0, &[8, 8], &mut Stored::default()),
            0,
            "a step is in flight"
        );
        scheduler.abandon(step);
        scheduler.check_integrity().unwrap();
    }

    #[test]
    fn windows_are_restored_at_the_end_of_a_prefix() {
        let config = scheduler(8).config().clone();
        let windows = vec![WindowGroup {
            window: Window::Sliding(3),
            n_blocks: 4,
        }];
        let config = SchedulerConfig { windows, ..config };
        let tokens = [1, 2, 3, 4, 5, 6, 7];
        let submit = |scheduler: &mut Scheduler| {
            let request = SequenceRequest::new(SeqId(1), tokens.to_vec(), 4);
            scheduler.submit(request).unwrap();
            let step = scheduler.plan().unwrap();
            scheduler.check_integrity().unwrap();
            step.tokens
        };
        // From position 6 on, positions 4 and up are visible: the last of three blocks.
        let mut all = Scheduler::new(config.clone()).unwrap();
        let mut stored = Stored::default();
        assert_eq!(all.restore(0, &tokens, &mut stored), 3);
        all.check_integrity().unwrap();
        assert_eq!(stored.filled, [(0, 0), (0, 1), (0, 2), (1, 2)]);
        assert_eq!(submit(&mut all), [7]);

        let mut none = Scheduler::new(config.clone()).unwrap();
        let mut stored = Stored {
            windows_from: 3,
            ..Stored::default()
        };
        assert_eq!(none.restore(0, &tokens, &mut stored), 0);
        assert_eq!(submit(&mut none), tokens);

        let mut damaged = Scheduler::new(config).unwrap();
        let mut stored = Stored {
            is_damaged: true,
            ..Stored::default()
        };
        assert_eq!(damaged.restore(0, &tokens, &mut stored), 0);
        damaged.check_integrity().unwrap();
        assert_eq!(submit(&mut damaged), tokens);
    }
}
