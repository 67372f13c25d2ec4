//! Buffers for the values of a plan, assigned once by the lifetimes of the values.

use super::lower::Step;
use crate::backend::SessionConfig;
use crate::graph::{Plan, Rows, ValueId, ValueInfo};

/// The buffers of a session. Values whose lifetimes do not overlap share one.
pub(super) struct Buffers {
    data: Vec<Vec<f32>>,
    /// Index of the buffer of each value.
    slots: Vec<usize>,
    values: Vec<ValueInfo>,
    pub(super) n_tokens: usize,
    pub(super) n_outputs: usize,
}

impl Buffers {
    /// Assigns and allocates the buffers of `steps`.
    pub(super) fn new(plan: &Plan, steps: &[Step], config: &SessionConfig) -> Buffers {
        let slots = assign(plan, steps);
        let mut sizes = vec![0; slots.iter().max().map_or(0, |&last| last + 1)];
        for (info, &slot) in plan.values.iter().zip(&slots) {
            let rows = match info.rows {
                Rows::Tokens => config.max_tokens,
                Rows::Outputs => config.max_outputs,
            };
            sizes[slot] = (rows * info.width).max(sizes[slot]);
        }
        let data = sizes.into_iter().map(|size| vec![0.0; size]).collect();
        Buffers {
            data,
            slots,
            values: plan.values.clone(),
            n_tokens: 0,
            n_outputs: 0,
        }
    }

    pub(super) fn width(&self, value: ValueId) -> usize {
        self.values[value.0 as usize].width
    }

    /// Kind of the rows of a value.
    pub(super) fn row_kind(&self, value: ValueId) -> Rows {
        self.values[value.0 as usize].rows
    }

    pub(super) fn rows(&self, value: ValueId) -> usize {
        match self.row_kind(value) {
            Rows::Tokens => self.n_tokens,
            Rows::Outputs => self.n_outputs,
        }
    }

    fn slot(&self, value: ValueId) -> usize {
        self.slots[value.0 as usize]
    }

    /// The rows of a value that has been computed.
    pub(super) fn get(&self, value: ValueId) -> &[f32] {
        &self.data[self.slot(value)][..self.rows(value) * self.width(value)]
    }

    /// The rows of `x`; `None` if `out` has the same buffer, so that they are in place already.
    pub(super) fn source(&self, x: ValueId, out: ValueId) -> Option<&[f32]> {
        (self.slot(x) != self.slot(out)).then(|| self.get(x))
    }

    /// Takes the buffer of a value that is about to be written. [`Buffers::put`] returns it.
    pub(super) fn take(&mut self, value: ValueId) -> BufferGuard {
        let slot = self.slot(value);
        let len = self.rows(value) * self.width(value);
        BufferGuard {
            data: std::mem::take(&mut self.data[slot]),
            slot,
            len,
        }
    }

    pub(super) fn put(&mut self, taken: BufferGuard) {
        self.data[taken.slot] = taken.data;
    }
}

/// A buffer taken from [`Buffers`].
pub(super) struct BufferGuard {
    data: Vec<f32>,
    slot: usize,
    len: usize,
}

impl BufferGuard {
    /// The rows of the value that it was taken for.
    pub(super) fn rows(&mut self) -> &mut [f32] {
        &mut self.data[..self.len]
    }
}

/// Assigns each value a buffer that no other live value has. A step may write its output over an input that is
/// not used later.
fn assign(plan: &Plan, steps: &[Step]) -> Vec<usize> {
    let mut last_use = vec![0; plan.values.len()];
    for (index, step) in steps.iter().enumerate() {
        for value in step.inputs().into_iter().chain(step.outputs()) {
            last_use[value.0 as usize] = index;
        }
    }
    if let Some(result) = plan.result {
        last_use[result.0 as usize] = usize::MAX;
    }
    let dies = |value: &ValueId, index: usize| last_use[value.0 as usize] == index;
    // Values that fusion has removed keep buffer 0, and are never written.
    let mut slots = vec![0; plan.values.len()];
    let mut n_slots = 0;
    let mut free: Vec<usize> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        // An input that is read twice, as in x + x, is still read while the output is written.
        let once = |input: &ValueId| step.inputs().iter().filter(|&i| i == input).count() == 1;
        let mut over = step
            .overwrites()
            .filter(|input| dies(input, index) && once(input));
        for output in step.outputs() {
            slots[output.0 as usize] = match over.take() {
                Some(input) => slots[input.0 as usize],
                None => free.pop().unwrap_or_else(|| {
                    n_slots += 1;
                    n_slots - 1
                }),
            };
        }
        let slot = |value: &ValueId| slots[value.0 as usize];
        // A buffer that an output has taken from an input is not free.
        let kept: Vec<usize> = step
            .outputs()
            .iter()
            .filter(|value| !dies(value, index))
            .map(slot)
            .collect();
        let ended = step
            .inputs()
            .into_iter()
            .chain(step.outputs())
            .filter(|v| dies(v, index));
        let mut ended: Vec<usize> = ended
            .map(|v| slot(&v))
            .filter(|s| !kept.contains(s))
            .collect();
        ended.sort_unstable();
        ended.dedup();
        free.extend(ended);
    }
    slots
}
