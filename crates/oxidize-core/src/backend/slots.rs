//! Whose recurrent state is where: the part of it that all backends share.

use super::{BackendError, Batch};
use std::ops::Range;

/// The slots of a session, and the position at which each of them goes on.
pub(super) struct StateSlots {
    next: Vec<u32>,
    runs: Vec<StateRun>,
}

/// The tokens of a batch that belong to one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateRun {
    /// The slot.
    pub(super) slot: usize,
    /// Its tokens.
    pub(super) tokens: Range<usize>,
    /// Whether they are the first of their sequence.
    pub(super) fresh: bool,
}

impl StateSlots {
    pub(super) fn new(n_slots: usize) -> StateSlots {
        StateSlots {
            next: vec![0; n_slots],
            runs: Vec::new(),
        }
    }

    /// Takes note of a batch, whose sequences must go on where their slots stand.
    pub(super) fn begin(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.runs.clear();
        let mut at = 0;
        for sequence in batch.sequences.iter().filter(|s| s.n_tokens > 0) {
            let tokens = at..at + sequence.n_tokens;
            at = tokens.end;
            let slot = sequence.slot as usize;
            if slot >= self.next.len() {
                return Err(BackendError::BatchTooLarge {
                    what: "slots of recurrent state",
                    asked: slot + 1,
                    limit: self.next.len(),
                });
            }
            let malformed =
                |what: &str| Err(BackendError::Malformed(format!("slot {slot}: {what}")));
            let Some(positions) = batch.positions.get(tokens.clone()) else {
                return malformed("more tokens than positions");
            };
            if !positions.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
                return malformed("positions do not follow each other");
            }
            if self.runs.iter().any(|run| run.slot == slot) {
                return malformed("two sequences at once");
            }
            let fresh = positions[0] == 0;
            if !fresh && positions[0] != self.next[slot] {
                return malformed(&format!(
                    "position {} where {} comes next",
                    positions[0], self.next[slot]
                ));
            }
            self.runs.push(StateRun {
                slot,
                tokens,
                fresh,
            });
        }
        for run in &self.runs {
            self.next[run.slot] = batch.positions[run.tokens.end - 1] + 1;
        }
        Ok(())
    }

    /// Takes note that one slot's state was copied to another; whoever has states copies them.
    pub(super) fn copy(&mut self, from: u32, to: u32) -> Result<(usize, usize), BackendError> {
        let (from, to) = (from as usize, to as usize);
        let asked = from.max(to) + 1;
        match self.next.get(from).copied().zip(self.next.get_mut(to)) {
            Some((position, next)) => *next = position,
            None => {
                return Err(BackendError::BatchTooLarge {
                    what: "slots of recurrent state",
                    asked,
                    limit: self.next.len(),
                });
            }
        }
        Ok((from, to))
    }

    /// The tokens of each slot of the batch, in order.
    pub(super) fn runs(&self) -> &[StateRun] {
        &self.runs
    }
}

/// How much of the sequence in each slot the encoder has read.
#[derive(Default)]
pub(super) struct Encoded {
    by_slot: Vec<u32>,
}

impl Encoded {
    pub(super) fn new(n_slots: usize) -> Encoded {
        Encoded {
            by_slot: vec![0; n_slots],
        }
    }

    /// Takes note of a batch that the encoder is about to read.
    pub(super) fn begin(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        batch.check_whole()?;
        for sequence in batch.sequences {
            let limit = self.by_slot.len();
            let slot = self.by_slot.get_mut(sequence.slot as usize);
            *slot.ok_or(BackendError::BatchTooLarge {
                what: "slots of encoded sequences",
                asked: sequence.slot as usize + 1,
                limit,
            })? = sequence.n_tokens as u32;
        }
        Ok(())
    }

    /// How many positions of the sequence in `slot`; none where there is no encoder.
    pub(super) fn of(&self, slot: u32) -> u32 {
        self.by_slot.get(slot as usize).copied().unwrap_or(0)
    }
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
    fn a_sequence_goes_on_where_it_stopped() {
        let mut slots = StateSlots::new(2);
        begin(&mut slots, &[(1, 0..3), (0, 0..1)]).unwrap();
        assert_eq!(slots.runs()[0].tokens, 0..3);
        assert!(slots.runs()[1].fresh && slots.runs()[1].slot == 0);
        begin(&mut slots, &[(1, 3..4)]).unwrap();
        assert!(!slots.runs()[0].fresh);
        // Anew in the same slot.
        begin(&mut slots, &[(1, 0..2)]).unwrap();
        assert!(begin(&mut slots, &[(1, 3..5)]).is_err());
        assert!(begin(&mut slots, &[(2, 0..1)]).is_err());
        assert!(begin(&mut slots, &[(0, 1..2), (0, 2..3)]).is_err());
        begin(&mut slots, &[(1, 2..5)]).unwrap();
    }

    #[test]
    fn a_copy_goes_on_from_the_same_position() {
        let mut slots = StateSlots::new(3);
        begin(&mut slots, &[(0, 0..4)]).unwrap();
        assert_eq!(slots.copy(0, 2).unwrap(), (0, 2));
        begin(&mut slots, &[(0, 4..6), (2, 4..5)]).unwrap();
        slots.copy(2, 0).unwrap();
        begin(&mut slots, &[(0, 5..6)]).unwrap();
        assert!(slots.copy(0, 3).is_err() && slots.copy(3, 0).is_err());
    }
}
