//! Configuration and requests of a scheduler, validated once on entry, and its state per sequence.

use super::policy::Rank;
use super::step::SeqId;
use crate::kv::{BlockId, KvBlocks, WindowGroup, WindowTable};

/// Limits of a scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Number of KV blocks of the session.
    pub n_blocks: u32,
    /// Positions per block.
    pub block_size: usize,
    /// Layers with a window whose blocks the session keeps apart, which are groups 1 and up.
    pub windows: Vec<WindowGroup>,
    /// Maximum tokens per step. It bounds the duration of a step, and so how long a prompt can delay the
    /// streams of others.
    pub max_batch_tokens: usize,
    /// Maximum running sequences. At most `max_batch_tokens` run in any case, so that each of them can get a
    /// token in each step.
    pub max_sequences: usize,
    /// Maximum positions per step with logits, drafts aside. At least one for each running sequence; the others
    /// are for requests with [`LogitsAt::Every`].
    pub max_outputs: usize,
    /// Maximum waiting requests. Preempted sequences count too, but are never rejected.
    pub max_queue: usize,
    /// Maximum tokens of a sequence, prompt and completion together.
    pub context_length: usize,
    /// Reuse of computed blocks.
    pub reuse: PrefixReuse,
    /// Number of steps of waiting that equal one level of priority: a request of priority 1 precedes requests
    /// of priority 0 that arrived up to this many steps earlier. This prevents starvation.
    pub steps_per_priority: u32,
}

/// Part of earlier computations that can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixReuse {
    /// Any prefix, in whole blocks.
    Blocks,
    /// None: every request computes its whole prompt. A sequence can still be truncated.
    None,
    /// The model keeps recurrent state, which is valid at its last position only: a prefix can be reused, and
    /// a sequence truncated, up to a checkpoint of the state.
    Recurrent {
        /// Number of checkpoints, which are in the slots after those of the running sequences. With none,
        /// every sequence starts from its first token.
        checkpoints: u32,
    },
}

/// Request to compute a prompt and generate tokens.
#[derive(Clone, Debug)]
pub struct SequenceRequest {
    /// Id of the sequence; no other sequence with this id may be waiting or running.
    pub id: SeqId,
    /// Prompt.
    pub tokens: Vec<u32>,
    /// Maximum tokens to generate, also bounded by the context length and the number of blocks. With zero,
    /// the prompt is computed for its logits or embeddings and the sequence ends without a token.
    pub max_new_tokens: usize,
    /// Priority; higher comes first. See [`SchedulerConfig::steps_per_priority`].
    pub priority: i32,
    /// Namespace for tenants and adapters that must not share blocks.
    pub salt: u64,
    /// Positions that need logits.
    pub logits: LogitsAt,
    /// True if a cached prefix may be reused. Blocks that this request computes are cached either way.
    pub reuse_prefix: bool,
}

/// Positions of a prompt that need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsAt {
    /// The last position, to sample from it.
    Last,
    /// Each position, once, for scoring or pooling. Such a request reuses no cached prefix.
    Every,
}

/// Reason why a request was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many requests are waiting.
    #[error("the queue is full: its limit is {limit} requests")]
    QueueFull {
        /// Maximum waiting requests.
        limit: usize,
    },
    /// Prompt and one new token exceed the context or the KV cache.
    #[error(
        "the prompt and one new token need {requested} tokens of context, the limit is {limit}"
    )]
    TooLong {
        /// Tokens needed.
        requested: usize,
        /// Maximum tokens of a sequence, given by context and KV cache.
        limit: usize,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    Empty,
    /// A sequence with this id is waiting or running.
    #[error("a sequence with id {} exists already", .0.0)]
    DuplicateId(SeqId),
    /// The sequence to fork does not exist.
    #[error("there is no sequence {} to fork", .0.0)]
    UnknownParent(SeqId),
}

/// Reason why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A limit is zero.
    #[error("scheduler: {0} must be at least 1")]
    Zero(&'static str),
    /// A limit is beyond the range of positions and rows.
    #[error("scheduler: {name} is {requested}, the limit is {}", u32::MAX)]
    TooLarge {
        /// Field.
        name: &'static str,
        /// Value of the field.
        requested: usize,
    },
    /// The blocks of a window do not hold a single sequence.
    #[error("scheduler: a window has {n_blocks} blocks, a sequence needs {needed}")]
    WindowTooSmall {
        /// Blocks of the window.
        n_blocks: u32,
        /// Blocks that a sequence needs.
        needed: usize,
    },
}

