//! [`CacheSize`]: the bytes that the caches of a session take.

use super::SessionConfig;
use crate::graph::{CacheInfo, Plan};

/// Bytes of the KV cache and the recurrent states of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// Bytes of each group of layers: all its blocks.
    pub groups: Vec<u64>,
    /// Bytes of the recurrent states, in all slots.
    pub states: u64,
}

impl CacheSize {
    /// Size of the caches of `plan` under `config`. Beyond the range of `u64`, it is `u64::MAX`.
    pub fn new(plan: &Plan, config: &SessionConfig) -> CacheSize {
        let mut groups = vec![0u64; config.windows.len() + 1];
        for (cache, group) in plan.caches.iter().zip(config.groups(plan)) {
            groups[group] = groups[group].saturating_add(config.block_bytes(cache));
        }
        for (bytes, n_blocks) in groups.iter_mut().zip(config.group_blocks()) {
            *bytes = bytes.saturating_mul(n_blocks as u64);
        }
        let states = plan.states.iter().map(|state| {
            [state.n_heads, state.len, config.state_slots]
                .into_iter()
                .fold(4u64, |bytes, n| bytes.saturating_mul(n as u64))
        });
        CacheSize {
            groups,
            states: states.fold(0, u64::saturating_add),
        }
    }

    /// Bytes of all groups and states.
    pub fn total(&self) -> u64 {
        let groups = self.groups.iter().copied();
        groups.fold(self.states, u64::saturating_add)
    }
}

impl SessionConfig {
    /// Bytes of a block of one cache; 0 if its heads are not whole blocks of the storage types.
    pub fn block_bytes(&self, cache: &CacheInfo) -> u64 {
        let key = self.key_type.row_bytes(cache.key_dim).unwrap_or(0);
        let value = self.value_type.row_bytes(cache.kept_value_dim());
        let row = (key as u64).saturating_add(value.unwrap_or(0) as u64);
        row.saturating_mul(cache.n_kv_heads as u64)
            .saturating_mul(self.block_size as u64)
    }
}
