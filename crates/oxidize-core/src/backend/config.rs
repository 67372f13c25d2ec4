//! [`SessionConfig`]: sizes and settings of a session.

use super::{Backend, BackendError, Observer};
use crate::graph::{Plan, Window};
use crate::kv::{BlockId, WindowGroup};
use crate::threads::Spawner;
use oxidize_kernels::{ActivationQuant, KvType};

/// Sizes and settings of a [`Session`](super::Session).
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Index into [`Backend::devices`] of the device that runs the session.
    pub device: usize,
    /// Blocks of the KV cache.
    pub n_blocks: usize,
    /// Positions in a block.
    pub block_size: usize,
    /// Layers with a window whose blocks are numbered on their own, and the number of these blocks: groups 1
    /// and up. All other layers are group 0. Empty for a session in which all layers share one block table.
    pub windows: Vec<WindowGroup>,
    /// Maximum number of tokens in a batch.
    pub max_tokens: usize,
    /// Maximum number of outputs in a batch.
    pub max_outputs: usize,
    /// Number of slots for recurrent states: one for each running sequence and one for each saved copy.
    pub state_slots: usize,
    /// Maximum number of tokens in a sequence. Some RoPE scalings depend on it.
    pub max_context: usize,
    /// Batches of one sequence with at most this many tokens, two at least, are batch-invariant if each token is
    /// an output: the results of a token are bit for bit those that it has in a batch of its own. Verification
    /// of draft tokens needs this. Any other order of summation is faster, so the default is 0. `usize::MAX`
    /// means every batch.
    pub batch_invariant_tokens: usize,
    /// Storage type of keys. If keys or values are stored as f32, then nothing else is rounded either,
    /// except the inputs of quantized weights.
    pub key_type: KvType,
    /// Storage type of values.
    pub value_type: KvType,
    /// Quantization of activations, for backends that quantize them.
    pub activations: ActivationQuant,
    /// Memory for repacking weights, for backends that repack them.
    pub repack: RepackLimit,
    /// Number of threads, for backends that use threads; `None` means all cores.
    pub n_threads: Option<usize>,
    /// Starts these threads.
    pub spawner: Spawner,
    /// Receives the inputs of matrices, from backends that support it.
    pub observer: Option<Observer>,
}

impl SessionConfig {
    /// Settings for one sequence of up to `n_ctx` tokens.
    pub fn for_context(n_ctx: usize) -> SessionConfig {
        let block_size = 32;
        SessionConfig {
            device: 0,
            n_blocks: n_ctx.div_ceil(block_size).max(1),
            block_size,
            windows: Vec::new(),
            max_tokens: 512,
            max_outputs: 1,
            state_slots: 1,
            max_context: n_ctx,
            batch_invariant_tokens: 0,
            key_type: KvType::F16,
            value_type: KvType::F16,
            activations: ActivationQuant::default(),
            repack: RepackLimit::default(),
            n_threads: None,
            spawner: Spawner::default(),
            observer: None,
        }
    }

    /// Group of layers to which each cache of `plan` belongs.
    pub fn groups(&self, plan: &Plan) -> Vec<usize> {
        let group = |window: Option<Window>| {
            let nth = self.windows.iter().position(|w| Some(w.window) == window);
            nth.map_or(0, |nth| nth + 1)
        };
        plan.cache_windows().into_iter().map(group).collect()
    }

    /// Number of blocks of each group of layers.
    pub fn group_blocks(&self) -> impl Iterator<Item = usize> {
        let of_windows = self.windows.iter().map(|group| group.n_blocks as usize);
        std::iter::once(self.n_blocks).chain(of_windows)
    }

    /// Checks that a group of layers has `block`.
    pub fn check_block(&self, group: usize, block: BlockId) -> Result<(), BackendError> {
        let n_blocks = self.group_blocks().nth(group).unwrap_or(0);
        if (block.0 as usize) < n_blocks {
            return Ok(());
        }
        let problem = format!("block {} of {n_blocks} in group {group}", block.0);
        Err(BackendError::Malformed(problem))
    }

    /// Checks that `backend` has the [device](SessionConfig::device).
    pub fn check_device(&self, backend: &dyn Backend) -> Result<(), BackendError> {
        let n_devices = backend.devices().len();
        if self.device < n_devices {
            return Ok(());
        }
        Err(BackendError::NoDevice {
            backend: backend.name(),
            device: self.device,
            n_devices,
        })
    }
}

/// Memory that a session may spend on repacking weights.
///
/// Types that look their weights up in tables (IQ1_S to IQ3_S) take more memory once they are repacked, and
/// are multiplied several times as fast. Repacked weights replace those of the file in memory, so the limit
/// counts only by how much they are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepackLimit {
    /// Bytes by which all repacked weights together may be larger than in the file.
    pub bytes: u64,
}

impl RepackLimit {
    /// No weight is repacked.
    pub const OFF: RepackLimit = RepackLimit { bytes: 0 };
    /// Every weight is repacked that is faster repacked.
    pub const ALL: RepackLimit = RepackLimit { bytes: u64::MAX };
    const MIB: u64 = 1 << 20;
}

/// Enough for most of a billion weights. With it, a process stays below the size of the file, the KV cache and
/// 200 MiB, the buffers of prompt processing included.
impl Default for RepackLimit {
    fn default() -> RepackLimit {
        RepackLimit {
            bytes: 112 * RepackLimit::MIB,
        }
    }
}

impl std::fmt::Display for RepackLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            RepackLimit::OFF => f.pad("off"),
            RepackLimit::ALL => f.pad("all"),
            RepackLimit { bytes } => write!(f, "{}", bytes / RepackLimit::MIB),
        }
    }
}

impl std::str::FromStr for RepackLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<RepackLimit, String> {
        match text {
            "off" => Ok(RepackLimit::OFF),
            "all" => Ok(RepackLimit::ALL),
            _ => {
                let mib: Option<u64> = text.parse().ok();
                let bytes = mib.and_then(|mib| mib.checked_mul(RepackLimit::MIB));
                let bytes = bytes.ok_or("expected a number of MiB, `all` or `off`")?;
                Ok(RepackLimit { bytes })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repack_limit_parses_mib_all_and_off() {
        for text in ["off", "all", "112", "1"] {
            let parsed: RepackLimit = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
        assert_eq!(RepackLimit::default().to_string(), "112");
        assert_eq!("0".parse(), Ok(RepackLimit::OFF));
        for text in ["", "-1", "none", "99999999999999999999"] {
            assert!(text.parse::<RepackLimit>().is_err(), "{text}");
        }
    }
}
