//! How much memory a model will take, known before anything is allocated.

use std::path::Path;

use super::{Model, ModelError};
use crate::backend::SessionConfig;
use crate::graph::Rows;

/// Bytes that a session of a model needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, as they lie in the file, and what spelling some of them out adds.
    pub weights: u64,
    /// KV cache and recurrent state.
    pub cache: u64,
    /// Values of the plan, at most.
    pub buffers: u64,
}

impl MemoryPlan {
    /// What `model` takes under `config`.
    pub fn new(model: &Model, config: &SessionConfig) -> MemoryPlan {
        let plan = model.plan();
        let slots = config.n_blocks as u64 * config.block_size as u64;
        let cache = plan.caches.iter().map(|cache| {
            let k = config.key_type.row_bytes(cache.key_dim).unwrap_or(0) as u64;
            let v = config
                .value_type
                .row_bytes(cache.kept_value_dim())
                .unwrap_or(0) as u64;
            slots * cache.n_kv_heads as u64 * (k + v)
        });
        let states = plan
            .states
            .iter()
            .map(|state| 4 * config.state_slots as u64 * state.n_heads as u64 * state.len as u64);
        // The widest layer's values live together; nothing of another layer does.
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
            weights: model.weights().size() + model.weights().growth(),
            cache: cache.sum::<u64>() + states.sum::<u64>(),
            buffers,
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.cache + self.buffers
    }

    /// Refuses what the system cannot hold; says nothing where the system does not tell.
    pub fn check(&self, model: &Model) -> Result<(), ModelError> {
        // What was read already is not available any more, nor does it have to be.
        let taken = model.weights().own_size();
        available_memory().map_or(Ok(()), |available| {
            self.check_within(model, available.saturating_add(taken))
        })
    }

    /// Refuses what does not fit into `available` bytes.
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

/// Bytes that can be had without swapping, page cache included; Linux only.
pub fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let system = field(&meminfo, "MemAvailable:")?.checked_mul(1024)?;
    Some(available_in_group(Path::new("/sys/fs/cgroup")).map_or(system, |group| group.min(system)))
}

/// Bytes that the control group of this process, a container's say, leaves: none without a limit.
fn available_in_group(root: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(root.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    // What was read from files and can be dropped.
    let cached = field(&read("memory.stat")?, "inactive_file").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// The number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_with_a_limit_leaves_what_it_has_not_used() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(group.path().join(name), text).unwrap();
        assert_eq!(available_in_group(group.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        write(
            "memory.stat",
            "anon 500\ninactive_file 150\nactive_file 50\n",
        );
        assert_eq!(available_in_group(group.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(available_in_group(group.path()), Some(450));
        write("memory.max", "300\n");
        assert_eq!(available_in_group(group.path()), Some(0));
    }
}
