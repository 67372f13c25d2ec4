//! What a scheduler is asked for (its configuration and requests, checked once on entry) and what
//! it keeps about each sequence.

use super::policy::Rank;
use super::step::SeqId;
use crate::kv::{BlockId, KvBlocks};

/// The limits a scheduler works within.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// KV blocks of the session.
    pub n_blocks: u32,
    /// Positions in a block.
    pub block_size: usize,
    /// Most tokens a step feeds. It bounds how long a step takes, and so how long a prompt can hold
    /// up the streams of others.
    pub max_batch_tokens: usize,
    /// Most sequences that run at once. Never more than `max_batch_tokens` do: each of them must be
    /// able to get a token in each step.
    pub max_sequences: usize,
    /// Most requests that wait. Preempted sequences count too, but are never turned away.
    pub max_queue: usize,
    /// Most tokens of a sequence, prompt and completion together.
    pub context_length: usize,
    /// Whether computed blocks are used again.
    pub reuse: PrefixReuse,
    /// How many steps of waiting make up for one level of priority: a request of priority 1 goes
    /// before those of priority 0 that came up to so many steps earlier. Nobody waits forever.
    pub steps_per_priority: u32,
}

/// Which part of what was computed before can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixReuse {
    /// Any prefix, in whole blocks.
    Blocks,
    /// Nothing: every request computes its whole prompt. A sequence can still be cut back.
    None,
    /// The model keeps recurrent state, which is valid at its last position only: a prefix can be
    /// used again, and a sequence cut back, to where a copy of the state was made.
    Recurrent {
        /// How many such copies there is room for, in the slots after those of the running
        /// sequences. Without any, every sequence starts from its first token.
        checkpoints: u32,
    },
}

/// A request for tokens.
#[derive(Clone, Debug)]
pub struct SequenceRequest {
    /// Names the sequence; no other one of this id may be waiting or running.
    pub id: SeqId,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Most tokens to generate; the context length and the pool bound it too. With zero the prompt
    /// is computed for its logits or embeddings and the sequence ends without a token.
    pub max_new_tokens: usize,
    /// Higher goes first. See [`SchedulerConfig::steps_per_priority`].
    pub priority: i32,
    /// Separates those who must not share blocks: tenants, adapters.
    pub salt: u64,
    /// Which positions need logits.
    pub logits: LogitsAt,
    /// Whether a computed prefix may be used. What this request computes can be found by others
    /// either way.
    pub reuse_prefix: bool,
}

/// The positions of a prompt whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsAt {
    /// The last one, to sample from.
    Last,
    /// Each one, once, for scoring or pooling. No computed prefix is used for this request.
    Every,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many requests wait.
    #[error("the queue is full: its limit is {limit} requests")]
    QueueFull {
        /// Requests that may wait.
        limit: usize,
    },
    /// The prompt leaves no room for a token.
    #[error("the prompt and one new token need {asked} tokens of context, the limit is {limit}")]
    TooLong {
        /// Tokens needed.
        asked: usize,
        /// Tokens that the context and the KV cache hold.
        limit: usize,
    },
    /// There is no token to compute.
    #[error("the prompt is empty")]
    Empty,
    /// The id is taken.
    #[error("sequence {} is already there", .0.0)]
    DuplicateId(SeqId),
    /// There is nothing to fork.
    #[error("there is no sequence {} to fork", .0.0)]
    UnknownParent(SeqId),
}

/// Why a configuration cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A limit that allows nothing.
    #[error("scheduler: {0} must be at least 1")]
    Zero(&'static str),
    /// A limit over what positions and rows can be numbered with.
    #[error("scheduler: {name} is {asked}, the limit is {}", u32::MAX)]
    TooLarge {
        /// The field.
        name: &'static str,
        /// Its value.
        asked: usize,
    },
}

impl SchedulerConfig {
    /// The most tokens a sequence can have: it must fit in the pool alone.
    pub fn capacity(&self) -> usize {
        self.context_length
            .min((self.n_blocks as usize).saturating_mul(self.block_size))
    }

    /// Blocks that hold `n_tokens` positions.
    pub fn blocks_for(&self, n_tokens: usize) -> usize {
        n_tokens.div_ceil(self.block_size)
    }

    /// Copies of recurrent state there is room for.
    pub(super) fn n_checkpoints(&self) -> u32 {
        match self.reuse {
            PrefixReuse::Recurrent { checkpoints } => checkpoints,
            _ => 0,
        }
    }

    /// Whether a sequence has state that cannot be cut back like a table of blocks.
    pub(super) fn is_recurrent(&self) -> bool {
        matches!(self.reuse, PrefixReuse::Recurrent { .. })
    }

    /// The slot of the state that is kept at a place for copies.
    pub(super) fn checkpoint_slot(&self, place: u32) -> u32 {
        self.n_slots() + place
    }

