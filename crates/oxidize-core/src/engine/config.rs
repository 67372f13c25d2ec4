//! Builder methods of [`EngineConfig`].

use super::{DiskCache, EngineConfig};
use crate::backend::{KvType, RepackLimit};
use crate::speculative::Speculation;
use crate::threads::Spawner;

impl EngineConfig {
    /// Sets the maximum tokens of a request, prompt and answer together.
    pub fn n_ctx(self, n_ctx: usize) -> EngineConfig {
        EngineConfig {
            n_ctx: Some(n_ctx),
            ..self
        }
    }

    /// Sets the capacity of the KV cache in tokens, for all requests and the prefix cache together.
    pub fn cache_tokens(self, cache_tokens: usize) -> EngineConfig {
        EngineConfig {
            cache_tokens: Some(cache_tokens),
            ..self
        }
    }

    /// Sets the maximum tokens per step. Smaller steps let a long prompt delay other requests less.
    pub fn max_batch_tokens(self, max_batch_tokens: usize) -> EngineConfig {
        EngineConfig {
            max_batch_tokens,
            ..self
        }
    }

    /// Sets the maximum requests that run at once.
    pub fn max_sequences(self, max_sequences: usize) -> EngineConfig {
        EngineConfig {
            max_sequences,
            ..self
        }
    }

    /// Sets the maximum requests that wait.
    pub fn max_queue(self, max_queue: usize) -> EngineConfig {
        EngineConfig { max_queue, ..self }
    }

    /// Sets the types of the cached keys and values.
    pub fn kv_types(self, key_type: KvType, value_type: KvType) -> EngineConfig {
        EngineConfig {
            key_type,
            value_type,
            ..self
        }
    }

    /// Sets the memory that the backend may spend on repacking weights.
    pub fn repack(self, repack: RepackLimit) -> EngineConfig {
        EngineConfig { repack, ..self }
    }

    /// Sets the number of threads.
    pub fn n_threads(self, n_threads: usize) -> EngineConfig {
        EngineConfig {
            n_threads: Some(n_threads),
            ..self
        }
    }

    /// Sets what starts the threads.
    pub fn spawner(self, spawner: Spawner) -> EngineConfig {
        EngineConfig { spawner, ..self }
    }

    /// Sets the index of the device that runs the model.
    pub fn device(self, device: usize) -> EngineConfig {
        EngineConfig { device, ..self }
    }

    /// Refuses a model that does not fit in memory, or loads it anyway.
    pub fn check_memory(self, check_memory: bool) -> EngineConfig {
        EngineConfig {
            check_memory,
            ..self
        }
    }

    /// Makes results independent of what else is in the batch.
    pub fn deterministic(self, deterministic: bool) -> EngineConfig {
        EngineConfig {
            deterministic,
            ..self
        }
    }

    /// Drafts tokens and verifies several in one step.
    pub fn speculation(self, speculation: Speculation) -> EngineConfig {
        EngineConfig {
            speculation: Some(speculation),
            ..self
        }
    }

    /// Keeps the prefix cache on disk, across restarts.
    pub fn disk(self, disk: DiskCache) -> EngineConfig {
        EngineConfig {
            disk: Some(disk),
            ..self
        }
    }
}
