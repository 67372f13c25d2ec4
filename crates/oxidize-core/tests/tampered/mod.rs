//! The CPU backend with a gate, which lets a test say how many steps run, and with faults, which
//! some tokens set off.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Backend, BackendError, Batch, Device, Session, SessionConfig};
use oxidize_core::graph::{Op, Plan};
use oxidize_core::kv::BlockId;
use oxidize_core::model::Weights;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// A batch with this token panics.
pub(crate) const PANIC: u32 = 300;
/// A batch with this token is an error.
pub(crate) const FAIL: u32 = 301;
/// Results at this token panic.
pub(crate) const PANIC_OUTPUT: u32 = 302;
/// Results at this token are no numbers.
pub(crate) const NAN_OUTPUT: u32 = 303;

pub(crate) struct Tampered {
    gate: Arc<Gate>,
    faulty: bool,
    /// Once compiled, it cannot be compiled again.
    breaks: AtomicBool,
    compiled: AtomicBool,
}

/// How many more steps may run; any number where `None`.
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

impl Tampered {
    /// With a gate, which is open, and no faults.
    pub(crate) fn gated() -> Arc<Tampered> {
        Tampered::new(false)
    }

    /// With faults too.
    pub(crate) fn faulty() -> Arc<Tampered> {
        Tampered::new(true)
    }

    fn new(faulty: bool) -> Arc<Tampered> {
        Arc::new(Tampered {
            gate: Arc::default(),
            faulty,
            breaks: false.into(),
            compiled: false.into(),
        })
    }

    /// Lets `n` more steps run, and then none.
    pub(crate) fn allow(&self, n: usize) {
        self.gate.set(|steps| *steps = Some(steps.unwrap_or(0) + n));
    }

    /// Lets all steps run.
    pub(crate) fn allow_all(&self) {
        self.gate.set(|steps| *steps = None);
    }

    /// Makes the next fault the last.
    pub(crate) fn break_for_good(&self) {
        self.breaks.store(true, Ordering::Relaxed);
    }
}

impl Backend for Tampered {
    fn name(&self) -> &'static str {
        "tampered"
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
        if self.compiled.swap(true, Ordering::Relaxed) && self.breaks.load(Ordering::Relaxed) {
            return Err(BackendError::Malformed("broken for good".into()));
        }
        Ok(Box::new(TamperedSession {
            inner: Cpu::default().compile(plan, weights, config)?,
            gate: self.gate.clone(),
            faulty: self.faulty,
            outputs: Vec::new(),
            nothing: Vec::new(),
        }))
    }
}

struct TamperedSession {
    inner: Box<dyn Session>,
    gate: Arc<Gate>,
    faulty: bool,
    /// The token at each output of the last batch.
    outputs: Vec<u32>,
    nothing: Vec<f32>,
}

impl Session for TamperedSession {
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

    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        let token = self.outputs.get(index).copied().filter(|_| self.faulty);
        assert!(token != Some(PANIC_OUTPUT), "a deliberate fault");
        let logits = self.inner.output(index)?;
        if token == Some(NAN_OUTPUT) {
            self.nothing = vec![f32::NAN; logits.len()];
            return Ok(&self.nothing);
        }
        Ok(logits)
    }

    fn copy_blocks(&mut self, moves: &[(BlockId, BlockId)]) -> Result<(), BackendError> {
        self.inner.copy_blocks(moves)
    }

    fn copy_states(&mut self, moves: &[(u32, u32)]) -> Result<(), BackendError> {
        self.inner.copy_states(moves)
    }

    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.inner.read_block(block, out)
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.write_block(block, bytes)
    }
}
