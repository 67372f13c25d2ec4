//! [`MemoryPlan`]: the memory that a session needs, known before anything is allocated.

use super::{Backend, CacheSize, SessionConfig};
use crate::graph::Rows;
use crate::io::available_memory;
use crate::model::{Model, ModelError};

/// Bytes that a session of a model needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights as stored in the file, plus the growth from repacking.
    pub weights: u64,
    /// KV cache and recurrent state.
    pub cache: u64,
    /// Upper bound of the values of the plan.
    pub buffers: u64,
}

impl MemoryPlan {
    /// Returns the memory that `model` needs under `config`.
    pub fn new(model: &Model, backend: &dyn Backend, config: &SessionConfig) -> MemoryPlan {
        let plan = model.plan();
        // Values of one layer are alive at the same time; those of other layers are not.
        let widest = plan.layers.iter().map(|ops| {
            plan.ops[ops.clone()]
                .iter()
                .filter_map(|op| op.output())
                .map(|v| plan.value(v).width as u64)
                .sum::<u64>()
        });
        let outputs = plan
            .values
            .iter()
            .filter(|v| v.rows == Rows::Outputs)
            .map(|v| v.width as u64)
            .max();
        let buffers = 4 * config.max_tokens as u64 * widest.max().unwrap_or(0)
            + 4 * config.max_outputs as u64 * outputs.unwrap_or(0);
        MemoryPlan {
            weights: model.weights().size() + backend.weight_growth(plan, model.weights(), config),
            cache: CacheSize::new(plan, config).total(),
            buffers,
        }
    }

    /// Sum of all parts.
    pub fn total(&self) -> u64 {
        let parts = [self.cache, self.buffers];
        parts.into_iter().fold(self.weights, u64::saturating_add)
    }

    /// Returns an error if the model does not fit into the available memory, where the system reports it.
    pub fn check(&self, model: &Model) -> Result<(), ModelError> {
        // Weights that were read already take memory that the plan counts as well.
        let taken = model.weights().own_size();
        available_memory().map_or(Ok(()), |available| {
            self.check_within(model, available.saturating_add(taken))
        })
    }

    /// Returns an error if the model does not fit into `available` bytes.
    pub fn check_within(&self, model: &Model, available: u64) -> Result<(), ModelError> {
        if self.total() <= available {
            return Ok(());
        }
        Err(ModelError::OutOfMemory {
            file: model.file().path().to_path_buf(),
            weights: self.weights,
            cache: self.cache,
            buffers: self.buffers,
            available,
        })
    }
}