impl SchedulerConfig {
    /// Maximum tokens of a sequence: a single sequence must fit in the KV cache.
    pub fn capacity(&self) -> usize {
        self.context_length
            .min((self.n_blocks as usize).saturating_mul(self.block_size))
    }

    /// Number of blocks for `n_tokens` positions.
    pub fn blocks_for(&self, n_tokens: usize) -> usize {
        n_tokens.div_ceil(self.block_size)
    }

    /// Maximum number of blocks of a group that a sequence of `n_tokens` positions holds between steps.
    pub(super) fn window_blocks_for(&self, group: &WindowGroup, n_tokens: usize) -> usize {
        let in_window = group.blocks_per_sequence(self.block_size);
        self.blocks_for(n_tokens).min(in_window)
    }

    /// Number of checkpoints of recurrent state.
    pub(super) fn n_checkpoints(&self) -> u32 {
        match self.reuse {
            PrefixReuse::Recurrent { checkpoints } => checkpoints,
            _ => 0,
        }
    }

    /// True if sequences have recurrent state, which cannot be truncated like a block table.
    pub(super) fn is_recurrent(&self) -> bool {
        matches!(self.reuse, PrefixReuse::Recurrent { .. })
    }

    /// Slot of a checkpoint.
    pub(super) fn checkpoint_slot(&self, checkpoint: u32) -> u32 {
        self.n_slots() + checkpoint
    }

    /// Maximum running sequences.
    pub(super) fn n_slots(&self) -> u32 {
        self.max_sequences.min(self.max_batch_tokens) as u32
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let fields = [
            ("n_blocks", self.n_blocks as usize),
            ("block_size", self.block_size),
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_sequences", self.max_sequences),
            ("max_outputs", self.max_outputs),
            ("max_queue", self.max_queue),
            ("context_length", self.context_length),
        ];
        for (name, requested) in fields {
            if requested == 0 {
                return Err(ConfigError::Zero(name));
            }
            if requested > u32::MAX as usize {
                return Err(ConfigError::TooLarge { name, requested });
            }
        }
        for group in &self.windows {
            let needed = self.window_blocks_for(group, self.capacity());
            if (group.n_blocks as usize) < needed {
                let n_blocks = group.n_blocks;
                return Err(ConfigError::WindowTooSmall { n_blocks, needed });
            }
        }
        Ok(())
    }

    pub(super) fn accepts(&self, request: &SequenceRequest) -> Result<(), SubmitError> {
        if request.tokens.is_empty() {
            return Err(SubmitError::Empty);
        }
        let requested = request.tokens.len() + request.max_new_tokens.min(1);
        let limit = self.capacity();
        if requested > limit {
            Err(SubmitError::TooLong { requested, limit })
        } else {
            Ok(())
        }
    }
}

impl SequenceRequest {
    /// A request of priority 0 and salt 0 that reuses cached prefixes and needs logits at the end.
    pub fn new(id: SeqId, tokens: Vec<u32>, max_new_tokens: usize) -> Self {
        Self {
            id,
            tokens,
            max_new_tokens,
            priority: 0,
            salt: 0,
            logits: LogitsAt::Last,
            reuse_prefix: true,
        }
    }
}

/// A waiting or running sequence.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    pub(super) rank: Rank,
    pub(super) priority: i32,
    pub(super) salt: u64,
    pub(super) logits: LogitsAt,
    pub(super) reuse_prefix: bool,
    /// Prompt and generated tokens. Between steps, the last one is never computed.
    pub(super) tokens: Vec<u32>,
    pub(super) n_prompt: usize,
    /// Number of tokens at which the sequence ends.
    pub(super) max_tokens: usize,
    /// Draft tokens proposed to follow `tokens`; after `plan`, those in flight.
    pub(super) draft: Vec<u32>,
    /// Number of positions whose keys and values are in `blocks`.
    pub(super) computed: usize,
    /// Block table: between steps just enough blocks for `computed` positions, in flight for `computed +
    /// planned`.
    pub(super) blocks: Vec<BlockId>,
    /// Block tables of the layers with a window, as long as `blocks`.
    pub(super) windows: Vec<WindowTable>,
    /// Number of tokens in the step in flight, drafts included; zero if the sequence is not part of it.
    pub(super) planned: usize,
    /// Slot, while the sequence runs.
    pub(super) slot: Option<u32>,
    /// Checkpoint of the state before the draft in flight.
    pub(super) rollback: Option<u32>,
    /// True after a rollback of recurrent state, until the sequence has recomputed the accepted tokens.
    pub(super) recompute: bool,
    /// End of the cached prefix when the sequence was admitted. With recurrent state, a checkpoint there is
    /// useful, because other sequences continue from it.
    pub(super) branch: usize,
    /// Number of positions that were computed or cached at some time, perhaps before a preemption.
    pub(super) reached: usize,
    /// Number of prompt tokens that were reused from other sequences.
    pub(super) cached: usize,
    /// True once the whole prompt was computed.
    pub(super) prompt_done: bool,
}

