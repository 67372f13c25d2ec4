//! [`BatchValidator`]: the checks that every backend makes before it computes anything.

use super::slots::{EncodedLengths, StateRun, StateSlots};
use super::{BackendError, Batch, SeqSlice, SessionConfig, sampled_output};
use crate::graph::{Op, Plan, Window};
use crate::kv::BlockId;
use crate::weights::Weights;

/// Validates batches against a plan and a configuration, and keeps track of what each slot holds.
///
/// A session validates every batch before it touches memory. After that the session can index by everything in the
/// batch: token ids, positions, blocks, slots and outputs. A refused batch changes nothing.
#[derive(Debug)]
pub struct BatchValidator {
    max_tokens: usize,
    max_outputs: usize,
    /// Blocks of each group of layers, and the window of its layers.
    groups: Vec<(usize, Option<Window>)>,
    block_size: usize,
    is_bidirectional: bool,
    has_encoder: bool,
    has_states: bool,
    decoder: Tables,
    encoder: Tables,
    slots: StateSlots,
    encoded: EncodedLengths,
}

/// Sizes of the tables that ops look rows up in.
#[derive(Clone, Copy, Debug)]
struct Tables {
    n_vocab: usize,
    n_positions: usize,
}

impl Tables {
    /// The smallest tables of `ops`.
    fn new(ops: &[Op], weights: &Weights) -> Tables {
        let mut tables = Tables {
            n_vocab: usize::MAX,
            n_positions: usize::MAX,
        };
        for op in ops {
            match op {
                Op::Embed { table, .. } => {
                    tables.n_vocab = tables.n_vocab.min(weights.get(*table).rows);
                }
                Op::EmbedPosition { table, offset, .. } => {
                    let n_positions = weights.get(*table).rows.saturating_sub(*offset);
                    tables.n_positions = tables.n_positions.min(n_positions);
                }
                _ => {}
            }
        }
        tables
    }
}

impl BatchValidator {
    /// The checks of a plan.
    pub fn new(plan: &Plan, weights: &Weights, config: &SessionConfig) -> BatchValidator {
        let (encoder, decoder) = plan.ops.split_at(plan.n_encoder_ops.min(plan.ops.len()));
        let has_encoder = !encoder.is_empty();
        let windows = config.windows.iter().map(|group| Some(group.window));
        let windows = std::iter::once(None).chain(windows);
        let encoder_slots = if has_encoder { config.state_slots } else { 0 };
        BatchValidator {
            max_tokens: config.max_tokens,
            max_outputs: config.max_outputs,
            groups: config.group_blocks().zip(windows).collect(),
            block_size: config.block_size,
            is_bidirectional: plan.is_bidirectional(),
            has_encoder,
            has_states: !plan.states.is_empty(),
            decoder: Tables::new(decoder, weights),
            encoder: Tables::new(encoder, weights),
            slots: StateSlots::new(config.state_slots),
            encoded: EncodedLengths::new(encoder_slots),
        }
    }

    /// Accepts or refuses a batch of [`Session::run`](super::Session::run). `n_sampled` is the number of outputs
    /// that the session sampled last.
    pub fn begin_run(&mut self, batch: &Batch<'_>, n_sampled: usize) -> Result<(), BackendError> {
        self.check(batch, self.decoder, n_sampled)?;
        if self.is_bidirectional {
            check_whole(batch)?;
        }
        if self.has_encoder {
            self.encoded.check_run(batch)?;
        }
        if self.has_states {
            self.slots.begin(batch)?;
        }
        Ok(())
    }

    /// Accepts or refuses a batch of [`Session::encode`](super::Session::encode).
    pub fn begin_encode(
        &mut self,
        batch: &Batch<'_>,
        n_sampled: usize,
    ) -> Result<(), BackendError> {
        if !self.has_encoder {
            return malformed("the model has no encoder");
        }
        self.check(batch, self.encoder, n_sampled)?;
        check_whole(batch)?;
        self.encoded.begin(batch)
    }

