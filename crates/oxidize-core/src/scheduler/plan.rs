//! Planning of a step. Decoding sequences come first, prompts share the rest of the token budget, and drafts
//! take what is left.

use super::policy::{Turn, prefill_turns};
use super::request::Sequence;
use super::step::{SeqId, Step, StepSequence};
use super::{LogitsAt, PrefixReuse, Scheduler};
use crate::kv::{BlockCopy, BlockId, BlockKey, WindowBlocks, WindowTable};

impl Scheduler {
    /// Plans the next step; `None` if there are no sequences or a step is in flight. Each step must be
    /// returned with [`commit`](Self::commit) or [`abandon`](Self::abandon).
    pub fn plan(&mut self) -> Option<Step> {
        if self.in_flight.is_some() || self.sequences.is_empty() {
            return None;
        }
        let mut step = std::mem::take(&mut self.spare);
        step.clear();
        let mut budget = self.config.max_batch_tokens;

        self.preempt_for_priority();
        let n_preemptions = self.stats.preemptions;
        budget -= self.plan_decodes(&mut step.copies);
        // If blocks ran out just now, there are none for new sequences.
        if self.stats.preemptions == n_preemptions {
            self.admit();
        }
        budget -= self.plan_prefills(budget, &mut step.copies);
        self.plan_drafts(budget, &mut step.copies);

        self.fill(&mut step);
        if step.sequences.is_empty() {
            debug_assert!(false, "there are sequences, but nothing can be computed");
            self.spare = step;
            return None;
        }
        step.state_copies.append(&mut self.state_copies);
        self.n_steps += 1;
        step.number = self.n_steps;
        self.in_flight = Some(step.number);
        Some(step)
    }

    /// Preempts sequences of lower priority while the first one in the queue cannot start. Rank is compared
    /// too, so that a sequence that has waited long enough is no longer preempted.
    fn preempt_for_priority(&mut self) {
        while let Some(head) = self
            .waiting
            .first()
            .and_then(|(_, id)| self.sequences.get(id))
        {
            let can_preempt =
                |seq: &&Sequence| seq.priority < head.priority && seq.rank > head.rank;
            let victim = self.running_from_last().find(can_preempt).map(|seq| seq.id);
            let Some(victim) = victim.filter(|_| self.can_start(head).is_none()) else {
                break;
            };
            self.preempt(victim);
        }
    }

    /// Plans one token for each decoding sequence, best rank first. If blocks run out, the sequences of worst
    /// rank are preempted. Returns the number of tokens planned.
    fn plan_decodes(&mut self, copies: &mut Vec<BlockCopy>) -> usize {
        let mut n_planned = 0;
        for id in self.running.clone() {
            while self
                .sequences
                .get(&id)
                .is_some_and(|s| s.slot.is_some() && s.n_pending() == 1)
            {
                if self.reserve(id, 1, copies) == 1 {
                    n_planned += 1;
                    break;
                }
                // Sequences are visited by rank, so the last one has no tokens in this step yet. It may be
                // this sequence itself.
                let Some(&victim) = self.running.last() else {
                    break;
                };
                self.preempt(victim);
            }
        }
        n_planned
    }

    /// Admits waiting sequences strictly in order: skipping one that needs many blocks would starve it.
    fn admit(&mut self) {
        while let Some(&(rank, id)) = self.waiting.first() {
            let Some(seq) = self.sequences.get(&id) else {
                break;
            };
            let Some(Start { found, branch }) = self.can_start(seq) else {
                break;
            };
            let Some(slot) = self.free_slots.pop_first() else {
                break;
            };
            self.waiting.remove(&(rank, id));
            found.iter().for_each(|&block| self.kv.retain(block));
            let Some(seq) = self.sequences.get_mut(&id) else {
                break;
            };
            seq.slot = Some(slot);
            seq.branch = branch;
            if self.config.is_recurrent()
                && let Some(checkpoint) = found
                    .last()
                    .and_then(|&block| self.kv.checkpoints_mut().find(block))
            {
                let from = self.config.checkpoint_slot(checkpoint);
                self.state_copies.push((from, slot));
            }
            let n_cached = found.len() * self.config.block_size;
            self.kv.hold_windows(&mut seq.windows, &found, n_cached);
            seq.advance_cached(n_cached);
            seq.blocks = found;
            self.insert_running(id);
        }
    }

