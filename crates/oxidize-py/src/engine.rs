//! The Python class `Engine`: requests of all threads share its steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use oxidize_core::backend::{Backend, CacheSize, cpu::Cpu};
use oxidize_core::engine::{EngineConfig, Prompt, Request};
use oxidize_core::io::available_memory;
use oxidize_core::{DraftSource, KvType, Speculation};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::exception;
use crate::model::{Model, parse_grammar};
use crate::owned::Owned;
use crate::processor::{self, Failure, PythonProcessor};
use crate::sampling::SamplingArgs;
use crate::stream::{Answer, Stream};

/// Longest wait for the engine's thread to give its memory back.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of engines so far.
static N_ENGINES: AtomicU64 = AtomicU64::new(0);

/// A running engine.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct Engine {
    engine: Owned<oxidize_core::Engine>,
    /// Number of the engine, which its processors have.
    number: u64,
    n_ctx: usize,
    cache_tokens: usize,
    /// Answers that may still be read.
    answers: Mutex<Vec<Weak<Answer>>>,
}

/// Settings of an engine: a dictionary with `n_ctx`. Other keys that are missing or None have the engine's defaults.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct EngineArgs {
    /// Maximum tokens of a request; 0 is what the model was trained for.
    n_ctx: Option<usize>,
    #[pyo3(default)]
    n_batch: Option<usize>,
    #[pyo3(default)]
    n_parallel: Option<usize>,
    #[pyo3(default)]
    n_queue: Option<usize>,
    #[pyo3(default)]
    n_threads: Option<usize>,
    #[pyo3(default)]
    cache_tokens: Option<usize>,
    #[pyo3(default)]
    type_k: Option<String>,
    #[pyo3(default)]
    type_v: Option<String>,
    #[pyo3(default)]
    deterministic: Option<bool>,
    /// Drafts tokens that repeat the text.
    #[pyo3(default)]
    draft_ngram: Option<bool>,
    #[pyo3(default)]
    draft_tokens: Option<usize>,
}

/// Settings of a request: a dictionary with `max_tokens`. Other keys may be missing.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RequestArgs {
    max_tokens: Option<usize>,
    /// Kind and text of a grammar.
    #[pyo3(default)]
    grammar: Option<(String, String)>,
    #[pyo3(default)]
    sampling: Option<SamplingArgs>,
    /// Log probabilities of the prompt, and of the n most likely tokens at each position.
    #[pyo3(default)]
    prompt_logprobs: Option<u32>,
    #[pyo3(default)]
    render_special: Option<bool>,
    #[pyo3(default)]
    ignore_eos: Option<bool>,
    #[pyo3(default)]
    priority: Option<i32>,
    #[pyo3(default)]
    prediction: Option<String>,
    /// A function that changes the logits before each token, or ends the answer.
    #[pyo3(default)]
    processor: Option<Py<PyAny>>,
}

/// Tokens of prompts per step whose log probabilities can be computed.
const SCORED_TOKENS: usize = 64;

#[pymethods]
impl Engine {
    #[new]
    fn new(py: Python<'_>, model: &Model, settings: EngineArgs) -> PyResult<Engine> {
        let config = settings.config(&model.inner)?;
        let cache_tokens = config.cache_tokens.unwrap_or_default();
        let model = model.inner.clone();
        let engine = py.detach(|| oxidize_core::Engine::with_config(model, &config));
        let engine = engine.map_err(exception)?;
        Ok(Engine {
            number: N_ENGINES.fetch_add(1, Ordering::Relaxed),
            n_ctx: engine.n_ctx(),
            cache_tokens,
            engine: Owned::new("model", engine),
            answers: Mutex::default(),
        })
    }

    /// Maximum tokens of a request, prompt and answer together.
    #[getter]
    fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Tokens of all running requests and of the prefix cache together.
    #[getter]
    fn cache_tokens(&self) -> usize {
        self.cache_tokens
    }