    /// Sequences that can run at once.
    pub(super) fn n_slots(&self) -> u32 {
        self.max_sequences.min(self.max_batch_tokens) as u32
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let fields = [
            ("n_blocks", self.n_blocks as usize),
            ("block_size", self.block_size),
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_sequences", self.max_sequences),
            ("max_queue", self.max_queue),
            ("context_length", self.context_length),
        ];
        for (name, asked) in fields {
            if asked == 0 {
                return Err(ConfigError::Zero(name));
            }
            if asked > u32::MAX as usize {
                return Err(ConfigError::TooLarge { name, asked });
            }
        }
        Ok(())
    }

    pub(super) fn accepts(&self, request: &SequenceRequest) -> Result<(), SubmitError> {
        if request.tokens.is_empty() {
            return Err(SubmitError::Empty);
        }
        let asked = request.tokens.len() + request.max_new_tokens.min(1);
        let limit = self.capacity();
        if asked > limit {
            Err(SubmitError::TooLong { asked, limit })
        } else {
            Ok(())
        }
    }
}

impl SequenceRequest {
    /// A request of priority 0 under salt 0, which uses computed prefixes and samples at the end.
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

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    pub(super) rank: Rank,
    pub(super) priority: i32,
    pub(super) salt: u64,
    pub(super) logits: LogitsAt,
    pub(super) reuse_prefix: bool,
    /// The prompt and what was generated. The last one is never computed between steps.
    pub(super) tokens: Vec<u32>,
    pub(super) n_prompt: usize,
    /// It ends with this many tokens.
    pub(super) max_tokens: usize,
    /// Tokens proposed to follow `tokens`; those in flight after `plan`.
    pub(super) draft: Vec<u32>,
    /// Positions whose keys and values are in `blocks`.
    pub(super) computed: usize,
    /// Between steps just enough blocks for `computed`; in flight, for `computed + planned`.
    pub(super) blocks: Vec<BlockId>,
    /// Tokens that the step in flight feeds, draft included; zero if it is not part of it.
    pub(super) planned: usize,
    /// Set while it runs.
    pub(super) slot: Option<u32>,
    /// Where its state from before the draft in flight is kept.
    pub(super) rollback: Option<u32>,
    /// Its state went back to before a draft: until it has caught up, it computes again what it has
    /// computed.
    pub(super) again: bool,
    /// Recurrent state: the known prefix ends here that others have in common with it, so that a
    /// copy of the state is worth having.
    pub(super) branch: usize,
    /// Positions below this one were computed or found at some time, perhaps before a preemption.
    pub(super) reached: usize,
    /// Prompt tokens that were found computed, and not by this sequence.
    pub(super) cached: usize,
    pub(super) started: bool,
    pub(super) prompt_done: bool,
}

impl Sequence {
    pub(super) fn new(request: SequenceRequest, rank: Rank, capacity: usize) -> Self {
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
                .min(capacity),
            tokens: request.tokens,
            draft: Vec::new(),
            computed: 0,
            blocks: Vec::new(),
            planned: 0,
            slot: None,
            rollback: None,
            again: false,
            branch: 0,
            reached: 0,
            cached: 0,
            started: false,
            prompt_done: false,
        }
    }

    /// A copy under another id that has nothing computed yet. Logits of the prompt are the
    /// original's business.
    pub(super) fn child(&self, id: SeqId) -> Self {
        Self {
            id,
            logits: LogitsAt::Last,
            draft: Vec::new(),
            computed: 0,
            blocks: Vec::new(),
            planned: 0,
            slot: None,
            rollback: None,
            again: false,
            branch: 0,
            cached: 0,
            started: false,
            ..self.clone()
        }
    }

    /// Known tokens that are not computed. One while decoding.
    pub(super) fn n_pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Takes note that the first `computed` positions are in its blocks without its doing.
    pub(super) fn found_computed(&mut self, computed: usize) {
        self.computed = computed;
        if !self.prompt_done {
            self.cached += computed.saturating_sub(self.reached);
        }
        self.reached = self.reached.max(computed);
    }

    /// Leaves the step in flight, if it is part of one, and keeps at most the first `n_tokens`
    /// computed positions. Returns the place of the copy from which its recurrent state must be
    /// restored for that, if it must.
    pub(super) fn rewind(
        &mut self,
        config: &SchedulerConfig,
        kv: &mut KvBlocks,
        n_tokens: usize,
    ) -> Option<u32> {
        let leaves_step = std::mem::take(&mut self.planned) > 0;
        let mut restored = None;
        if !config.is_recurrent() {
            self.computed = self.computed.min(n_tokens);
        } else if leaves_step || self.computed > n_tokens {
            // The state is, or will be, at a later position.
            let full = self.computed.min(n_tokens) / config.block_size;
            let mut kept = self.blocks.iter().take(full);
            let last = kept.rposition(|&block| kv.checkpoints().contains(block));
            self.computed = last.map_or(0, |last| (last + 1) * config.block_size);
            restored = last
                .and_then(|last| self.blocks.get(last))
                .and_then(|&block| kv.checkpoints_mut().find(block));
        }
        if let Some(place) = self.rollback.take() {
            kv.checkpoints_mut().give_back(place);
        }
        kv.release_tail(&mut self.blocks, config.blocks_for(self.computed));
        restored
    }
}