    /// Returns the cached prefix from which a waiting sequence can start, if there is a slot and if there are
    /// blocks for all its tokens besides those that the running sequences still need and one for each of them
    /// to grow.
    fn can_start(&self, seq: &Sequence) -> Option<Start> {
        if self.free_slots.is_empty() {
            return None;
        }
        let can_reuse = self.config.reuse != PrefixReuse::None && seq.reuse_prefix;
        // The last token is always computed, for its logits.
        let reusable = seq
            .tokens
            .split_last()
            .filter(|_| can_reuse)
            .map_or(&[][..], |(_, head)| head);
        let mut found = self.kv.find_prefix(seq.salt, reusable);
        let branch = found.len() * self.config.block_size;
        let from_checkpoint = self.config.is_recurrent();
        let n_cached = self
            .kv
            .resumable(&found, &seq.windows, branch, from_checkpoint);
        found.truncate(n_cached / self.config.block_size);
        if self.running.is_empty() {
            return Some(Start { found, branch });
        }
        let n_shared = found
            .iter()
            .filter(|&&block| self.kv.references(block) > 0)
            .count();
        let need = self.config.blocks_for(seq.tokens.len()) - n_shared;
        let still_needed = |seq: &Sequence| {
            self.config
                .blocks_for(seq.tokens.len())
                .saturating_sub(seq.blocks.len())
        };
        let reserved: usize = self
            .running_from_last()
            .map(|seq| still_needed(seq) + 1)
            .sum();
        let fits = need + reserved <= self.kv.n_available();
        let mut windows = self.kv.windows().iter().enumerate();
        let fits =
            fits && windows.all(|(nth, windows)| self.window_fits(nth, windows, seq, &found));
        fits.then_some(Start { found, branch })
    }

    /// True if there are window blocks for a sequence that starts after the blocks `found`, besides those that
    /// the running sequences still need and one for each of them to grow.
    fn window_fits(
        &self,
        nth: usize,
        windows: &WindowBlocks,
        seq: &Sequence,
        found: &[BlockId],
    ) -> bool {
        let group = windows.group();
        let wanted = |seq: &Sequence| self.config.window_blocks_for(&group, seq.tokens.len());
        let first = windows.first_visible(found.len() * self.config.block_size);
        let n_shared = found
            .iter()
            .skip(first)
            .filter_map(|&node| windows.find(node))
            .filter(|&block| windows.references(block) > 0)
            .count();
        let still_needed = |seq: &Sequence| {
            let held = seq.windows.get(nth).map_or(0, WindowTable::n_held);
            wanted(seq).saturating_sub(held)
        };
        let reserved: usize = self
            .running_from_last()
            .map(|seq| still_needed(seq) + 1)
            .sum();
        wanted(seq).saturating_sub(n_shared) + reserved <= windows.n_available()
    }

