//! Sampling settings from Python, and the Python classes `Sampler` and `Constraint`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::PyReadonlyArray1;
use oxidize_core::sampling::{
    MirostatMode, MirostatParams, SamplerKind, SamplingError, SamplingParams,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::model::{Model, parse_grammar};

/// Sampling settings: a dictionary with `temperature`. Other keys that are missing or None have llama.cpp's defaults.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SamplingArgs {
    temperature: Option<f32>,
    #[pyo3(default)]
    top_k: Option<u32>,
    #[pyo3(default)]
    top_p: Option<f32>,
    #[pyo3(default)]
    min_p: Option<f32>,
    #[pyo3(default)]
    typical_p: Option<f32>,
    #[pyo3(default)]
    tfs_z: Option<f32>,
    #[pyo3(default)]
    repeat_penalty: Option<f32>,
    #[pyo3(default)]
    repeat_last_n: Option<i32>,
    #[pyo3(default)]
    frequency_penalty: Option<f32>,
    #[pyo3(default)]
    presence_penalty: Option<f32>,
    #[pyo3(default)]
    mirostat_mode: Option<u32>,
    #[pyo3(default)]
    mirostat_tau: Option<f32>,
    #[pyo3(default)]
    mirostat_eta: Option<f32>,
    #[pyo3(default)]
    logit_bias: Option<Vec<(u32, f32)>>,
    #[pyo3(default)]
    seed: Option<u64>,
    /// Names of the stages, separated by semicolons.
    #[pyo3(default)]
    samplers: Option<String>,
    #[pyo3(default)]
    n_probs: Option<u32>,
    #[pyo3(default)]
    stop: Option<Vec<String>>,
    #[pyo3(default)]
    stop_tokens: Option<Vec<u32>>,
    #[pyo3(default)]
    min_tokens: Option<u32>,
}

impl SamplingArgs {
    /// The parameters, on top of `defaults`.
    pub(crate) fn params(self, defaults: SamplingParams) -> PyResult<SamplingParams> {
        let mode = match self.mirostat_mode {
            None => defaults.mirostat.mode,
            Some(0) => MirostatMode::Off,
            Some(1) => MirostatMode::V1,
            Some(2) => MirostatMode::V2,
            Some(mode) => {
                let text = format!("mirostat_mode {mode}; 0, 1 and 2 are supported");
                return Err(PyValueError::new_err(text));
            }
        };
        let samplers = match &self.samplers {
            None => defaults.samplers,
            Some(names) => SamplerKind::parse_list(names).map_err(value_error)?,
        };
        Ok(SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            typical_p: self.typical_p.unwrap_or(defaults.typical_p),
            tfs_z: self.tfs_z.unwrap_or(defaults.tfs_z),
            repeat_penalty: self.repeat_penalty.unwrap_or(defaults.repeat_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(defaults.repeat_last_n),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            mirostat: MirostatParams {
                mode,
                tau: self.mirostat_tau.unwrap_or(defaults.mirostat.tau),
                eta: self.mirostat_eta.unwrap_or(defaults.mirostat.eta),
            },
            logit_bias: self.logit_bias.unwrap_or(defaults.logit_bias),
            seed: self.seed.or(defaults.seed),
            samplers,
            n_probs: self.n_probs.or(defaults.n_probs),
            stop: self.stop.unwrap_or(defaults.stop),
            stop_tokens: self.stop_tokens.unwrap_or(defaults.stop_tokens),
            min_tokens: self.min_tokens.unwrap_or(defaults.min_tokens),
            ..defaults
        })
    }
}

fn value_error(error: SamplingError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A grammar within an answer.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct Constraint(Mutex<oxidize_core::grammar::Constraint>);

#[pymethods]
impl Constraint {
    /// Compiles a grammar for a model's vocabulary.
    #[new]
    fn new(py: Python<'_>, model: &Model, kind: &str, text: &str) -> PyResult<Constraint> {
        let grammar = parse_grammar(kind, text)?;
        let compiled = py.detach(|| model.compile(&grammar))?;
        Ok(Constraint(Mutex::new(compiled)))
    }

    /// Advances by a token of the answer.
    fn accept(&self, token: u32) -> PyResult<()> {
        let accepted = self.lock().accept(token);
        accepted.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// True if the answer is complete and cannot continue.
    #[getter]
    fn is_complete(&self) -> bool {
        self.lock().is_complete()
    }

    /// True if the token may come next.
    fn allows(&self, token: u32) -> PyResult<bool> {
        let mut constraint = self.lock();
        let mask = constraint.mask();
        let mask = mask.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((token as usize) < mask.len() && mask.allows(token))
    }
}

impl Constraint {
    fn lock(&self) -> MutexGuard<'_, oxidize_core::grammar::Constraint> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Samples tokens from logits, one after the other.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct Sampler(Mutex<oxidize_core::sampling::Sampler>);

#[pymethods]
impl Sampler {
    #[new]
    fn new(model: &Model, settings: SamplingArgs) -> PyResult<Sampler> {
        let params = settings.params(SamplingParams::default())?;
        let vocab = model.inner.sampler_vocab();
        let sampler = oxidize_core::sampling::Sampler::new(&params, &vocab);
        Ok(Sampler(Mutex::new(sampler.map_err(value_error)?)))
    }

    /// Updates penalties for tokens of the prompt or the answer.
    fn accept(&self, tokens: Vec<u32>) {
        let mut sampler = self.lock();
        tokens.into_iter().for_each(|token| sampler.accept(token));
    }

    /// Samples a token from the logits of the whole vocabulary.
    #[pyo3(signature = (logits, constraint=None))]
    fn sample(
        &self,
        logits: PyReadonlyArray1<'_, f32>,
        constraint: Option<&Constraint>,
    ) -> PyResult<u32> {
        let Ok(logits) = logits.as_slice() else {
            return Err(PyValueError::new_err("the logits must be contiguous"));
        };
        let mut constraint = constraint.map(Constraint::lock);
        let mask = match &mut constraint {
            Some(constraint) => {
                let mask = constraint.mask();
                Some(mask.map_err(|error| PyValueError::new_err(error.to_string()))?)
            }
            None => None,
        };
        let sampled = self.lock().sample(logits, mask);
        sampled.map(|sampled| sampled.token).map_err(value_error)
    }
}

impl Sampler {
    fn lock(&self) -> MutexGuard<'_, oxidize_core::sampling::Sampler> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
