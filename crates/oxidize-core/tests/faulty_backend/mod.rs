//! CPU backend for tests. Its gate limits how many steps run, and some tokens trigger faults.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{
    Backend, BackendError, Batch, Device, Readback, Session, SessionConfig,
};
use oxidize_core::graph::{Op, Plan};
use oxidize_core::kv::{BlockCopy, BlockId};
use oxidize_core::weights::Weights;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};

/// A batch with this token panics.
pub(crate) const PANIC: u32 = 300;
/// A batch with this token returns an error.
pub(crate) const FAIL: u32 = 301;
/// Reading the output at this token panics.
pub(crate) const PANIC_OUTPUT: u32 = 302;
/// The output at this token is NaN.
pub(crate) const NAN_OUTPUT: u32 = 303;

pub(crate) struct FaultyBackend {
    gate: Arc<Gate>,
    faulty: bool,
    /// If set, a second call of `compile` fails.
    fails_restart: AtomicBool,
    compiled: AtomicBool,
}

/// Number of steps that may still run; `None` is unlimited.
#[derive(Default)]
struct Gate {
    steps: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, change: impl FnOnce(&mut Option<usize>)) {
        change(&mut self.steps.lock().unwrap());
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut steps = self.steps.lock().unwrap();
        while *steps == Some(0) {
            steps = self.changed.wait(steps).unwrap();
        }
        if let Some(steps) = steps.as_mut() {
            *steps -= 1;
        }
    }
}

impl FaultyBackend {
    /// Backend with an open gate and no faults.
    pub(crate) fn gated() -> Arc<FaultyBackend> {
        FaultyBackend::new(false)
    }

    /// Backend with an open gate and faults.
    pub(crate) fn faulty() -> Arc<FaultyBackend> {
        FaultyBackend::new(true)
    }

    fn new(faulty: bool) -> Arc<FaultyBackend> {
        Arc::new(FaultyBackend {
            gate: Arc::default(),
            faulty,
            fails_restart: false.into(),
            compiled: false.into(),
        })
    }

    /// Lets `n` more steps run.
    pub(crate) fn allow(&self, n: usize) {
        self.gate.set(|steps| *steps = Some(steps.unwrap_or(0) + n));
    }

    /// Lets all steps run.
    pub(crate) fn allow_all(&self) {
        self.gate.set(|steps| *steps = None);
    }

    /// Makes the restart after the next fault fail.
    pub(crate) fn fail_restart(&self) {
        self.fails_restart.store(true, Ordering::Relaxed);
    }
}

impl Backend for FaultyBackend {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn devices(&self) -> Vec<Device> {
        Cpu::default().devices()
    }

    fn supports(&self, op: &Op) -> bool {
        Cpu::default().supports(op)
    }

    fn compile(
        &self,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>, BackendError> {
        if self.compiled.swap(true, Ordering::Relaxed) && self.fails_restart.load(Ordering::Relaxed)
        {
            return Err(BackendError::Malformed(
                "a deliberate restart failure".into(),
            ));
        }
        Ok(Box::new(FaultySession {
            inner: Cpu::default().compile(plan, weights, config)?,
            gate: self.gate.clone(),
            faulty: self.faulty,
            outputs: Vec::new(),
            nan: Vec::new(),
        }))
    }
}

struct FaultySession {
    inner: Box<dyn Session>,
    gate: Arc<Gate>,
    faulty: bool,
    /// Token at each output of the last batch.
    outputs: Vec<u32>,
    nan: Vec<f32>,
}

impl Session for FaultySession {
    fn run(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.gate.pass();
        if !self.faulty {
            return self.inner.run(batch);
        }
        assert!(!batch.tokens.contains(&PANIC), "a deliberate fault");
        if batch.tokens.contains(&FAIL) {
            return Err(BackendError::Malformed("a deliberate error".into()));
        }
        let token = |&output: &u32| batch.tokens[output as usize];
        self.outputs = batch.outputs.iter().map(token).collect();
        self.inner.run(batch)
    }

    fn poll_finish(
        &mut self,
        readback: Readback,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BackendError>> {
        self.inner.poll_finish(readback, context)
    }

    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        let token = self.outputs.get(index).copied().filter(|_| self.faulty);
        assert!(token != Some(PANIC_OUTPUT), "a deliberate fault");
        let logits = self.inner.output(index)?;
        if token == Some(NAN_OUTPUT) {
            self.nan = vec![f32::NAN; logits.len()];
            return Ok(&self.nan);
        }
        Ok(logits)
    }

    fn encode(&mut self, batch: &Batch<'_>) -> Result<(), BackendError> {
        self.inner.encode(batch)
    }

    fn sample_greedy(&mut self) -> Result<(), BackendError> {
        self.inner.sample_greedy()
    }

    fn sampled(&mut self, index: usize) -> Result<u32, BackendError> {
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

    fn read_block(
        &self,
        group: usize,
        block: BlockId,
        out: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        self.inner.read_block(group, block, out)
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