    /// Plans chunks of prompts of up to `budget` tokens. Returns the number of tokens planned.
    fn plan_prefills(&mut self, budget: usize, copies: &mut Vec<BlockCopy>) -> usize {
        let prompts: Vec<SeqId> = self.map_running(|seq| (seq.planned == 0).then_some(seq.id));
        for &id in &prompts {
            self.skip_computed(id);
        }
        let pending = self.map_running(|seq| (seq.planned == 0).then_some(seq.n_pending()));
        let mut left = budget;
        // Each running sequence may need one output of its own.
        let mut spare_outputs = self.config.max_outputs.saturating_sub(self.running.len());
        for Turn { prompt, max_tokens } in prefill_turns(&pending, budget) {
            let Some(&id) = prompts.get(prompt) else {
                continue;
            };
            let Some(seq) = self.sequences.get(&id).filter(|seq| seq.slot.is_some()) else {
                continue;
            };
            let planned = seq.planned;
            if planned == 0 && self.is_being_computed(seq) {
                continue;
            }
            let want = (planned + max_tokens.min(left)).min(seq.n_pending());
            let mut want = self.cut_at_checkpoint(seq, want);
            let is_scored = seq.logits == LogitsAt::Every;
            if is_scored {
                want = want.min(planned.max(1) + spare_outputs);
            }
            if want > planned {
                let reserved = self.reserve_or_preempt(id, want, copies);
                left -= reserved - planned;
                if is_scored {
                    spare_outputs -= reserved.saturating_sub(planned.max(1));
                }
            }
        }
        budget - left
    }

    /// Reduces the next `want` tokens of a prompt to those before the next position where a checkpoint of its
    /// recurrent state is useful, if there is one.
    fn cut_at_checkpoint(&self, seq: &Sequence, want: usize) -> usize {
        if self.config.n_checkpoints() == 0 || seq.prompt_done {
            return want;
        }
        let (start, end, size) = (seq.computed, seq.computed + want, self.config.block_size);
        let stops = [seq.branch, self.last_boundary(seq), end / size * size];
        let stops = stops.into_iter().filter(|&stop| stop > start);
        stops.chain([end]).min().unwrap_or(end) - start
    }

    /// End of the last full block of a prompt, after which requests with the same beginning usually differ.
    pub(super) fn last_boundary(&self, seq: &Sequence) -> usize {
        let size = self.config.block_size;
        seq.n_prompt.saturating_sub(1) / size * size
    }

    /// Plans the verification of up to `budget` draft tokens, as far as there are blocks. Plans none while
    /// tokens of earlier drafts are recomputed, so that the number of logits in a step stays below that of
    /// two rounds of drafts.
    fn plan_drafts(&mut self, mut budget: usize, copies: &mut Vec<BlockCopy>) {
        if self.running_from_last().any(|seq| seq.recompute) {
            budget = 0;
        }
        for id in self.running.clone() {
            let Some(seq) = self.sequences.get_mut(&id) else {
                continue;
            };
            let decodes = seq.planned == 1 && seq.n_pending() == 1;
            // If all of them are accepted, one more token follows.
            let room = seq.max_tokens.saturating_sub(seq.tokens.len() + 1);
            let n_draft = seq.draft.len().min(budget).min(room);
            seq.draft.truncate(if decodes { n_draft } else { 0 });
            if self.config.is_recurrent() && !seq.draft.is_empty() {
                seq.rollback = self.kv.checkpoints_mut().reserve();
                match seq.rollback.zip(seq.slot) {
                    Some((checkpoint, slot)) => {
                        let saved = self.config.checkpoint_slot(checkpoint);
                        self.state_copies.push((slot, saved));
                    }
                    None => seq.draft.clear(),
                }
            }
            if !seq.draft.is_empty() {
                let want = 1 + seq.draft.len();
                let n_verified = self.reserve(id, want, copies).saturating_sub(1);
                budget -= n_verified;
                if let Some(seq) = self.sequences.get_mut(&id) {
                    seq.draft.truncate(n_verified);
                }
            }
        }
    }

