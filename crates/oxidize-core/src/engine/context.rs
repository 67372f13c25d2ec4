//! The default context length: what the model was trained for, as far as free memory allows.

use super::EngineConfig;
use crate::backend::{Backend, CacheSize, MemoryPlan};
use crate::model::Model;

/// Default context length in tokens, where the available memory is unknown or too small for more.
pub const DEFAULT_CONTEXT: usize = 4096;

/// Maximum of the default context length; the bookkeeping of blocks grows with it.
pub const MAX_DEFAULT_CONTEXT: usize = 1 << 20;

/// Default contexts that are limited by memory are whole multiples of this.
const STEP: usize = 1024;

impl EngineConfig {
    /// Context length of a request to `model`: [`n_ctx`](Self::n_ctx), or a length that any machine has memory
    /// for.
    pub fn context(&self, model: &Model) -> usize {
        let trained = model.hparams().n_ctx_train;
        self.n_ctx.unwrap_or(trained.min(DEFAULT_CONTEXT))
    }

    /// The configuration with a context length: if none is set, the one that `model` was trained for, or the
    /// longest whose cache fits in seven eighths of what weights and buffers leave of the `available` bytes.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn fit_context(
        &self,
        model: &Model,
        backend: &dyn Backend,
        available: Option<u64>,
    ) -> EngineConfig {
        let with = |n_ctx| EngineConfig {
            n_ctx: Some(n_ctx),
            ..self.clone()
        };
        let least = self.context(model);
        let most = model.hparams().n_ctx_train.min(MAX_DEFAULT_CONTEXT);
        let most = most.min(self.cache_tokens.unwrap_or(most));
        let Some(available) = available.filter(|_| self.n_ctx.is_none() && least < most) else {
            return with(least);
        };
        let plan = MemoryPlan::new(model, backend, &with(least).session(model));
        // Weights that were read already take memory that the plan counts as well.
        let left = available.saturating_add(model.weights().own_size());
        let left = left.saturating_sub(plan.weights.saturating_add(plan.buffers));
        let room = left - left / 8;
        let fits = |n_ctx: usize| {
            let size = CacheSize::new(model.plan(), &with(n_ctx).session(model));
            size.total() <= room
        };
        if fits(most) {
            return with(most);
        }
        let (mut low, mut high) = (least / STEP, most / STEP);
        while low + 1 < high {
            let middle = low.midpoint(high);
            match fits(middle * STEP) {
                true => low = middle,
                false => high = middle,
            }
        }
        with(least.max(low * STEP))
    }
}
