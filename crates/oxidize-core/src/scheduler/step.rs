//! What goes between scheduler and engine: the step to run, what was sampled from it, and what
//! that means for each request.

use std::ops::Range;

use crate::kv::BlockId;

/// Names a sequence; chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// One run of the model over tokens of several sequences, laid out flat as a backend wants it.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub(super) number: u64,
    /// Blocks to copy, `(from, to)`, in this order and before anything is computed.
    pub copies: Vec<(BlockId, BlockId)>,
    /// Recurrent states to copy from slot to slot, `(from, to)`, in this order and before anything
    /// is computed. Slots that no sequence ever has are places for copies to go back to.
    pub state_copies: Vec<(u32, u32)>,
    /// The tokens to feed, those of a sequence together and in order. An index here is a row.
    pub tokens: Vec<u32>,
    /// The position of each row in its sequence.
    pub positions: Vec<u32>,
    /// The rows whose logits are wanted, ascending.
    pub outputs: Vec<u32>,
    /// The block tables of the sequences, one after another.
    pub blocks: Vec<BlockId>,
    /// The sequences, in the order of their rows.
    pub sequences: Vec<StepSequence>,
}

/// The part of a [`Step`] that belongs to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSequence {
    /// The sequence.
    pub id: SeqId,
    /// A small number that is the sequence's own while it runs: the place of its recurrent state.
    pub slot: u32,
    /// The position of its first row: how many tokens are in the KV cache already. At zero,
    /// recurrent state starts anew.
    pub start: usize,
    /// Its rows.
    pub rows: Range<usize>,
    /// Where in [`Step::blocks`] its table is. The table covers every position up to its last row.
    pub blocks: Range<usize>,
    /// Where in [`Step::outputs`] the rows are whose logits it wants. Empty in the middle of a
    /// prompt.
    pub outputs: Range<usize>,
    /// How many of its last rows are drafts to verify. The logits of each of them, and of the row
    /// before, are wanted.
    pub n_draft: usize,
    /// Whether these rows were computed before, as drafts that were accepted beside others that were not: recurrent
    /// state had to go back. All have logits, those of the last row are new.
    pub again: bool,
    /// Whether a token is to be sampled: the rows reach its last known token.
    pub samples: bool,
}

/// What was sampled for a sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The sequence.
    pub id: SeqId,
    /// How many of the drafted tokens were accepted; they come before `token`.
    pub accepted: usize,
    /// The new token.
    pub token: u32,
    /// Whether it ends the sequence: an end-of-text token, a stop string.
    pub finished: bool,
}

/// Something that happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It left the queue for the first time.
    Started {
        /// The sequence.
        id: SeqId,
    },
    /// So many tokens of its prompt did not have to be computed. Comes before its first token, if
    /// there were any.
    CacheHit {
        /// The sequence.
        id: SeqId,
        /// Prompt tokens found computed.
        tokens: usize,
    },
    /// It has a new token.
    Token {
        /// The sequence.
        id: SeqId,
        /// The token.
        token: u32,
    },
    /// It went back to the queue for want of blocks or for a request of higher priority. It goes
    /// on later as if nothing had been.
    Preempted {
        /// The sequence.
        id: SeqId,
    },
    /// It is over and its id is free.
    Finished {
        /// The sequence.
        id: SeqId,
        /// Why.
        reason: FinishReason,
    },
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The sampler said so.
    Stop,
    /// It has as many tokens as were asked for, or as fit.
    Length,
}

/// Where a scheduler stands, and totals since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that wait, preempted ones included.
    pub queued: usize,
    /// Sequences that run.
    pub running: usize,
    /// Blocks that hold nothing.
    pub free_blocks: usize,
    /// Blocks that nobody uses but can be found again.
    pub cached_blocks: usize,
    /// Blocks of running sequences.
    pub used_blocks: usize,
    /// Steps planned.
    pub steps: u64,
    /// Tokens of all prompts submitted.
    pub prompt_tokens: u64,
    /// Prompt tokens found computed.
    pub cached_prompt_tokens: u64,
    /// Tokens fed in committed steps.
    pub computed_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Drafted tokens that were verified.
    pub drafted_tokens: u64,
    /// Those of them that were accepted.
    pub accepted_drafts: u64,
    /// Times a sequence was sent back to the queue.
    pub preemptions: u64,
    /// Sequences that ended by themselves.
    pub finished: u64,
    /// Sequences that were cancelled.
    pub cancelled: u64,
}

impl Step {
    /// The tokens that a sequence of this step feeds.
    pub fn tokens_of(&self, sequence: &StepSequence) -> &[u32] {
        self.tokens.get(sequence.rows.clone()).unwrap_or_default()
    }

    /// The block table of a sequence of this step.
    pub fn blocks_of(&self, sequence: &StepSequence) -> &[BlockId] {
        self.blocks.get(sequence.blocks.clone()).unwrap_or_default()
    }

    /// The rows of a sequence of this step whose logits are wanted.
    pub fn outputs_of(&self, sequence: &StepSequence) -> &[u32] {
        self.outputs
            .get(sequence.outputs.clone())
            .unwrap_or_default()
    }

    /// Empties it and keeps its buffers.
    pub(super) fn clear(&mut self) {
        self.copies.clear();
        self.state_copies.clear();
        self.tokens.clear();
        self.positions.clear();
        self.outputs.clear();
        self.blocks.clear();
        self.sequences.clear();
    }
}

impl Sampled {
    /// One token that does not end the sequence.
    pub fn token(id: SeqId, token: u32) -> Self {
        Self {
            id,
            accepted: 0,
            token,
            finished: false,
        }
    }
}