    /// Lets a sequence reuse blocks that other sequences have computed since it was admitted.
    fn skip_computed(&mut self, id: SeqId) {
        let block_size = self.config.block_size;
        let can_reuse = self.config.reuse == PrefixReuse::Blocks;
        let Some(seq) = self
            .sequences
            .get_mut(&id)
            .filter(|s| can_reuse && s.reuse_prefix)
        else {
            return;
        };
        let n_full = seq.computed / block_size;
        let own = seq.blocks.get(..n_full).unwrap_or_default();
        let Some(next) = block_after(seq, own, block_size).and_then(|key| self.kv.find(&key))
        else {
            return;
        };
        let mut nodes = [own, &[next]].concat();
        while let Some(key) = block_after(seq, &nodes, block_size) {
            let Some(block) = self.kv.find(&key) else {
                break;
            };
            nodes.push(block);
        }
        // The sequence's own window blocks are attached to its nodes, except for one that is not full.
        let tables = vec![WindowTable::default(); seq.windows.len()];
        let reachable = nodes.len() * block_size;
        let n_cached = self.kv.resumable(&nodes, &tables, reachable, false);
        if n_cached <= seq.computed {
            return;
        }
        nodes.truncate(n_cached / block_size);
        let added = nodes.iter().skip(n_full);
        added.for_each(|&block| self.kv.retain(block));
        seq.release_blocks(&mut self.kv, n_full);
        self.kv.hold_windows(&mut seq.windows, &nodes, n_cached);
        seq.blocks = nodes;
        seq.advance_cached(n_cached);
    }

    /// True if another sequence computes the next block of this one in this step. Waiting for it and sharing
    /// the block is then cheaper.
    fn is_being_computed(&self, seq: &Sequence) -> bool {
        if self.config.reuse != PrefixReuse::Blocks || !seq.reuse_prefix {
            return false;
        }
        let n_full = seq.computed / self.config.block_size;
        let nodes = seq.blocks.get(..n_full).unwrap_or_default();
        let Some(key) = block_after(seq, nodes, self.config.block_size) else {
            return false;
        };
        self.running_from_last().any(|other| {
            let other_full = other.computed / self.config.block_size;
            let range = n_full * key.tokens.len()..(n_full + 1) * key.tokens.len();
            other.planned > 0
                && other.salt == key.salt
                && other_full == n_full
                && other.blocks.get(..n_full).and_then(<[_]>::last) == key.parent.as_ref()
                && other.tokens.get(range) == Some(key.tokens)
        })
    }

    /// Like [`reserve`](Self::reserve), but preempts sequences of worse rank that have no tokens in this step
    /// if there are no blocks otherwise.
    fn reserve_or_preempt(&mut self, id: SeqId, want: usize, copies: &mut Vec<BlockCopy>) -> usize {
        loop {
            let planned = self.reserve(id, want, copies);
            let Some(seq) = self.sequences.get(&id).filter(|_| planned == 0) else {
                return planned;
            };
            let idle = |other: &&Sequence| other.planned == 0 && other.rank > seq.rank;
            let Some(victim) = self.running_from_last().find(idle).map(|other| other.id) else {
                return 0;
            };
            self.preempt(victim);
        }
    }

    /// Plans the next `want` tokens of a sequence, or as many as there are blocks for, and returns their
    /// number. May be called again in the same step with a larger number.
    fn reserve(&mut self, id: SeqId, want: usize, copies: &mut Vec<BlockCopy>) -> usize {
        let block_size = self.config.block_size;
        let Some(seq) = self.sequences.get_mut(&id) else {
            return 0;
        };
        let last = seq.computed / block_size;
        if let Some(block) = seq.blocks.get_mut(last)
            && !seq.computed.is_multiple_of(block_size)
        {
            let Some(to) = self.kv.make_writable(*block) else {
                return 0;
            };
            let from = std::mem::replace(block, to);
            copies.extend((from != to).then_some(BlockCopy { group: 0, from, to }));
            let tables = self.kv.windows_mut().iter_mut().zip(&mut seq.windows);
            for (group, (windows, table)) in (1..).zip(tables) {
                let Some((from, to)) = windows.make_writable(table, last) else {
                    return 0;
                };
                copies.extend((from != to).then_some(BlockCopy { group, from, to }));
            }
        }
        let n_blocks = self.config.blocks_for(seq.computed + want);
        let of_windows = self.kv.windows().iter().map(WindowBlocks::n_available);
        let room = of_windows.chain([self.kv.n_available()]).min().unwrap_or(0);
        let n_blocks = n_blocks.min(seq.blocks.len() + room);
        while seq.blocks.len() < n_blocks {
            let Some(block) = self.kv.allocate() else {
                break;
            };
            seq.blocks.push(block);
        }
        for (windows, table) in self.kv.windows_mut().iter_mut().zip(&mut seq.windows) {
            let extended = windows.extend(table, seq.blocks.len());
            debug_assert!(extended, "a window has fewer blocks than it counted");
        }
        seq.planned = want.min(seq.blocks.len() * block_size - seq.computed);
        seq.planned
    }