    /// Accepts or refuses a copy from one slot of recurrent state to another; returns both as indexes.
    pub fn copy_state(&mut self, from: u32, to: u32) -> Result<(usize, usize), BackendError> {
        self.slots.copy(from, to)
    }

    /// The tokens of each recurrent state in the last accepted batch, in order.
    pub fn state_runs(&self) -> &[StateRun] {
        self.slots.runs()
    }

    /// Number of positions that the encoder has read for the sequence in `slot`; 0 without an encoder.
    pub fn encoded(&self, slot: u32) -> usize {
        self.encoded.of(slot) as usize
    }

    fn check(
        &self,
        batch: &Batch<'_>,
        tables: Tables,
        n_sampled: usize,
    ) -> Result<(), BackendError> {
        let (n, n_outputs) = (batch.tokens.len(), batch.outputs.len());
        check_limit("tokens", n, self.max_tokens)?;
        check_limit("outputs", n_outputs, self.max_outputs)?;
        for &token in batch.tokens {
            match sampled_output(token) {
                Some(output) if output < n_sampled => {}
                Some(output) => {
                    return malformed(format!("sampled token {output} of {n_sampled}"));
                }
                None if (token as usize) < tables.n_vocab => {}
                None => {
                    return Err(BackendError::TokenOutOfRange {
                        token,
                        vocab: tables.n_vocab,
                    });
                }
            }
        }
        if n == 0 || batch.positions.len() != n {
            let n_positions = batch.positions.len();
            return malformed(format!("{n} tokens with {n_positions} positions"));
        }
        let outputs_ascend = batch.outputs.windows(2).all(|pair| pair[0] < pair[1]);
        if !outputs_ascend || batch.outputs.last().is_some_and(|&last| last as usize >= n) {
            return malformed(format!("outputs {:?} of {n} tokens", batch.outputs));
        }
        let mut start = 0usize;
        for sequence in batch.sequences {
            let end = start.checked_add(sequence.n_tokens);
            let Some(positions) = end.and_then(|end| batch.positions.get(start..end)) else {
                return malformed(format!("sequences cover more than the {n} tokens"));
            };
            start += positions.len();
            let follows = |pair: &[u32]| pair[0].checked_add(1) == Some(pair[1]);
            if !positions.windows(2).all(follows) {
                return malformed("positions of a sequence do not follow one another");
            }
            let n_blocks = sequence.blocks.len();
            if let Some(&last) = positions.last() {
                let last = last as usize;
                if last >= n_blocks.saturating_mul(self.block_size) {
                    return malformed(format!("position {last} in {n_blocks} blocks"));
                }
                check_limit("positions", last.saturating_add(1), tables.n_positions)?;
            }
            self.check_tables(sequence, positions)?;
            if sequence.adapters.iter().any(|scale| !scale.is_finite()) {
                return malformed("the scale of an adapter is not finite");
            }
        }
        if start != n {
            return malformed(format!("sequences cover {start} of {n} tokens"));
        }
        Ok(())
    }

    /// Checks the block tables of a sequence: every block exists, and every position that its tokens can see
    /// is in a block.
    fn check_tables(&self, sequence: &SeqSlice<'_>, positions: &[u32]) -> Result<(), BackendError> {
        let (n_entries, n_windows) = (sequence.blocks.len(), self.groups.len() - 1);
        if n_entries.checked_mul(n_windows) != Some(sequence.windows.len()) {
            let n = sequence.windows.len();
            return malformed(format!("{n} blocks in {n_windows} tables of {n_entries}"));
        }
        for (group, &(n_blocks, window)) in self.groups.iter().enumerate() {
            let first_visible = match (window, positions.first()) {
                (Some(window), Some(&first)) => window.first(first as usize) / self.block_size,
                (Some(_), None) => n_entries,
                (None, _) => 0,
            };
            for (index, &block) in sequence.table(group).iter().enumerate() {
                let is_unseen = block == BlockId::NONE && index < first_visible;
                if block.0 as usize >= n_blocks && !is_unseen {
                    let id = block.0;
                    return malformed(format!("block {id} of {n_blocks} in group {group}"));
                }
            }
        }
        Ok(())
    }
}

