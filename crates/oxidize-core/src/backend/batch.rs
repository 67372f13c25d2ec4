//! [`Batch`]: the input of one step.

use super::SessionConfig;
use crate::graph::Rows;
use crate::kv::BlockId;

/// Input of one step: tokens of one or several sequences, one sequence after the other.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token ids. An entry made by [`sampled_token`](super::sampled_token) stands for a token that the session
    /// sampled itself, so that a device can run one step after the other without the host reading tokens.
    pub tokens: &'a [u32],
    /// Position of each token in its sequence.
    pub positions: &'a [u32],
    /// The sequences. Together they cover all tokens, in order.
    pub sequences: &'a [SeqSlice<'a>],
    /// Indexes of the tokens whose results are computed, ascending.
    pub outputs: &'a [u32],
}

/// The part of a batch that belongs to one sequence.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeqSlice<'a> {
    /// Number of tokens in the batch. Their positions follow one another.
    pub n_tokens: usize,
    /// KV cache blocks of the positions from 0 on, those of this batch included.
    pub blocks: &'a [BlockId],
    /// For each group of layers with a window ([`SessionConfig::windows`]), a table as long as `blocks`; one
    /// after the other. Positions that no token of the batch can see may be in [`BlockId::NONE`].
    pub windows: &'a [BlockId],
    /// Slot of the recurrent state, or of what the encoder has read; a sequence keeps its slot from its first
    /// token to its last. A token at position 0 resets the state, and any other continues it.
    pub slot: u32,
    /// Scale of each adapter of the model; 0 for adapters past the end.
    pub adapters: &'a [f32],
    /// First position of the second text of a pair. The second text is empty if no token has this position.
    pub second_text: Option<u32>,
}

impl<'a> SeqSlice<'a> {
    /// Block table of a group of layers.
    pub fn table(&self, group: usize) -> &'a [BlockId] {
        match group.checked_sub(1) {
            Some(nth) => &self.windows[nth * self.blocks.len()..][..self.blocks.len()],
            None => self.blocks,
        }
    }
}

impl Batch<'_> {
    /// True if the results of each token must not depend on the other tokens: see
    /// [`SessionConfig::batch_invariant_tokens`].
    pub fn is_batch_invariant(&self, config: &SessionConfig) -> bool {
        // Several outputs of one sequence are drafts that are verified. With other sequences in the batch, steps
        // without drafts are not batch-invariant either.
        let verifies = || matches!(self.sequences, [sequence] if sequence.n_tokens > 1);
        config.batch_invariant_tokens == usize::MAX
            || self.outputs.len() == self.tokens.len()
                && self.tokens.len() <= config.batch_invariant_tokens
                && verifies()
    }

    /// Text of a pair that each token belongs to: 0 or 1.
    pub fn segments(&self) -> impl Iterator<Item = usize> {
        let sequences = self.sequences.iter();
        let second = sequences
            .flat_map(|sequence| std::iter::repeat_n(sequence.second_text, sequence.n_tokens));
        let is_second = |(second, position): (Option<u32>, &u32)| {
            second.is_some_and(|second| second <= *position)
        };
        second.zip(self.positions).map(is_second).map(usize::from)
    }

    /// Scale of an adapter for each row of a value.
    pub fn scales(&self, rows: Rows, adapter: usize) -> impl Iterator<Item = f32> {
        let of_tokens = self.sequences.iter().flat_map(move |sequence| {
            let scale = sequence.adapters.get(adapter).copied().unwrap_or(0.0);
            std::iter::repeat_n(scale, sequence.n_tokens)
        });
        let mut outputs = self.outputs.iter().peekable();
        let is_row = move |(token, _): &(u32, f32)| match rows {
            Rows::Tokens => true,
            Rows::Outputs => outputs.next_if(|&output| output == token).is_some(),
        };
        let rows = (0..).zip(of_tokens).filter(is_row);
        rows.map(|(_, scale)| scale)
    }
}
