//! What a step that was run means: tokens are appended, full blocks become findable, sequences
//! end.

use super::request::Sequence;
use super::step::{FinishReason, Sampled, SeqId, Step};
use super::{Event, PrefixReuse, Scheduler};
use crate::kv::BlockKey;

impl Scheduler {
    /// Takes back a step that was run, with what was sampled for the sequences that
    /// [sample](super::StepSequence::samples). A sequence for which nothing was sampled gets its
    /// logits again in the next step. Returns what happened since the last commit, in order.
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

    /// Takes back a step that was not run, or not to its end. Its sequences go back to the queue
    /// and are computed again, unless they are cancelled first.
    pub fn abandon(&mut self, step: Step) {
        if self.in_flight != Some(step.number) {
            debug_assert!(false, "step {} is not in flight", step.number);
            return;
        }
        self.in_flight = None;
        // A copy that was not made may be shared by now: a fork does not wait for a step.
        let uncertain = |seq: &&Sequence| {
            seq.planned > 0 || step.copies.iter().any(|(_, to)| seq.blocks.contains(to))
        };
        let ids: Vec<SeqId> = self
            .running_from_last()
            .filter(uncertain)
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
            return; // Cut back, or another sequence of this id, since the step was planned.
        }
        let draft = std::mem::take(&mut seq.draft);
        let was_computed = seq.computed;
        seq.computed += planned - draft.len();
        seq.reached = seq.reached.max(seq.computed);

        let mut finished = None;
        if seq.n_pending() == 0 {
            if !std::mem::replace(&mut seq.prompt_done, true) && seq.cached > 0 {
                self.events.push(Event::CacheHit {
                    id,
                    tokens: seq.cached,
                });
                self.stats.cached_prompt_tokens += seq.cached as u64;
            }
            if let Some(sampled) = sampled.filter(|_| seq.tokens.len() < seq.max_tokens) {
                let accepted = draft.iter().take(sampled.accepted);
                seq.computed += accepted.len();
                for &token in accepted.chain([&sampled.token]) {
                    seq.tokens.push(token);
                    self.events.push(Event::Token { id, token });
                    self.stats.generated_tokens += 1;
                }
                finished = sampled.finished.then_some(FinishReason::Stop);
            }
            if seq.tokens.len() >= seq.max_tokens {
                finished = finished.or(Some(FinishReason::Length));
            }
        }

        // What was computed of rejected drafts, and logits that nobody sampled from, are dropped.
        let known = if finished.is_some() {
            seq.tokens.len()
        } else {
            seq.tokens.len() - 1
        };
        seq.rewind(&self.config, &mut self.kv, known.min(seq.computed));
        self.publish(id, was_computed);
        if let Some(reason) = finished {
            self.remove(id);
            self.stats.finished += 1;
            self.events.push(Event::Finished { id, reason });
        }
    }

    /// Makes the blocks findable that were filled since `was_computed` positions were.
    fn publish(&mut self, id: SeqId, was_computed: usize) {
        if self.config.reuse != PrefixReuse::Blocks {
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
        for (tokens, block) in full.zip(&mut seq.blocks).skip(first) {
            *block = self.kv.publish(
                &BlockKey {
                    salt: seq.salt,
                    parent,
                    tokens,
                },
                *block,
            );
            parent = Some(*block);
        }
    }
}