fn malformed<T>(problem: impl Into<String>) -> Result<T, BackendError> {
    Err(BackendError::Malformed(problem.into()))
}

fn check_limit(what: &'static str, requested: usize, limit: usize) -> Result<(), BackendError> {
    if requested <= limit {
        return Ok(());
    }
    Err(BackendError::BatchTooLarge {
        what,
        requested,
        limit,
    })
}

/// Checks that each sequence starts at position 0: where tokens attend to later ones, a sequence is computed
/// in one batch. The caller must pass the whole sequence; this cannot be checked here.
fn check_whole(batch: &Batch<'_>) -> Result<(), BackendError> {
    let mut start = 0;
    for sequence in batch.sequences.iter().filter(|s| s.n_tokens > 0) {
        if batch.positions[start] != 0 {
            return malformed("a bidirectional sequence must be whole, from position 0 on");
        }
        start += sequence.n_tokens;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::sampled_token;
    use crate::graph::{Rows, ValueId, ValueInfo};
    use crate::kv::WindowGroup;

    /// A plan that looks up tokens and positions: 10 tokens, 6 positions.
    fn validator(change: impl FnOnce(&mut Plan)) -> BatchValidator {
        validator_with_windows(change, &[])
    }

    fn validator_with_windows(
        change: impl FnOnce(&mut Plan),
        windows: &[WindowGroup],
    ) -> BatchValidator {
        let mut weights = Weights::default();
        let mut table = |rows: usize| {
            let bytes = vec![0u8; rows * 4].into();
            let ty = oxidize_kernels::quant::TensorType::F32;
            weights.push_matrix("table", ty, rows, 1, vec![bytes], 1)
        };
        let info = ValueInfo {
            rows: Rows::Tokens,
            width: 1,
        };
        let mut plan = Plan {
            ops: vec![
                Op::Embed {
                    table: table(10),
                    out: ValueId(0),
                },
                Op::EmbedPosition {
                    table: table(8),
                    offset: 2,
                    out: ValueId(1),
                },
            ],
            values: vec![info; 2],
            ..Plan::default()
        };
        change(&mut plan);
        let config = SessionConfig {
            n_blocks: 4,
            block_size: 4,
            windows: windows.to_vec(),
            max_tokens: 7,
            max_outputs: 2,
            state_slots: 2,
            ..SessionConfig::for_context(16)
        };
        BatchValidator::new(&plan, &weights, &config)
    }

    /// A batch of one sequence, changed by `change`.
    fn check(
        validator: &mut BatchValidator,
        positions: &[u32],
        change: impl FnOnce(&mut SeqSlice<'_>),
    ) -> Result<(), BackendError> {
        let mut sequence = SeqSlice {
            n_tokens: positions.len(),
            blocks: &[BlockId(3), BlockId(0)],
            ..SeqSlice::default()
        };
        change(&mut sequence);
        let batch = Batch {
            tokens: &vec![1; positions.len()],
            positions,
            sequences: &[sequence],
            outputs: &[0],
        };
        validator.begin_run(&batch, 0)
    }

    #[test]
    fn positions_must_follow_one_another_and_fit() {
        let mut validator = validator(|_| {});
        check(&mut validator, &[0, 1, 2, 3, 4, 5], |_| {}).unwrap();
        check(&mut validator, &[5], |_| {}).unwrap();
        let too_far = check(&mut validator, &[4, 5, 6], |_| {}).unwrap_err();
        assert!(matches!(
            too_far,
            BackendError::BatchTooLarge {
                what: "positions",
                requested: 7,
                limit: 6
            }
        ));
        for positions in [&[0, 2][..], &[1, 1], &[1, 0], &[u32::MAX, 0], &[8]] {
            let error = check(&mut validator, positions, |_| {}).unwrap_err();
            assert!(matches!(error, BackendError::Malformed(_)), "{positions:?}");
        }
    }

    #[test]
    fn sequences_and_scales_are_checked() {
        let mut validator = validator(|_| {});
        type Change = fn(&mut SeqSlice<'_>);
        let bad: [Change; 5] = [
            |s| s.n_tokens = 3,
            |s| s.n_tokens = 1,
            |s| s.n_tokens = usize::MAX,
            |s| s.blocks = &[BlockId(4)],
            |s| s.adapters = &[1.0, f32::NAN],
        ];
        for change in bad {
            let error = check(&mut validator, &[0, 1], change).unwrap_err();
            assert!(matches!(error, BackendError::Malformed(_)), "{error}");
        }
        check(&mut validator, &[0, 1], |s| s.adapters = &[1.0, -2.0]).unwrap();
    }

    #[test]
    fn visible_positions_must_have_a_window_block() {
        let window = Window::Sliding(3);
        let group = WindowGroup {
            window,
            n_blocks: 2,
        };
        let mut validator = validator_with_windows(|_| {}, &[group]);
        let (none, one, two) = (BlockId::NONE, BlockId(1), BlockId(2));
        // Position 5 sees 3 and up, in both blocks.
        let mut run = |windows: &[BlockId]| {
            let sequence = SeqSlice {
                n_tokens: 1,
                blocks: &[BlockId(3), BlockId(0)],
                windows,
                ..SeqSlice::default()
            };
            let batch = Batch {
                tokens: &[1],
                positions: &[5],
                sequences: &[sequence],
                outputs: &[0],
            };
            validator.begin_run(&batch, 0)
        };
        run(&[BlockId(0), one]).unwrap();
        for windows in [&[none, one][..], &[one, none], &[one, two], &[one], &[]] {
            let error = run(windows).unwrap_err();
            assert!(matches!(error, BackendError::Malformed(_)), "{windows:?}");
        }
    }

    #[test]
    fn sampled_tokens_must_exist() {
        let mut validator = validator(|_| {});
        let mut run = |token: u32, n_sampled: usize| {
            let batch = Batch {
                tokens: &[token],
                positions: &[0],
                sequences: &[SeqSlice {
                    n_tokens: 1,
                    blocks: &[BlockId(0)],
                    ..SeqSlice::default()
                }],
                outputs: &[],
            };
            validator.begin_run(&batch, n_sampled)
        };
        run(sampled_token(1), 2).unwrap();
        for (token, n_sampled) in [(sampled_token(0), 0), (sampled_token(2), 2), (u32::MAX, 2)] {
            let error = run(token, n_sampled).unwrap_err();
            assert!(matches!(error, BackendError::Malformed(_)), "{error}");
        }
        let error = run(10, 2).unwrap_err();
        assert!(matches!(
            error,
            BackendError::TokenOutOfRange {
                token: 10,
                vocab: 10
            }
        ));
    }

    #[test]
    fn a_decoder_continues_after_the_encoder() {
        let mut validator = validator(|plan| {
            let decoder = plan.ops.clone();
            plan.n_encoder_ops = plan.ops.len();
            plan.ops.extend(decoder);
        });
        let batch = |positions: &'static [u32], sequences| Batch {
            tokens: &[1, 2, 3][..positions.len()],
            positions,
            sequences,
            outputs: &[],
        };
        let sequence = |n_tokens, slot| SeqSlice {
            n_tokens,
            slot,
            blocks: &[BlockId(0)],
            ..SeqSlice::default()
        };
        let one = [sequence(1, 1)];
        assert!(validator.begin_encode(&batch(&[1], &one), 0).is_err());
        let out_of_range = [sequence(2, 2)];
        let refused = validator.begin_encode(&batch(&[0, 1], &out_of_range), 0);
        assert!(matches!(refused, Err(BackendError::BatchTooLarge { .. })));
        let twice = [sequence(1, 1), sequence(1, 1)];
        let refused = validator.begin_encode(&batch(&[0, 0], &twice), 0);
        assert!(matches!(refused, Err(BackendError::Malformed(_))));
        let two = [sequence(2, 1)];
        validator.begin_encode(&batch(&[0, 1], &two), 0).unwrap();
        assert_eq!(validator.encoded(1), 2);
        assert!(validator.begin_run(&batch(&[1], &one), 0).is_err());
        validator.begin_run(&batch(&[2], &one), 0).unwrap();
    }
}
