//! Errors of the engine as Python exceptions.

use oxidize_core::Error;
use oxidize_core::error::EngineError;
use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};

/// The exception for an error: ValueError for a mistake of the caller, OSError for files, else RuntimeError.
pub(crate) fn exception(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let text = error.to_string();
    match error {
        Error::Io { .. } => PyOSError::new_err(text),
        Error::Engine(EngineError::Internal(_) | EngineError::Stopped | EngineError::Thread(_))
        | Error::Backend(_) => PyRuntimeError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

/// RuntimeError with a message.
pub(crate) fn runtime_error(text: impl Into<String>) -> PyErr {
    PyRuntimeError::new_err(text.into())
}
