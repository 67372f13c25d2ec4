//! [`PythonProcessor`]: a Python function that changes logits, called by the engine between its steps.
//!
//! The engine's thread takes the GIL for the call, so that requests with processors share steps with all others.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, PyArrayMethods};
use oxidize_core::LogitsProcessor;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::runtime_error;

thread_local! {
    /// Number of the engine whose processor runs on this thread.
    static RUNNING: Cell<Option<u64>> = const { Cell::new(None) };
}

/// True within a processor of this engine.
pub(crate) fn is_running(engine: u64) -> bool {
    RUNNING.get() == Some(engine)
}

/// Fails within a processor of this engine: waiting for an answer would wait forever.
pub(crate) fn check_not_running(engine: u64) -> PyResult<()> {
    match is_running(engine) {
        false => Ok(()),
        true => Err(runtime_error(
            "a logits processor or stopping criterion cannot wait for an answer of its own model",
        )),
    }
}

/// A place for the exception that a processor has raised, which the reader of the answer raises again.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, error: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// A Python function of the tokens since its last call and of the logits, a numpy array of its own. It returns an array
/// with other logits, or None to end the answer.
pub(crate) struct PythonProcessor {
    function: Py<PyAny>,
    failure: Failure,
    engine: u64,
    /// Tokens of the answer that the function has seen.
    n_seen: Mutex<usize>,
}

impl PythonProcessor {
    pub(crate) fn new(function: Py<PyAny>, engine: u64) -> PythonProcessor {
        PythonProcessor {
            function,
            failure: Failure::default(),
            engine,
            n_seen: Mutex::new(0),
        }
    }

    /// The place for its exception.
    pub(crate) fn failure(&self) -> Failure {
        self.failure.clone()
    }

    fn call(
        &self,
        py: Python<'_>,
        answer: &[u32],
        logits: &mut [f32],
    ) -> PyResult<ControlFlow<()>> {
        let fresh = {
            let mut n_seen = self.n_seen.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = answer.get(*n_seen..).unwrap_or_default().to_vec();
            *n_seen = answer.len();
            fresh
        };
        let array = PyArray1::from_slice(py, logits);
        let changed = self.function.bind(py).call1((fresh, array))?;
        if changed.is_none() {
            return Ok(ControlFlow::Break(()));
        }
        let changed = changed.cast::<PyArray1<f32>>()?.readonly();
        let changed = changed.as_slice()?;
        if changed.len() != logits.len() {
            let (got, expected) = (changed.len(), logits.len());
            let text = format!("a logits processor returned {got} logits; {expected} are expected");
            return Err(PyValueError::new_err(text));
        }
        logits.copy_from_slice(changed);
        Ok(ControlFlow::Continue(()))
    }
}

impl LogitsProcessor for PythonProcessor {
    fn process(&self, answer: &[u32], logits: &mut [f32]) -> Result<ControlFlow<()>, String> {
        let outer = RUNNING.replace(Some(self.engine));
        let called = Python::try_attach(|py| self.call(py, answer, logits));
        RUNNING.set(outer);
        match called {
            Some(Ok(flow)) => Ok(flow),
            Some(Err(error)) => {
                let text = error.to_string();
                self.failure.set(error);
                Err(text)
            }
            None => Err("the interpreter is shutting down".to_owned()),
        }
    }
}
