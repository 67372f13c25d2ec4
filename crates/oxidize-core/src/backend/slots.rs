//! Slots of sequences: the position that each recurrent state continues from, and the number of positions that
//! an encoder has read.

use super::{BackendError, Batch};
use std::ops::Range;

/// The position at which the sequence in each slot continues.
#[derive(Debug)]
pub(super) struct StateSlots {
    next: Vec<u32>,
    runs: Vec<StateRun>,
}

/// The tokens of a batch that one recurrent state processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRun {
    /// Slot of the state.
    pub slot: usize,
    /// Indexes of the tokens.
    pub tokens: Range<usize>,
    /// True if the sequence starts here, with a state of zeros.
    pub fresh: bool,
}

impl StateSlots {
    pub(super) fn new(n_slots: usize) -> StateSlots {
        StateSlots {
            next: vec![0; n_slots],
            // One run for each sequence, which has a slot of its own.
            runs: Vec::with_capacity(n_slots),
        }
    }

    /// Accepts a batch whose sequences start anew or continue where their slots stand. The batch has been
    /// checked otherwise.
    pub(super) fn begin(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.runs.clear();
        let mut start = 0;
        for sequence in batch.sequences.iter().filter(|s| s.n_tokens > 0) {
            let tokens = start..start + sequence.n_tokens;
            start = tokens.end;
            let slot = sequence.slot as usize;
            let Some(&next) = self.next.get(slot) else {
                return Err(slot_error("slots of recurrent state", slot, &self.next));
            };
            if self.runs.iter().any(|run| run.slot == slot) {
                return Err(two_sequences(slot));
            }
            let first = batch.positions[tokens.start];
            if first != 0 && first != next {
                let problem = format!("slot {slot}: position {first}, expected 0 or {next}");
                return Err(BackendError::Malformed(problem));
            }
            self.runs.push(StateRun {
                slot,
                tokens,
                fresh: first == 0,
            });
        }
        for run in &self.runs {
            self.next[run.slot] = batch.positions[run.tokens.end - 1] + 1;
        }
        Ok(())
    }

    /// Records that the state in one slot was copied to another.
    pub(super) fn copy(&mut self, from: u32, to: u32) -> Result<(usize, usize), BackendError> {
        let (from, to) = (from as usize, to as usize);
        if from.max(to) >= self.next.len() {
            let error = slot_error("slots of recurrent state", from.max(to), &self.next);
            return Err(error);
        }
        self.next[to] = self.next[from];
        Ok((from, to))
    }

    /// The tokens of each slot of the batch, in order.
    pub(super) fn runs(&self) -> &[StateRun] {
        &self.runs
    }
}

/// The number of positions that the encoder has read of the sequence in each slot.
#[derive(Debug)]
pub(super) struct EncodedLengths {
    by_slot: Vec<u32>,
}

impl EncodedLengths {
    pub(super) fn new(n_slots: usize) -> EncodedLengths {
        EncodedLengths {
            by_slot: vec![0; n_slots],
        }
    }

    /// Accepts a batch that the encoder is about to read.
    pub(super) fn begin(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        for (index, sequence) in batch.sequences.iter().enumerate() {
            let slot = sequence.slot as usize;
            if slot >= self.by_slot.len() {
                return Err(slot_error(
                    "slots of encoded sequences",
                    slot,
                    &self.by_slot,
                ));
            }
            let before = &batch.sequences[..index];
            if before.iter().any(|other| other.slot == sequence.slot) {
                return Err(two_sequences(slot));
            }
        }
        for sequence in batch.sequences {
            self.by_slot[sequence.slot as usize] = sequence.n_tokens as u32;
        }
        Ok(())
    }

    /// Checks a batch of the decoder, whose positions come after those of the encoder. Without a call of
    /// [`EncodedLengths::begin`] for its slot, a sequence has no encoder positions.
    pub(super) fn check_run(&self, batch: &Batch<'_>) -> Result<(), BackendError> {
        let mut start = 0;
        for sequence in batch.sequences.iter().filter(|s| s.n_tokens > 0) {
            let (slot, first) = (sequence.slot as usize, batch.positions[start]);
            start += sequence.n_tokens;
            let Some(&encoded) = self.by_slot.get(slot) else {
                return Err(slot_error(
                    "slots of encoded sequences",
                    slot,
                    &self.by_slot,
                ));
            };
            if first < encoded {
                let problem = format!(
                    "slot {slot}: position {first}, but the encoder has read {encoded} positions"
                );
                return Err(BackendError::Malformed(problem));
            }
        }
        Ok(())
    }

    /// Number of positions of the sequence in `slot`; 0 without an encoder.
    pub(super) fn of(&self, slot: u32) -> u32 {
        self.by_slot.get(slot as usize).copied().unwrap_or(0)
    }
}

fn slot_error(what: &'static str, slot: usize, slots: &[u32]) -> BackendError {
    BackendError::BatchTooLarge {
        what,
        requested: slot + 1,
        limit: slots.len(),
    }
}

fn two_sequences(slot: usize) -> BackendError {
    BackendError::Malformed(format!("slot {slot}: two sequences at once"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::SeqSlice;

    fn begin(slots: &mut StateSlots, parts: &[(u32, Range<u32>)]) -> Result<(), BackendError> {
        let positions: Vec<u32> = parts.iter().flat_map(|(_, range)| range.clone()).collect();
        let sequences: Vec<SeqSlice<'_>> = parts
            .iter()
            .map(|(slot, range)| SeqSlice {
                n_tokens: range.len(),
                blocks: &[],
                slot: *slot,
                ..SeqSlice::default()
            })
            .collect();
        slots.begin(&Batch {
            tokens: &vec![0; positions.len()],
            positions: &positions,
            sequences: &sequences,
            outputs: &[],
        })
    }

    #[test]
    fn a_sequence_continues_where_it_stopped() {
        let mut slots = StateSlots::new(2);
        begin(&mut slots, &[(1, 0..3), (0, 0..1)]).unwrap();
        assert_eq!(slots.runs()[0].tokens, 0..3);
        assert!(slots.runs()[1].fresh && slots.runs()[1].slot == 0);
        begin(&mut slots, &[(1, 3..4)]).unwrap();
        assert!(!slots.runs()[0].fresh);
        // A new sequence in the same slot.
        begin(&mut slots, &[(1, 0..2)]).unwrap();
        assert!(begin(&mut slots, &[(1, 3..5)]).is_err());
        assert!(begin(&mut slots, &[(2, 0..1)]).is_err());
        assert!(begin(&mut slots, &[(0, 1..2), (0, 2..3)]).is_err());
        begin(&mut slots, &[(1, 2..5)]).unwrap();
    }

    #[test]
    fn a_copy_continues_from_the_same_position() {
        let mut slots = StateSlots::new(3);
        begin(&mut slots, &[(0, 0..4)]).unwrap();
        assert_eq!(slots.copy(0, 2).unwrap(), (0, 2));
        begin(&mut slots, &[(0, 4..6), (2, 4..5)]).unwrap();
        slots.copy(2, 0).unwrap();
        begin(&mut slots, &[(0, 5..6)]).unwrap();
        assert!(slots.copy(0, 3).is_err() && slots.copy(3, 0).is_err());
    }
}