    /// Fills the step with the planned tokens.
    fn fill(&self, step: &mut Step) {
        for seq in self.running.iter().filter_map(|id| self.sequences.get(id)) {
            let Some(slot) = seq.slot.filter(|_| seq.planned > 0) else {
                continue;
            };
            let first_row = step.tokens.len();
            let first_block = step.blocks.len();
            let first_window = step.windows.len();
            let first_output = step.outputs.len();

            let n_known = seq.planned - seq.draft.len();
            let known = seq.tokens.iter().skip(seq.computed).take(n_known);
            step.tokens.extend(known.chain(&seq.draft));
            step.blocks.extend_from_slice(&seq.blocks);
            for table in &seq.windows {
                step.windows.extend_from_slice(table.blocks());
            }
            let samples = n_known == seq.n_pending();
            // A backend computes these rows bit for bit like single ones only if all of them have logits.
            let recompute = seq.recompute && seq.logits == LogitsAt::Last;
            for (row, position) in (first_row..).zip(seq.computed..seq.computed + seq.planned) {
                let is_last = samples && position + 1 >= seq.tokens.len();
                let is_scored = seq.logits == LogitsAt::Every && position >= seq.reached;
                step.positions.push(position as u32);
                if is_last || is_scored || recompute {
                    step.outputs.push(row as u32);
                }
            }
            step.sequences.push(StepSequence {
                id: seq.id,
                slot,
                start: seq.computed,
                rows: first_row..step.tokens.len(),
                blocks: first_block..step.blocks.len(),
                windows: first_window..step.windows.len(),
                outputs: first_output..step.outputs.len(),
                n_draft: seq.draft.len(),
                recompute,
                samples: samples && seq.max_tokens > seq.tokens.len(),
            });
        }
    }

    /// Running sequences, worst rank first.
    pub(super) fn running_from_last(&self) -> impl Iterator<Item = &Sequence> {
        self.running
            .iter()
            .rev()
            .filter_map(|id| self.sequences.get(id))
    }

    /// Results of `pick` for the running sequences, best rank first.
    fn map_running<T>(&self, pick: impl Fn(&Sequence) -> Option<T>) -> Vec<T> {
        self.running
            .iter()
            .filter_map(|id| self.sequences.get(id))
            .filter_map(pick)
            .collect()
    }
}

/// Cached prefix of a sequence that is about to start.
struct Start {
    /// Blocks of the longest cached prefix from which the sequence can continue.
    found: Vec<BlockId>,
    /// End of the longest cached prefix. It may be beyond `found` if the model has recurrent state.
    branch: usize,
}

/// Content of the block of a sequence after its blocks `nodes`, all of which are known. `None` if that block
/// holds the last token, which is always computed.
fn block_after<'a>(
    seq: &'a Sequence,
    nodes: &[BlockId],
    block_size: usize,
) -> Option<BlockKey<'a>> {
    let (_, reusable) = seq.tokens.split_last()?;
    let start = nodes.len() * block_size;
    Some(BlockKey {
        salt: seq.salt,
        parent: nodes.last().copied(),
        tokens: reusable.get(start..start + block_size)?,
    })
}