    /// Queues a request.
    fn submit(&self, py: Python<'_>, prompt: Vec<u32>, settings: RequestArgs) -> PyResult<Stream> {
        let engine = self.engine.with(|engine| Ok(engine.clone()))?;
        let (request, failure) = settings.request(prompt, &engine, self.number)?;
        let stream = py.detach(|| engine.submit(request)).map_err(exception)?;
        let answer = Arc::new(Answer::new(stream, self.number, failure));
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|answer| answer.strong_count() > 0);
        answers.push(Arc::downgrade(&answer));
        Ok(Stream(answer))
    }

    /// Fails if the engine is closed, or this is a forked process.
    fn check(&self) -> PyResult<()> {
        self.engine.with(|_| Ok(()))
    }

    /// Ends all requests and waits until the memory is free.
    fn close(&self, py: Python<'_>) {
        let Some(engine) = self.engine.close() else {
            return;
        };
        let answers =
            std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner));
        for answer in answers.iter().filter_map(Weak::upgrade) {
            answer.cancel("this model is closed");
        }
        let monitor = engine.monitor();
        drop(engine);
        if processor::is_running(self.number) {
            // This is the engine's own thread, which ends after this call.
            return;
        }
        py.detach(|| {
            let start = Instant::now();
            while !monitor.has_ended() && start.elapsed() < CLOSE_TIMEOUT {
                std::thread::sleep(Duration::from_micros(200));
            }
        });
    }
}

impl EngineArgs {
    fn config(self, model: &oxidize_core::Model) -> PyResult<EngineConfig> {
        let defaults = EngineConfig::default();
        let kv_type = |name: Option<String>| match name {
            None => Ok(KvType::F16),
            Some(name) => {
                let named = |ty: &KvType| ty.tensor_type().name().eq_ignore_ascii_case(&name);
                KvType::ALL.into_iter().find(named).ok_or_else(|| {
                    let text =
                        format!("cache of type {name:?}; f32, f16, q8_0 and q4_0 are supported");
                    PyValueError::new_err(text)
                })
            }
        };
        let config = EngineConfig {
            n_ctx: match self.n_ctx {
                Some(0) => Some(model.context_length()),
                n_ctx => n_ctx,
            },
            max_batch_tokens: self.n_batch.unwrap_or(defaults.max_batch_tokens).max(1),
            max_sequences: self.n_parallel.unwrap_or(defaults.max_sequences).max(1),
            max_queue: self.n_queue.unwrap_or(usize::from(u16::MAX)),
            scored_tokens: SCORED_TOKENS,
            n_threads: self.n_threads,
            key_type: kv_type(self.type_k)?,
            value_type: kv_type(self.type_v)?,
            deterministic: self.deterministic.unwrap_or_default(),
            speculation: self.draft_ngram.unwrap_or_default().then(|| {
                let mut speculation = Speculation::new(DraftSource::Ngram);
                speculation.max_tokens = self.draft_tokens.unwrap_or(speculation.max_tokens);
                speculation
            }),
            ..defaults
        };
        let available = available_memory();
        let mut config = config.fit_context(model, &Cpu::default() as &dyn Backend, available);
        let context = config.context(model);
        let one = CacheSize::new(model.plan(), &config.session(model));
        let room = available.map_or(u64::MAX, |bytes| bytes / 4 / one.total().max(1));
        let contexts = (config.max_sequences as u64).min(room).max(1) as usize;
        let cache_tokens = self
            .cache_tokens
            .unwrap_or(context.saturating_mul(contexts));
        config.cache_tokens = Some(cache_tokens.max(context));
        Ok(config)
    }
}

impl RequestArgs {
    /// The request, and the place for an exception of its processor.
    fn request(
        self,
        prompt: Vec<u32>,
        engine: &oxidize_core::Engine,
        number: u64,
    ) -> PyResult<(Request, Option<Failure>)> {
        let grammar = match self.grammar {
            Some((kind, text)) => Some(parse_grammar(&kind, &text)?),
            None => None,
        };
        let mut request = Request::new(Prompt::Tokens(prompt));
        request.sampling = match self.sampling {
            Some(sampling) => Some(sampling.params(Default::default())?),
            None => Some(engine.model().sampling_defaults()),
        };
        request.grammar = grammar;
        request.max_tokens = self.max_tokens;
        request.prompt_logprobs = self.prompt_logprobs;
        request.render_special = self.render_special.unwrap_or_default();
        request.ignore_eos = self.ignore_eos.unwrap_or_default();
        request.priority = self.priority.unwrap_or_default();
        request.drafts.prediction = self.prediction;
        let Some(function) = self.processor else {
            return Ok((request, None));
        };
        let processor = PythonProcessor::new(function, number);
        let failure = processor.failure();
        Ok((request.logits_processor(processor), Some(failure)))
    }
}
