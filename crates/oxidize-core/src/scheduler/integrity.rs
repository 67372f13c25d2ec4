//! Consistency check of the scheduler's state, for tests and for idle moments.

use super::request::Sequence;
use super::{PrefixReuse, Scheduler};
use crate::kv::{BlockId, WindowTable};

impl Scheduler {
    /// Checks that sequences, slots, queue, blocks and prefix cache are consistent. The error describes the
    /// first inconsistency.
    pub fn check_integrity(&self) -> Result<(), String> {
        let of_windows = self
            .config
            .windows
            .iter()
            .map(|group| group.n_blocks as usize);
        let sizes = [self.kv.n_blocks()].into_iter().chain(of_windows);
        let mut references: Vec<Vec<u32>> = sizes.map(|n| vec![0; n]).collect();
        for seq in self.sequences.values() {
            let held = |table: &WindowTable| table.blocks().get(table.first()..).map(<[_]>::to_vec);
            let of_windows = seq.windows.iter().filter_map(held);
            let tables = [seq.blocks.clone()].into_iter().chain(of_windows);
            for (references, table) in references.iter_mut().zip(tables) {
                for block in table {
                    match references.get_mut(block.index()) {
                        Some(count) => *count += 1,
                        None => return Err(format!("{block:?} does not exist")),
                    }
                }
            }
        }
        self.kv.check_integrity(&references)?;
        self.check_queues()?;
        self.sequences.values().try_for_each(|seq| {
            self.check_sequence(seq)
                .map_err(|problem| format!("sequence {}: {problem}", seq.id.0))
        })
    }

    fn check_queues(&self) -> Result<(), String> {
        if self.waiting.len() + self.running.len() != self.sequences.len() {
            return Err(format!(
                "there are {} sequences, but {} are waiting and {} are running",
                self.sequences.len(),
                self.waiting.len(),
                self.running.len()
            ));
        }
        if let Some((_, id)) = self.waiting.iter().find(|&&(rank, id)| {
            self.sequences
                .get(&id)
                .is_none_or(|seq| seq.rank != rank || seq.slot.is_some())
        }) {
            return Err(format!("{id:?} is not in the queue as it should be"));
        }
        let running: Vec<&Sequence> = self.running_from_last().collect();
        if running.len() != self.running.len() || !running.is_sorted_by(|a, b| a.rank > b.rank) {
            return Err("the running sequences are not in order".into());
        }
        let mut slots = self.free_slots.clone();
        for seq in &running {
            if !seq.slot.is_some_and(|slot| slots.insert(slot)) {
                return Err(format!(
                    "{:?} has no slot, or one that is used or free",
                    seq.id
                ));
            }
        }
        if slots.iter().copied().eq(0..self.config.n_slots()) {
            Ok(())
        } else {
            Err(format!("free and used slots are {slots:?}"))
        }
    }

    fn check_sequence(&self, seq: &Sequence) -> Result<(), String> {
        let Sequence {
            computed, planned, ..
        } = *seq;
        if seq.slot.is_none() && computed + planned + seq.blocks.len() > 0 {
            return Err("is waiting, but has blocks".into());
        }
        if planned > 0 && self.in_flight.is_none() {
            return Err("is in flight, but no step is".into());
        }
        if computed >= seq.tokens.len() || seq.tokens.len() > seq.max_tokens {
            let n_tokens = seq.tokens.len();
            return Err(format!(
                "has {computed} computed positions of {n_tokens} tokens"
            ));
        }
        let n_blocks = self.config.blocks_for(computed + planned);
        if seq.blocks.len() != n_blocks {
            return Err(format!(
                "has {} blocks where {n_blocks} are needed",
                seq.blocks.len()
            ));
        }
        for (windows, table) in self.kv.windows().iter().zip(&seq.windows) {
            let behind = table.blocks().iter().take(table.first());
            let needed = windows.first_visible(computed).min(n_blocks);
            if table.len() != n_blocks || table.first() > needed {
                return Err(format!(
                    "has window blocks {}..{} where {needed}..{n_blocks} are needed",
                    table.first(),
                    table.len()
                ));
            }
            if behind.copied().any(|block| block != BlockId::NONE) {
                return Err("has a block behind its window".into());
            }
            let limit = self.config.window_blocks_for(&windows.group(), computed);
            if planned == 0 && table.n_held() > limit {
                let held = table.n_held();
                return Err(format!("holds {held} window blocks, more than {limit}"));
            }
        }
        let block_size = self.config.block_size;
        let full = seq.tokens.chunks_exact(block_size).zip(&seq.blocks);
        for (tokens, &block) in full.take(computed / block_size) {
            let known = self.kv.known_tokens(block);
            if known.is_some_and(|known| known != tokens) {
                return Err(format!("{block:?} is known with other tokens"));
            }
            if known.is_none() && self.config.reuse != PrefixReuse::None {
                return Err(format!("{block:?} is full, but not known"));
            }
        }
        Ok(())
    }
}
