//! Continuous batching: decides what the next step computes, from requests and free KV blocks. The scheduler
//! is pure and deterministic: it has no clock, I/O, model or threads, and the same calls give the same steps.
//! The engine runs the steps on a backend's session and samples; `docs/scheduling.md` describes how a step is
//! planned.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod commit;
mod integrity;
mod plan;
mod policy;
mod request;
mod restore;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::kv::KvBlocks;
use policy::Rank;
use request::Sequence;

pub use request::{
    ConfigError, LogitsAt, PrefixReuse, SchedulerConfig, SequenceRequest, SubmitError,
};
pub use restore::BlockSource;
pub use step::{Event, Sampled, SeqId, Stats, Step, StepSequence};

/// Continuous batching over a paged KV cache.
///
/// The engine repeats: [`plan`](Self::plan) a step, run it, sample, [`commit`](Self::commit) the sampled
/// tokens. Between any two of these calls requests may be submitted, cancelled, forked or truncated.
///
/// ```
/// use oxidize_core::scheduler::*;
///
/// let mut scheduler = Scheduler::new(SchedulerConfig {
///     n_blocks: 64,
///     block_size: 16,
///     windows: Vec::new(),
///     max_batch_tokens: 256,
///     max_sequences: 8,
///     max_outputs: 8,
///     max_queue: 32,
///     context_length: 512,
///     reuse: PrefixReuse::Blocks,
///     steps_per_priority: 64,
/// })?;
/// scheduler.submit(SequenceRequest::new(SeqId(1), vec![5, 6, 7], 10))?;
/// let mut n_tokens = 0;
/// while let Some(step) = scheduler.plan() {
///     // Here a session copies `step.copies` and runs `step.tokens`, and a sampler reads logits.
///     let sampling = step.sequences.iter().filter(|part| part.samples);
///     let sampled: Vec<_> = sampling.map(|part| Sampled::token(part.id, 42)).collect();
///     n_tokens += sampled.len();
///     scheduler.commit(step, &sampled);
/// }
/// assert_eq!(n_tokens, 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    kv: KvBlocks,
    sequences: BTreeMap<SeqId, Sequence>,
    /// Sequences without a slot, in the order of admission.
    waiting: BTreeSet<(Rank, SeqId)>,
    /// Sequences with a slot, best rank first. The last one is preempted first.
    running: Vec<SeqId>,
    /// Unused slots.
    free_slots: BTreeSet<u32>,
    /// Number of the step that is planned and not committed yet.
    in_flight: Option<u64>,
    /// Copies of recurrent state for the next step to make first, `(from, to)`.
    state_copies: Vec<(u32, u32)>,
    /// Events outside of `commit`, reported by the next one.
    events: Vec<Event>,
    /// Committed step whose buffers the next one reuses.
    spare: Step,
    n_steps: u64,
    n_submitted: u64,
    stats: Stats,
}

