//! [`Owned`]: a value with threads, which can be closed and does not survive a fork.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::PyResult;

use crate::error::runtime_error;

/// A value that belongs to the process that made it, until it is closed.
///
/// A fork copies the memory of the engine and none of its threads: whatever would wait for them would wait forever.
pub(crate) struct Owned<T> {
    value: Mutex<Option<T>>,
    process: u32,
    /// Name in messages.
    name: &'static str,
}

impl<T> Owned<T> {
    pub(crate) fn new(name: &'static str, value: T) -> Owned<T> {
        Owned {
            value: Mutex::new(Some(value)),
            process: std::process::id(),
            name,
        }
    }

    /// Fails in a forked process.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.is_forked() {
            return Err(runtime_error(format!(
                "this {} was made before a fork, and its threads stayed in the parent process; \
                 load the model in the child, or use multiprocessing's start method \"spawn\"",
                self.name
            )));
        }
        Ok(())
    }

    /// Calls `work` with the value, alone. Fails if the value is closed, or this is a forked process.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> PyResult<R>) -> PyResult<R> {
        self.check_process()?;
        match self.lock().as_mut() {
            Some(value) => work(value),
            None => Err(runtime_error(format!("this {} is closed", self.name))),
        }
    }

    /// Takes the value out. In a forked process it is left in memory, because dropping it would wait for threads.
    pub(crate) fn close(&self) -> Option<T> {
        if self.is_forked() {
            return None;
        }
        self.lock().take()
    }

    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.is_forked() {
            // A thread of the parent may hold the lock, so this must not wait for it.
            let value = match self.value.try_lock() {
                Ok(mut value) => value.take(),
                Err(_) => None,
            };
            if let Some(value) = value {
                Box::leak(Box::new(value));
            }
        }
    }
}
