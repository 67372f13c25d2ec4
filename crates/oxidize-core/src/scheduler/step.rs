//! Types exchanged between scheduler and engine: the step to run, the tokens sampled from it, and the
//! resulting events.

use std::ops::Range;

use crate::kv::{BlockCopy, BlockId};

/// Id of a sequence, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// One run of the model over tokens of several sequences, flattened for the backend.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub(super) number: u64,
    /// Blocks to copy, in this order and before computing.
    pub copies: Vec<BlockCopy>,
    /// Recurrent states to copy between slots, `(from, to)`, in this order and before computing. Slots after
    /// those of sequences hold checkpoints.
    pub state_copies: Vec<(u32, u32)>,
    /// Input tokens, grouped by sequence and in order. Their indices are the rows of the step.
    pub tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Rows that need logits, ascending.
    pub outputs: Vec<u32>,
    /// Concatenated block tables of the sequences.
    pub blocks: Vec<BlockId>,
    /// Concatenated window block tables of the sequences: for each sequence, a table as long as its block table
    /// for each group of layers with a window.
    pub windows: Vec<BlockId>,
    /// Sequences, in the order of their rows.
    pub sequences: Vec<StepSequence>,
}

/// Part of a [`Step`] that belongs to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSequence {
    /// Sequence.
    pub id: SeqId,
    /// Slot of the sequence while it runs, which identifies its recurrent state.
    pub slot: u32,
    /// Position of the first row: the number of tokens in the KV cache. At zero, the recurrent state is
    /// reset.
    pub start: usize,
    /// Rows of the sequence.
    pub rows: Range<usize>,
    /// Range of the block table in [`Step::blocks`]. The table covers every position up to the last row.
    pub blocks: Range<usize>,
    /// Range of the window block tables in [`Step::windows`].
    pub windows: Range<usize>,
    /// Range in [`Step::outputs`] of the rows that need logits. Empty in the middle of a prompt.
    pub outputs: Range<usize>,
    /// Number of draft tokens at the end of the rows. They and the row before them have logits.
    pub n_draft: usize,
    /// True if these rows are recomputed: they were part of a partly accepted draft, after which the
    /// recurrent state was rolled back. All of them have logits, of which only those of the last row are new.
    pub recompute: bool,
    /// True if a token is to be sampled, because the rows include the last known token.
    pub samples: bool,
}

/// Tokens sampled for a sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Sequence.
    pub id: SeqId,
    /// Number of accepted draft tokens; they precede `token`.
    pub accepted: usize,
    /// New token.
    pub token: u32,
    /// True if `token` ends the sequence, as an end-of-generation token or the end of a stop string does.
    pub finished: bool,
}

/// Event in the life of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Part of the prompt was reused from the prefix cache. Comes with the first token, if any was reused.
    CacheHit {
        /// Sequence.
        id: SeqId,
        /// Number of prompt tokens reused.
        tokens: usize,
    },
    /// The sequence was moved back to the queue, because blocks ran out or for a request of higher priority.
    /// It continues later with the same result.
    Preempted {
        /// Sequence.
        id: SeqId,
    },
    /// The sequence ended, by [`Sampled::finished`] or at its maximum number of tokens, and its id is free.
    Finished {
        /// Sequence.
        id: SeqId,
    },
}

/// Current state of a scheduler, and totals since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Waiting sequences, including preempted ones.
    pub queued: usize,
    /// Running sequences.
    pub running: usize,
    /// Free blocks.
    pub free_blocks: usize,
    /// Cached blocks: unused, but with known content.
    pub cached_blocks: usize,
    /// Used blocks, which belong to running sequences.
    pub used_blocks: usize,
    /// Steps planned.
    pub steps: u64,
    /// Prompt tokens submitted.
    pub prompt_tokens: u64,
    /// Prompt tokens reused from the prefix cache.
    pub cached_prompt_tokens: u64,
    /// Tokens fed in committed steps.
    pub computed_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Draft tokens verified.
    pub drafted_tokens: u64,
    /// Draft tokens accepted.
    pub accepted_drafts: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Sequences that finished.
    pub finished: u64,
    /// Sequences that were cancelled.
    pub cancelled: u64,
}

impl Step {
    /// Input tokens of a sequence of this step.
    pub fn tokens_of(&self, sequence: &StepSequence) -> &[u32] {
        self.tokens.get(sequence.rows.clone()).unwrap_or_default()
    }

    /// Block table of a sequence of this step.
    pub fn blocks_of(&self, sequence: &StepSequence) -> &[BlockId] {
        self.blocks.get(sequence.blocks.clone()).unwrap_or_default()
    }

    /// Window block tables of a sequence of this step, one after the other.
    pub fn windows_of(&self, sequence: &StepSequence) -> &[BlockId] {
        let windows = self.windows.get(sequence.windows.clone());
        windows.unwrap_or_default()
    }

    /// Rows of a sequence of this step that need logits.
    pub fn outputs_of(&self, sequence: &StepSequence) -> &[u32] {
        self.outputs
            .get(sequence.outputs.clone())
            .unwrap_or_default()
    }

    /// Clears the step and keeps its buffers.
    pub(super) fn clear(&mut self) {
        self.copies.clear();
        self.state_copies.clear();
        self.tokens.clear();
        self.positions.clear();
        self.outputs.clear();
        self.blocks.clear();
        self.windows.clear();
        self.sequences.clear();
    }
}

impl Sampled {
    /// A single token that does not end the sequence.
    pub fn token(id: SeqId, token: u32) -> Self {
        Self {
            id,
            accepted: 0,
            token,
            finished: false,
        }
    }
}