impl Scheduler {
    /// Creates a scheduler without sequences.
    pub fn new(config: SchedulerConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            kv: KvBlocks::new(config.n_blocks, config.block_size)
                .with_checkpoints(config.n_checkpoints())
                .with_windows(&config.windows),
            sequences: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: Vec::new(),
            free_slots: (0..config.n_slots()).collect(),
            in_flight: None,
            state_copies: Vec::new(),
            events: Vec::new(),
            spare: Step::default(),
            n_steps: 0,
            n_submitted: 0,
            stats: Stats::default(),
            config,
        })
    }

    /// Configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Queues a request.
    pub fn submit(&mut self, request: SequenceRequest) -> Result<(), SubmitError> {
        self.config.accepts(&request)?;
        self.check_id(request.id)?;
        self.check_queue()?;
        self.stats.prompt_tokens += request.tokens.len() as u64;
        let rank = self.next_rank(request.priority);
        self.enqueue(Sequence::new(request, rank, &self.config));
        Ok(())
    }

    /// Starts a sequence `id` that continues from the current end of `parent` and shares its blocks, for
    /// several completions of one prompt. After a fork, [`truncate`](Self::truncate) makes it continue from
    /// an earlier token. If no slot is free, or a step in flight changes the parent's recurrent state, the
    /// sequence is queued and reuses what it finds in the prefix cache.
    pub fn fork(&mut self, parent: SeqId, id: SeqId) -> Result<(), SubmitError> {
        self.check_id(id)?;
        let original = self
            .sequences
            .get(&parent)
            .ok_or(SubmitError::UnknownParent(parent))?;
        let mut child = original.child(id);
        let can_share = !self.config.is_recurrent() || original.planned == 0;
        let parent_slot = original.slot.filter(|_| can_share);
        let Some((slot, parent_slot)) = self.free_slots.first().copied().zip(parent_slot) else {
            self.check_queue()?;
            child.rank = self.next_rank(child.priority);
            self.enqueue(child);
            return Ok(());
        };
        // The step in flight may have added blocks to the parent.
        let n_shared = self.config.blocks_for(original.computed);
        child.blocks = original.blocks.iter().take(n_shared).copied().collect();
        let tables = self.kv.windows_mut().iter_mut().zip(&original.windows);
        let shared = tables.map(|(windows, table)| windows.share(table, n_shared));
        child.windows = shared.collect();
        child.computed = original.computed;
        child.slot = Some(slot);
        child.rank = self.next_rank(child.priority);
        child.blocks.iter().for_each(|&block| self.kv.retain(block));
        self.free_slots.remove(&slot);
        if self.config.is_recurrent() {
            self.state_copies.push((parent_slot, slot));
        }
        self.sequences.insert(id, child);
        self.insert_running(id);
        Ok(())
    }

    /// Proposes tokens that may follow those of a decoding sequence, for the next step to verify. The step
    /// feeds as many of them as budget and blocks allow, with logits for each. Returns `false` if the
    /// sequence is not decoding or its state could not be rolled back.
    pub fn draft(&mut self, id: SeqId, tokens: &[u32]) -> bool {
        let can_rewind = !self.config.is_recurrent() || self.config.n_checkpoints() > 0;
        let can_rewind = can_rewind && self.in_flight.is_none();
        match self.sequences.get_mut(&id) {
            Some(seq) if can_rewind && seq.slot.is_some() && seq.n_pending() == 1 => {
                seq.draft.clear();
                seq.draft.extend_from_slice(tokens);
                true
            }
            _ => false,
        }
    }

    /// Truncates a sequence to its first `n_tokens` tokens, which must include its prompt. If the sequence is
    /// part of a step in flight, the result of that step is ignored for it. Returns `false` if there is no
    /// such sequence, or `n_tokens` is shorter than the prompt or longer than the sequence.
    pub fn truncate(&mut self, id: SeqId, n_tokens: usize) -> bool {
        let Some(seq) = self.sequences.get_mut(&id) else {
            return false;
        };
        if n_tokens < seq.n_prompt || n_tokens > seq.tokens.len() {
            return false;
        }
        seq.tokens.truncate(n_tokens);
        seq.draft.clear();
        seq.reached = seq.reached.min(n_tokens - 1);
        // The last token is computed again: its logits are needed.
        let restored = seq.rewind(&self.config, &mut self.kv, n_tokens - 1);
        if let Some((checkpoint, slot)) = restored.zip(seq.slot) {
            let from = self.config.checkpoint_slot(checkpoint);
            self.state_copies.push((from, slot));
        }
        true
    }

    /// Ends a sequence that is no longer wanted. Returns `false` if there is none with this id.
    pub fn cancel(&mut self, id: SeqId) -> bool {
        let found = self.remove(id);
        self.stats.cancelled += u64::from(found);
        found
    }

    /// Ends a sequence that is complete, for example at a stop string. As after any end, its full blocks stay
    /// in the prefix cache. Returns `false` if there is none with this id.
    pub fn finish(&mut self, id: SeqId) -> bool {
        let found = self.remove(id);
        self.stats.finished += u64::from(found);
        found
    }

    /// Tokens of a sequence so far: the prompt and the generated tokens.
    pub fn tokens(&self, id: SeqId) -> Option<&[u32]> {
        self.sequences.get(&id).map(|seq| &*seq.tokens)
    }

    /// True if no sequence is waiting or running.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Removes every prefix that no running sequence uses from the cache.
    pub fn clear_prefix_cache(&mut self) {
        self.kv.clear_cached();
    }

    /// Current state, and totals since the scheduler was created.
    pub fn stats(&self) -> Stats {
        let n_blocks = self.kv.n_blocks();
        Stats {
            queued: self.waiting.len(),
            running: self.running.len(),
            free_blocks: self.kv.n_free(),
            cached_blocks: self.kv.n_cached(),
            used_blocks: n_blocks - self.kv.n_available(),
            steps: self.n_steps,
            ..self.stats
        }
    }

    fn check_id(&self, id: SeqId) -> Result<(), SubmitError> {
        if self.sequences.contains_key(&id) {
            Err(SubmitError::DuplicateId(id))
        } else {
            Ok(())
        }
    }

    fn check_queue(&self) -> Result<(), SubmitError> {
        let limit = self.config.max_queue;
        if self.waiting.len() >= limit {
            Err(SubmitError::QueueFull { limit })
        } else {
            Ok(())
        }
    }

    fn next_rank(&mut self, priority: i32) -> Rank {
        self.n_submitted += 1;
        Rank::new(
            self.n_steps,
            priority,
            self.config.steps_per_priority,
            self.n_submitted,
        )
    }

    fn enqueue(&mut self, sequence: Sequence) {
        self.waiting.insert((sequence.rank, sequence.id));
        self.sequences.insert(sequence.id, sequence);
    }

    /// Inserts a sequence with a slot into the running sequences, by rank.
    fn insert_running(&mut self, id: SeqId) {
        let rank_of = |id: &SeqId| self.sequences.get(id).map(|seq| seq.rank);
        let index = self
            .running
            .partition_point(|other| rank_of(other) < rank_of(&id));
        self.running.insert(index, id);
    }

    /// Releases blocks and slot. Full blocks stay in the prefix cache.
    fn release_resources(&mut self, id: SeqId) {
        let Some(seq) = self.sequences.get_mut(&id) else {
            return;
        };
        seq.release_blocks(&mut self.kv, 0);
        seq.computed = 0;
        seq.planned = 0;
        seq.recompute = false;
        seq.draft.clear();
        if let Some(checkpoint) = seq.rollback.take() {
            self.kv.checkpoints_mut().release(checkpoint);
        }
        if let Some(slot) = seq.slot.take() {
            self.free_slots.insert(slot);
            self.running.retain(|&other| other != id);
        }
    }

    /// Moves a running sequence back to the queue, where it keeps its rank. Blocks that are evicted meanwhile
    /// are recomputed from its tokens.
    fn preempt(&mut self, id: SeqId) {
        self.release_resources(id);
        let Some(seq) = self.sequences.get(&id) else {
            return;
        };
        self.waiting.insert((seq.rank, id));
        self.events.push(Event::Preempted { id });
        self.stats.preemptions += 1;
    }

    fn remove(&mut self, id: SeqId) -> bool {
        self.release_resources(id);
        let Some(seq) = self.sequences.remove(&id) else {
            return false;
        };
        self.waiting.remove(&(seq.rank, id));
        true
    }
}
