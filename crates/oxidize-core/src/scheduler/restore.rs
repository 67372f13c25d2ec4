//! Restoring blocks that were stored elsewhere: the scheduler allocates them, its caller fills them.

use super::{PrefixReuse, Scheduler};
use crate::kv::{BlockId, BlockKey};

impl Scheduler {
    /// Blocks that hold the longest known prefix of `tokens`, in whole blocks.
    pub fn known_prefix(&self, salt: u64, tokens: &[u32]) -> Vec<BlockId> {
        self.kv.find_prefix(salt, tokens, self.config.block_size)
    }

    /// Restores more blocks of the prefix of `tokens`. Calls `fill` for each block after the known ones, with
    /// its index in the sequence and the block to write, until `fill` returns `false` or no block is
    /// available. Returns the number of blocks filled. Blocks of running sequences are never evicted for
    /// this.
    pub fn restore(
        &mut self,
        salt: u64,
        tokens: &[u32],
        mut fill: impl FnMut(usize, BlockId) -> bool,
    ) -> usize {
        if self.config.reuse != PrefixReuse::Blocks || self.in_flight.is_some() {
            return 0;
        }
        let block_size = self.config.block_size;
        let mut table = self.known_prefix(salt, tokens);
        // References keep these blocks from being evicted for the next ones.
        table.iter().for_each(|&block| self.kv.retain(block));
        let n_known = table.len();
        for (index, tokens) in tokens.chunks_exact(block_size).enumerate().skip(n_known) {
            let Some(block) = self.kv.allocate() else {
                break;
            };
            if !fill(index, block) {
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
        let n_restored = table.len() - n_known;
        self.kv.release_tail(&mut table, 0);
        n_restored
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{SchedulerConfig, SeqId, SequenceRequest};
    use super::*;

    fn scheduler(n_blocks: u32) -> Scheduler {
        Scheduler::new(SchedulerConfig {
            n_blocks,
            block_size: 2,
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

    #[test]
    fn restored_blocks_are_not_computed() {
        let mut scheduler = scheduler(8);
        let tokens = [1, 2, 3, 4, 5];
        let mut filled = Vec::new();
        let restored = scheduler.restore(9, &tokens, |index, _| {
            filled.push(index);
            true
        });
        assert_eq!((restored, filled), (2, vec![0, 1]));
        assert_eq!(
            scheduler.restore(9, &tokens, |_, _| true),
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
        let restored = scheduler.restore(0, &[1, 2, 3, 4, 5, 6, 7, 8], |_, _| true);
        assert_eq!(restored, 3);
        scheduler.check_integrity().unwrap();
        assert_eq!(scheduler.restore(0, &[9, 9], |_, _| false), 0);
        scheduler.check_integrity().unwrap();
        scheduler
            .submit(SequenceRequest::new(SeqId(1), vec![7; 5], 1))
            .unwrap();
        let step = scheduler.plan().unwrap();
        assert_eq!(
            scheduler.restore(0, &[8, 8], |_, _| true),
            0,
            "a step is in flight"
        );
        scheduler.abandon(step);
        scheduler.check_integrity().unwrap();
    }
}
