//! Committing a step that was run: appends tokens, publishes full blocks and ends sequences.

use super::request::Sequence;
use super::step::{Sampled, SeqId, Step};
use super::{Event, PrefixReuse, Scheduler};
use crate::kv::BlockKey;

impl Scheduler {
    /// Commits a step that was run, with the tokens sampled for the sequences that
    /// [sample](super::StepSequence::samples). A sequence for which no token was sampled gets the same logits
    /// again in the next step. Returns the events since the last commit, in order.
    pub fn commit(&mut self, step: Step, sampled: &[Sampled]) -> Vec<Event> {
        if self.in_flight != Some(step.number) {
            debug_assert!(false, "step {} is not in flight", step.number);
            return Vec::new();
        }
        self.in_flight = None;
        self.stats.computed_tokens += step.tokens.len() as u64;
        for part in &step.sequences {
            let sampled = sampled.iter().find(|sampled| sampled.id == part.id);
            self.commit_sequence(part.id, sampled);
        }
        self.spare = step;
        std::mem::take(&mut self.events)
    }

    /// Returns a step that was not run completely. Its sequences go back to the queue and are recomputed,
    /// unless they are cancelled first.
    pub fn abandon(&mut self, step: Step) {
        if self.in_flight != Some(step.number) {
            debug_assert!(false, "step {} is not in flight", step.number);
            return;
        }
        self.in_flight = None;
        // Recurrent state may be overwritten, and copies of it may not have been made.
        let recurrent = self.config.is_recurrent();
        self.state_copies.clear();
        for &(_, to) in &step.state_copies {
            if let Some(checkpoint) = to.checked_sub(self.config.n_slots()) {
                self.kv.checkpoints_mut().remove_index(checkpoint);
            }
        }
        // A block copy that was not made may be shared already, because forking is possible while a step is
        // in flight.
        let is_affected = |seq: &&Sequence| {
            recurrent
                || seq.planned > 0
                || step
                    .copies
                    .iter()
                    .any(|copy| seq.holds(copy.group, copy.to))
        };
        let ids: Vec<SeqId> = self
            .running_from_last()
            .filter(is_affected)
            .map(|seq| seq.id)
            .collect();
        for id in ids {
            self.preempt(id);
        }
        self.spare = step;
    }

    fn commit_sequence(&mut self, id: SeqId, sampled: Option<&Sampled>) {
        let Some(seq) = self.sequences.get_mut(&id) else {
            return;
        };
        let planned = std::mem::take(&mut seq.planned);
        if planned == 0 {
            return; // Truncated or replaced by another sequence of this id since the step was planned.
        }
        let draft = std::mem::take(&mut seq.draft);
        let was_computed = seq.computed;
        seq.computed += planned - draft.len();
        seq.reached = seq.reached.max(seq.computed);

        let (mut finished, mut n_accepted) = (false, 0);
        if seq.n_pending() == 0 {
            seq.recompute = false;
            if !std::mem::replace(&mut seq.prompt_done, true) && seq.cached > 0 {
                self.events.push(Event::CacheHit {
                    id,
                    tokens: seq.cached,
                });
                self.stats.cached_prompt_tokens += seq.cached as u64;
            }
            if let Some(sampled) = sampled.filter(|_| seq.tokens.len() < seq.max_tokens) {
                let accepted = draft.iter().take(sampled.accepted);
                n_accepted = accepted.len();
                seq.computed += accepted.len();
                self.stats.drafted_tokens += draft.len() as u64;
                self.stats.accepted_drafts += accepted.len() as u64;
                for &token in accepted.chain([&sampled.token]) {
                    seq.tokens.push(token);
                    self.stats.generated_tokens += 1;
                }
                finished = sampled.finished;
            }
            finished |= seq.tokens.len() >= seq.max_tokens;
        }

        // Recurrent state that includes a rejected draft is rolled back to before the draft. The accepted
        // tokens are recomputed together with the next one.
        if let Some(checkpoint) = seq.rollback.take() {
            self.kv.checkpoints_mut().release(checkpoint);
            if let Some(slot) = seq.slot.filter(|_| n_accepted < draft.len()) {
                seq.computed = was_computed;
                seq.recompute = true;
                let from = self.config.checkpoint_slot(checkpoint);
                self.state_copies.push((from, slot));
            }
        }

        // Drop positions of rejected drafts, and a position whose logits were not sampled.
        let known = if finished {
            seq.tokens.len()
        } else {
            seq.tokens.len() - 1
        };
        let restored = seq.rewind(&self.config, &mut self.kv, known.min(seq.computed));
        if let Some((checkpoint, slot)) = restored.zip(seq.slot) {
            let from = self.config.checkpoint_slot(checkpoint);
            self.state_copies.push((from, slot));
        }
        self.publish(id, was_computed);
        self.checkpoint_state(id);
        if let Some(seq) = self.sequences.get_mut(&id) {
            seq.release_behind(&mut self.kv);
        }
        if finished {
            self.remove(id);
            self.stats.finished += 1;
            self.events.push(Event::Finished { id });
        }
    }

    /// Makes the next step copy the recurrent state of a sequence that is at the end of a block.
    fn checkpoint_state(&mut self, id: SeqId) {
        let block_size = self.config.block_size;
        let Some(seq) = self.sequences.get(&id) else {
            return;
        };
        let n_full = seq.computed / block_size;
        let Some(&block) = n_full.checked_sub(1).and_then(|last| seq.blocks.get(last)) else {
            return;
        };
        if self.config.n_checkpoints() == 0 || !seq.computed.is_multiple_of(block_size) {
            return;
        }
        // In the middle of a prompt, other checkpoints are not evicted for this one.
        let ends_prompt = seq.computed >= self.last_boundary(seq);
        let evict = ends_prompt || seq.computed == seq.branch;
        // During generation, only the last checkpoint is useful.
        let before = n_full.checked_sub(2).and_then(|last| seq.blocks.get(last));
        let passed = before.filter(|_| seq.computed - block_size > seq.n_prompt);
        if let Some(&passed) = passed {
            self.kv.checkpoints_mut().remove(passed);
        }
        if let Some(slot) = seq.slot
            && let Some(checkpoint) = self.kv.checkpoints_mut().insert(block, evict)
        {
            let to = self.config.checkpoint_slot(checkpoint);
            self.state_copies.push((slot, to));
        }
    }

    /// Publishes the blocks that were filled since `was_computed` positions were computed.
    fn publish(&mut self, id: SeqId, was_computed: usize) {
        if self.config.reuse == PrefixReuse::None {
            return;
        }
        let block_size = self.config.block_size;
        let Some(seq) = self.sequences.get_mut(&id) else {
            return;
        };
        let first = was_computed / block_size;
        let mut parent = first
            .checked_sub(1)
            .and_then(|last| seq.blocks.get(last).copied());
        let full = seq
            .tokens
            .chunks_exact(block_size)
            .take(seq.computed / block_size);
        for (index, (tokens, block)) in full.zip(&mut seq.blocks).enumerate().skip(first) {
            *block = self.kv.publish(
                &BlockKey {
                    salt: seq.salt,
                    parent,
                    tokens,
                },
                *block,
            );
            parent = Some(*block);
            for (windows, table) in self.kv.windows_mut().iter_mut().zip(&mut seq.windows) {
                windows.publish(table, index, *block);
            }
        }
    }
}
