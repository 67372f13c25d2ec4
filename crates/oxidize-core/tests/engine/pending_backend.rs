//! CPU backend whose sessions complete later: another thread wakes the host a few times before results can be read, and
//! nothing can be read that was not asked for.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{
    Backend, BackendError, Batch, Device, Readback, Session, SessionConfig, TopK,
};
use oxidize_core::graph::Plan;
use oxidize_core::kv::{BlockCopy, BlockId};
use oxidize_core::weights::Weights;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Waker};

pub(crate) struct PendingBackend {
    /// Wakes before a batch is complete.
    pub(crate) n_wakes: usize,
    /// Index of the batch, over all sessions, whose results are lost with the device.
    pub(crate) lost: Option<usize>,
    /// Polls that were pending.
    pub(crate) n_pending: Arc<AtomicUsize>,
    /// Batches of all sessions so far.
    pub(crate) n_batches: Arc<AtomicUsize>,
}

impl PendingBackend {
    pub(crate) fn new(n_wakes: usize) -> PendingBackend {
        PendingBackend {
            n_wakes,
            lost: None,
            n_pending: Arc::default(),
            n_batches: Arc::default(),
        }
    }
}

impl Backend for PendingBackend {
    fn name(&self) -> &'static str {
        "pending"
    }

    fn devices(&self) -> Vec<Device> {
        Cpu::default().devices()
    }

    fn compile(
        &self,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>, BackendError> {
        let (device, wakers) = channel::<Waker>();
        // Ends when the session drops its sender.
        std::thread::spawn(move || wakers.into_iter().for_each(Waker::wake));
        Ok(Box::new(PendingSession {
            inner: Cpu::default().compile(plan, weights, config)?,
            n_wakes: self.n_wakes,
            lost: self.lost,
            n_batches: self.n_batches.clone(),
            n_pending: self.n_pending.clone(),
            device,
            missing: 0,
            is_lost: false,
            complete: None,
        }))
    }
}

struct PendingSession {
    inner: Box<dyn Session>,
    n_wakes: usize,
    lost: Option<usize>,
    n_batches: Arc<AtomicUsize>,
    n_pending: Arc<AtomicUsize>,
    device: Sender<Waker>,
    /// Wakes until the submitted work is complete.
    missing: usize,
    is_lost: bool,
    /// Results that were read back.
    complete: Option<Readback>,
}

impl PendingSession {
    fn submit(&mut self) {
        self.missing = self.n_wakes;
        self.complete = None;
    }

    fn readable(&self, readback: Readback) -> Result<(), BackendError> {
        let complete = self.complete == Some(readback);
        complete.then_some(()).ok_or(BackendError::WouldBlock)
    }
}

impl Session for PendingSession {
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        assert_eq!(self.missing, 0, "the batch before is not complete");
        self.inner.run(batch)?;
        self.is_lost = self.lost == Some(self.n_batches.fetch_add(1, Ordering::Relaxed));
        self.submit();
        Ok(())
    }

    fn encode(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        // Completed with the batch of the decoder.
        self.complete = None;
        self.inner.encode(batch)
    }

    fn poll_finish(
        &mut self,
        readback: Readback,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BackendError>> {
        if let Some(missing) = self.missing.checked_sub(1) {
            self.missing = missing;
            self.n_pending.fetch_add(1, Ordering::Relaxed);
            self.device.send(context.waker().clone()).unwrap();
            return Poll::Pending;
        }
        if std::mem::take(&mut self.is_lost) {
            let (backend, message) = ("pending", "the device is lost".to_owned());
            return Poll::Ready(Err(BackendError::Device { backend, message }));
        }
        self.complete = Some(readback);
        Poll::Ready(Ok(()))
    }

    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        self.readable(Readback::Outputs)?;
        self.inner.output(index)
    }

    fn top_k(&mut self, index: usize, k: usize, top: &mut TopK) -> Result<(), BackendError> {
        self.readable(Readback::TopK(k))?;
        self.inner.top_k(index, k, top)
    }

    fn sample_greedy(&mut self) -> Result<(), BackendError> {
        self.inner.sample_greedy()
    }

    fn sampled(&mut self, index: usize) -> Result<u32, BackendError> {
        self.readable(Readback::Sampled)?;
        self.inner.sampled(index)
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<(), BackendError> {
        self.inner.copy_blocks(copies)
    }

    fn copy_states(&mut self, moves: &[(u32, u32)]) -> Result<(), BackendError> {
        self.inner.copy_states(moves)
    }

    fn block_bytes(&self, group: usize) -> usize {
        self.inner.block_bytes(group)
    }

    fn read_block(&self, _: usize, _: BlockId, _: &mut Vec<u8>) -> Result<(), BackendError> {
        Err(BackendError::WouldBlock)
    }

    fn write_block(
        &mut self,
        group: usize,
        block: BlockId,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.inner.write_block(group, block, bytes)
    }
}