impl Sequence {
    pub(super) fn new(request: SequenceRequest, rank: Rank, config: &SchedulerConfig) -> Self {
        let n_prompt = request.tokens.len();
        Self {
            id: request.id,
            rank,
            priority: request.priority,
            salt: request.salt,
            logits: request.logits,
            reuse_prefix: request.reuse_prefix && request.logits == LogitsAt::Last,
            n_prompt,
            max_tokens: n_prompt
                .saturating_add(request.max_new_tokens)
                .min(config.capacity()),
            tokens: request.tokens,
            draft: Vec::new(),
            computed: 0,
            blocks: Vec::new(),
            windows: vec![WindowTable::default(); config.windows.len()],
            planned: 0,
            slot: None,
            rollback: None,
            recompute: false,
            branch: 0,
            reached: 0,
            cached: 0,
            prompt_done: false,
        }
    }

    /// A copy with another id and nothing computed. It needs no logits of the prompt, which the original
    /// gets.
    pub(super) fn child(&self, id: SeqId) -> Self {
        Self {
            id,
            logits: LogitsAt::Last,
            draft: Vec::new(),
            computed: 0,
            blocks: Vec::new(),
            windows: vec![WindowTable::default(); self.windows.len()],
            planned: 0,
            slot: None,
            rollback: None,
            recompute: false,
            branch: 0,
            cached: 0,
            ..self.clone()
        }
    }

    /// Number of tokens that are not computed yet; one while decoding.
    pub(super) fn n_pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Records that the first `computed` positions are in its blocks, taken from the cache.
    pub(super) fn advance_cached(&mut self, computed: usize) {
        self.computed = computed;
        if !self.prompt_done {
            self.cached += computed.saturating_sub(self.reached);
        }
        self.reached = self.reached.max(computed);
    }

    /// Leaves the step in flight, if the sequence is part of it, and keeps at most the first `n_tokens`
    /// computed positions: fewer if window blocks or recurrent state are no longer there. Returns the
    /// checkpoint from which the recurrent state must be restored, if it must.
    pub(super) fn rewind(
        &mut self,
        config: &SchedulerConfig,
        kv: &mut KvBlocks,
        n_tokens: usize,
    ) -> Option<u32> {
        // After the step, recurrent state will be at a later position.
        let leaves_step = std::mem::take(&mut self.planned) > 0 && config.is_recurrent();
        let mut restored = None;
        if leaves_step || self.computed > n_tokens {
            let n_tokens = self.computed.min(n_tokens);
            let (nodes, tables) = (&self.blocks, &mut self.windows);
            self.computed = kv.resumable(nodes, tables, n_tokens, config.is_recurrent());
            kv.hold_windows(tables, nodes, self.computed);
            restored = (self.computed / config.block_size)
                .checked_sub(1)
                .filter(|_| config.is_recurrent())
                .and_then(|last| nodes.get(last))
                .and_then(|&block| kv.checkpoints_mut().find(block));
        }
        if let Some(checkpoint) = self.rollback.take() {
            kv.checkpoints_mut().release(checkpoint);
        }
        self.release_blocks(kv, config.blocks_for(self.computed));
        restored
    }

    /// True if a block of a group is in the sequence's table.
    pub(super) fn holds(&self, group: usize, block: BlockId) -> bool {
        let table = match group.checked_sub(1) {
            Some(nth) => self.windows.get(nth).map(WindowTable::blocks),
            None => Some(&*self.blocks),
        };
        table.is_some_and(|table| table.contains(&block))
    }

    /// Shortens the block tables to `keep` blocks.
    pub(super) fn release_blocks(&mut self, kv: &mut KvBlocks, keep: usize) {
        kv.release_tail(&mut self.blocks, keep);
        for (windows, table) in kv.windows_mut().iter_mut().zip(&mut self.windows) {
            windows.release_tail(table, keep);
        }
    }

    /// Releases the window blocks that the sequence no longer needs.
    pub(super) fn release_behind(&mut self, kv: &mut KvBlocks) {
        for (windows, table) in kv.windows_mut().iter_mut().zip(&mut self.windows) {
            windows.release_behind(table, self.computed);
        }
    }
}
