//! The Python class `Session`: one sequence, evaluated step by step, whose logits Python reads.

use numpy::{PyArray2, PyArrayMethods};
use oxidize_core::backend::{Batch, SeqSlice, SessionConfig, cpu::Cpu};
use oxidize_core::kv::BlockId;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{exception, runtime_error};
use crate::model::Model;
use crate::owned::Owned;

/// Maximum tokens per step.
const MAX_TOKENS: usize = 512;
/// Maximum tokens per step whose results are read, so that few logits are in memory at a time.
const MAX_OUTPUTS: usize = 64;
/// First bytes of a saved state.
const MAGIC: &[u8; 8] = b"oxidizkv";

/// One sequence with its KV cache.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct Session {
    state: Owned<State>,
    n_ctx: usize,
    n_output: usize,
    is_recurrent: bool,
}

struct State {
    session: Box<dyn oxidize_core::backend::Session>,
    blocks: Vec<BlockId>,
    block_size: usize,
    adapters: Vec<f32>,
}

#[pymethods]
impl Session {
    /// A session for `n_ctx` tokens. With `hidden`, results are hidden states instead of logits.
    #[new]
    #[pyo3(signature = (model, n_ctx, n_threads=None, hidden=false))]
    fn new(
        py: Python<'_>,
        model: &Model,
        n_ctx: usize,
        n_threads: Option<usize>,
        hidden: bool,
    ) -> PyResult<Session> {
        let model = &model.inner;
        let n_ctx = n_ctx.max(1);
        let config = SessionConfig {
            max_tokens: MAX_TOKENS,
            max_outputs: MAX_OUTPUTS,
            n_threads,
            ..SessionConfig::for_context(n_ctx)
        };
        let session = py.detach(|| match hidden {
            true => model.embedding_session(&Cpu::default(), &config),
            false => model.session(&Cpu::default(), &config),
        });
        let n_blocks = u32::try_from(config.n_blocks).unwrap_or(u32::MAX);
        Ok(Session {
            state: Owned::new(
                "session",
                State {
                    session: session.map_err(exception)?,
                    blocks: (0..n_blocks).map(BlockId).collect(),
                    block_size: config.block_size,
                    adapters: model.adapter_scales().to_vec(),
                },
            ),
            n_ctx,
            n_output: match hidden {
                true => model.hparams().n_embd,
                false => model.n_vocab(),
            },
            is_recurrent: !model.plan().states.is_empty(),
        })
    }

    /// Evaluates tokens from position `start` on, and returns the results of the last `n_outputs` of them, a row each.
    ///
    /// Positions before `start` hold what earlier calls have put there; those of recurrent models must end there.
    fn decode<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        start: usize,
        n_outputs: usize,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let end = start
            .checked_add(tokens.len())
            .filter(|end| *end <= self.n_ctx);
        if end.is_none() || tokens.is_empty() || n_outputs > tokens.len() {
            return Err(PyValueError::new_err(format!(
                "{} tokens from position {start} with {n_outputs} outputs: the context has {} tokens",
                tokens.len(),
                self.n_ctx
            )));
        }
        let n_values = n_outputs.saturating_mul(self.n_output);
        let mut rows = Vec::new();
        rows.try_reserve_exact(n_values).map_err(|_| {
            let text = format!("no memory for {n_outputs} rows of {} values", self.n_output);
            PyMemoryError::new_err(text)
        })?;
        let first_output = tokens.len() - n_outputs;
        let mut done = 0;
        while done < tokens.len() {
            let room = match done < first_output {
                true => MAX_TOKENS.min(first_output - done),
                false => MAX_OUTPUTS,
            };
            let chunk = &tokens[done..tokens.len().min(done + room)];
            let outputs = if done < first_output { 0 } else { chunk.len() };
            py.detach(|| {
                self.state
                    .with(|state| state.step(chunk, start + done, outputs, &mut rows))
            })?;
            py.check_signals()?;
            done += chunk.len();
        }
        let array = numpy::PyArray1::from_vec(py, rows);
        array.reshape([n_outputs, self.n_output])
    }

    /// The cache of the first `n_tokens` positions, for `load`.
    fn save<'py>(&self, py: Python<'py>, n_tokens: usize) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| {
            self.state.with(|state| {
                let mut out = MAGIC.to_vec();
                if self.is_recurrent {
                    return Ok(out);
                }
                let mut bytes = Vec::new();
                for &block in state.used(n_tokens) {
                    let read = state.session.read_block(0, block, &mut bytes);
                    read.map_err(exception)?;
                    out.extend_from_slice(&bytes);
                }
                Ok(out)
            })
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Restores what `save` returned for `n_tokens` positions; false if the bytes are of another model or size, or the
    /// model has recurrent state, which is computed again.
    fn load(&self, py: Python<'_>, bytes: &[u8], n_tokens: usize) -> PyResult<bool> {
        let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
            return Err(runtime_error("Failed to set llama state data"));
        };
        py.detach(|| {
            self.state.with(|state| {
                if self.is_recurrent {
                    return Ok(false);
                }
                let size = state.session.block_bytes(0);
                let blocks = state.used(n_tokens).to_vec();
                if rest.len() != blocks.len().saturating_mul(size) {
                    return Ok(false);
                }
                for block in blocks {
                    let (first, others) = rest.split_at(size);
                    let written = state.session.write_block(0, block, first);
                    written.map_err(exception)?;
                    rest = others;
                }
                Ok(true)
            })
        })
    }

    fn close(&self, py: Python<'_>) {
        let state = self.state.close();
        py.detach(|| drop(state));
    }
}

impl State {
    /// Blocks of the first `n_tokens` positions.
    fn used(&self, n_tokens: usize) -> &[BlockId] {
        let n_blocks = n_tokens.div_ceil(self.block_size);
        self.blocks.get(..n_blocks).unwrap_or(&self.blocks)
    }

    /// Runs one batch; appends the results of its last `outputs` tokens to `rows`.
    fn step(
        &mut self,
        tokens: &[u32],
        start: usize,
        outputs: usize,
        rows: &mut Vec<f32>,
    ) -> PyResult<()> {
        let end = start + tokens.len();
        let positions: Vec<u32> = (start..end).map(|position| position as u32).collect();
        let first_output = tokens.len() - outputs;
        let wanted: Vec<u32> = (first_output..tokens.len()).map(|row| row as u32).collect();
        let sequences = [SeqSlice {
            n_tokens: tokens.len(),
            blocks: &self.blocks[..end.div_ceil(self.block_size)],
            adapters: &self.adapters,
            ..SeqSlice::default()
        }];
        let batch = Batch {
            tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &wanted,
        };
        self.session.run(&batch).map_err(exception)?;
        for output in 0..outputs {
            rows.extend_from_slice(self.session.output(output).map_err(exception)?);
        }
        Ok(())
    }
}
