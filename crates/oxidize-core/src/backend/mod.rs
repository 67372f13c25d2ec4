//! Execution of plans. A [`Backend`] compiles a [`Plan`] into a [`Session`], and a session runs batches.
//!
//! Nothing here assumes where weights, caches and logits live: a device keeps them in its own memory, and the
//! host asks for what it needs of a step ([`Session::output`], [`Session::top_k`], [`Session::sampled`]).

mod batch;
mod cache_size;
mod config;
pub mod cpu;
mod error;
mod finish;
mod memory_plan;
mod model_session;
mod observe;
pub mod reference;
mod routing;
mod row_math;
mod sample;
mod slots;
mod validate;

use crate::graph::{Op, Plan};
use crate::kv::{BlockCopy, BlockId};
use crate::threads::{MaybeSend, MaybeSync};
use crate::weights::Weights;
pub use batch::{Batch, SeqSlice};
pub use cache_size::CacheSize;
pub use config::{RepackLimit, SessionConfig};
pub use error::BackendError;
pub use finish::Readback;
pub use memory_plan::MemoryPlan;
pub use observe::{Observation, Observer};
pub use oxidize_kernels::{ActivationQuant, KvType};
pub use sample::{Candidate, TopK, sampled_output, sampled_token};
pub use slots::StateRun;
use std::task::{Context, Poll};
pub use validate::BatchValidator;

/// An implementation of plans for a kind of device.
pub trait Backend: MaybeSend + MaybeSync {
    /// Name of the backend, such as `cpu`.
    fn name(&self) -> &'static str;

    /// The devices of this machine that the backend can use. [`SessionConfig::device`] is an index into them, so
    /// the order must not change while the process runs.
    fn devices(&self) -> Vec<Device>;

    /// True if the backend can run `op`. Backends that run every op need not implement this.
    fn supports(&self, _op: &Op) -> bool {
        true
    }

    /// Bytes by which the weights of a session are larger in memory than in the file, because the backend
    /// stores them in another form. Counted before memory is allocated, and the same for all sessions of a
    /// model and configuration.
    fn weight_growth(&self, _plan: &Plan, _weights: &Weights, _config: &SessionConfig) -> u64 {
        0
    }

    /// Prepares a session on the device of the configuration: everything that running batches needs is
    /// allocated here, and nothing is allocated per token afterwards.
    ///
    /// `weights` has the types of the file and is shared by all sessions of a model, on all devices. A backend
    /// that reads weights in place works on [`Weights::loaded`]. A backend that makes a copy, such as one that
    /// uploads to a device or repacks, loads one weight at a time ([`Weight::loaded`]) and then gives up the
    /// host memory of the original ([`Weight::release`]); the next session reads it from the file again.
    /// Sessions on the same device should share such copies: [`Weights::prepared`] keeps them with the model.
    ///
    /// [`Weight::loaded`]: crate::weights::Weight::loaded
    /// [`Weight::release`]: crate::weights::Weight::release
    fn compile(
        &self,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>, BackendError>;
}

/// A device and its memory.
#[derive(Clone, Debug)]
pub struct Device {
    /// Name for users.
    pub name: String,
    /// Bytes of memory, where known.
    pub memory: Option<u64>,
}

/// A compiled plan with its KV cache and recurrent states, on one device.
///
/// Calls take effect in the order in which they are made. A device may queue the work of [`run`](Session::run),
/// [`encode`](Session::encode), [`sample_greedy`](Session::sample_greedy) and the copies, and return before it is
/// done. Before the host reads results it calls [`finish`](trait.Session.html#method.finish), a future that completes
/// queued work and reports errors of the device. So a device can be driven from a thread that must not wait, as in a
/// browser. Where a device can wait, methods that return data do so if the work is not complete yet; elsewhere they
/// return [`BackendError::WouldBlock`].
pub trait Session: MaybeSend {
    /// Submits one batch. Its results replace those of the batch before.
    ///
    /// The whole batch is checked before anything is computed ([`BatchValidator`] has all checks), and a batch that
    /// is refused changes neither caches nor states nor results. After any other error the contents of the
    /// sequences in the batch are undefined.
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError>;

    /// Runs the encoder of an encoder-decoder model over whole sequences, from position 0 on. The decoder then
    /// continues in the same slots and blocks. Refuses batches as [`Session::run`] does.
    fn encode(&mut self, batch: &Batch<'_>) -> Result<(), BackendError>;

    /// Completes submitted work, as far as the results that `readback` names depend on it: afterwards, the methods that
    /// return them do not wait. A session that computes in [`run`](Session::run) is always ready.
    ///
    /// While the result is `Pending`, the session wakes the waker of the last call when there is progress. A call for
    /// results that were read back before is ready at once. An error of the device is reported once; the contents of the
    /// sequences in the batches are then undefined. Hosts call [`finish`](trait.Session.html#method.finish) instead.
    fn poll_finish(
        &mut self,
        readback: Readback,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BackendError>>;

    /// The results of one of the batch's outputs, by index into [`Batch::outputs`]: for a language model, the
    /// logits of the whole vocabulary. A device copies them to the host.
    fn output(&mut self, index: usize) -> Result<&[f32], BackendError>;

    /// Writes the `k` largest logits of an output and the log-sum-exp of all of them to `top`, whose buffer is
    /// reused. A device selects them in its own memory, so that it copies `k` logits and not the vocabulary.
    ///
    /// The candidates are exactly those of [`TopK::select`] on [`Session::output`], in the same order; the sum may
    /// differ by rounding. Fails with [`BackendError::NotFinite`] if logits are NaN or +∞, or all are −∞.
    fn top_k(&mut self, index: usize, k: usize, top: &mut TopK) -> Result<(), BackendError> {
        top.select(self.output(index)?, k, index)
    }

    /// Chooses the most likely token at every output of the last batch; of equal logits, the lowest id.
    ///
    /// The tokens stay with the session. The next batches may contain them ([`sampled_token`]), and
    /// [`Session::sampled`] returns them to the host, until `sample_greedy` is called again. So a device can
    /// compute the next step while the host still waits for the token of this one. Where logits are not
    /// finite, later batches get token 0, and only [`Session::sampled`] reports the error.
    fn sample_greedy(&mut self) -> Result<(), BackendError>;

    /// The token that [`Session::sample_greedy`] has chosen at an output of the batch before it. Fails with
    /// [`BackendError::NotFinite`] where the logits were not finite.
    fn sampled(&mut self, index: usize) -> Result<u32, BackendError>;

    /// Copies whole blocks of the KV cache, in order: a later copy sees the effect of an earlier one.
    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<(), BackendError>;

    /// Copies recurrent states from slot to slot, in order.
    fn copy_states(&mut self, moves: &[(u32, u32)]) -> Result<(), BackendError>;

    /// Number of bytes that [`Session::read_block`] writes for a block of a group of layers.
    fn block_bytes(&self, group: usize) -> usize;

    /// Writes a block of the caches of all layers of a group to `out`, in a layout that sessions of the same
    /// backend, plan and configuration share.
    fn read_block(
        &self,
        group: usize,
        block: BlockId,
        out: &mut Vec<u8>,
    ) -> Result<(), BackendError>;

    /// Restores a block from what [`Session::read_block`] wrote.
    fn write_block(
        &mut self,
        group: usize,
        block: BlockId,
        bytes: &[u8],
    ) -> Result<(), BackendError>;
}
