//! Consistency check of the scheduler's state, for tests and for idle moments.

use super::request::Sequence;
use super::{PrefixReuse, Scheduler};

impl Scheduler {
    /// Checks that sequences, slots, queue, blocks and prefix cache are consistent. The error describes the
    /// first inconsistency.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut references = vec![0; self.kv.n_blocks()];
        for block in self.sequences.values().flat_map(|seq| &seq.blocks) {
            match references.get_mut(block.index()) {
                Some(count) => *count += 1,
                None => return Err(format!("{block:?} does not exist")),
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
