//! The Python class `Stream`: the answer to a request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use oxidize_core::Token;
use oxidize_core::engine::{Completion, FinishReason, TokenStream};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{exception, runtime_error};
use crate::processor::{self, Failure};

/// Time between checks for signals: Ctrl-C arrives within it.
const SLICE: Duration = Duration::from_millis(50);

/// A token as Python sees it: its id, its text, and log probabilities if they were asked for.
type TokenTuple = (u32, String, Option<f32>, Vec<(u32, f32)>);

/// A token of the prompt: its id, and log probabilities unless it is the first.
type PromptTuple = (u32, Option<f32>, Vec<(u32, f32)>);

/// The answer behind a [`Stream`], which its engine can end.
pub(crate) struct Answer {
    stream: Mutex<Option<TokenStream>>,
    /// Set by the engine's end, also while another thread reads.
    is_closed: AtomicBool,
    /// Reason of the end, for the next reader.
    reason: Mutex<Option<&'static str>>,
    /// Number of the engine.
    engine: u64,
    /// The exception of the request's processor.
    failure: Option<Failure>,
    process: u32,
}

impl Answer {
    pub(crate) fn new(stream: TokenStream, engine: u64, failure: Option<Failure>) -> Answer {
        Answer {
            stream: Mutex::new(Some(stream)),
            is_closed: AtomicBool::new(false),
            reason: Mutex::default(),
            engine,
            failure,
            process: std::process::id(),
        }
    }

    /// Ends the request; later reads fail with `reason`.
    pub(crate) fn cancel(&self, reason: &'static str) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.is_closed.store(true, Ordering::Release);
        // A thread that reads drops the stream itself.
        if let Ok(mut stream) = self.stream.try_lock() {
            *stream = None;
        }
    }

    /// The next token; None at the end. Waits in slices, so that signals and the engine's end get through.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Token>> {
        self.check_process()?;
        processor::check_not_running(self.engine)?;
        loop {
            let slice = py.detach(|| {
                let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
                if self.is_closed.load(Ordering::Acquire) {
                    *stream = None;
                }
                stream.as_mut().map(|stream| stream.recv_timeout(SLICE))
            });
            match slice {
                None => return Err(self.closed()),
                Some(Poll::Ready(Some(token))) => {
                    return token.map(Some).map_err(|error| self.exception(error));
                }
                Some(Poll::Ready(None)) => return Ok(None),
                Some(Poll::Pending) => {
                    if let Err(interrupt) = py.check_signals() {
                        self.cancel("this answer was interrupted");
                        return Err(interrupt);
                    }
                }
            }
        }
    }

    /// The rest of the answer. This thread sleeps until it is complete, but for slices in which signals and the engine's end
    /// get through.
    fn rest(&self, py: Python<'_>) -> PyResult<Vec<Token>> {
        self.check_process()?;
        processor::check_not_running(self.engine)?;
        loop {
            let slice = py.detach(|| {
                let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
                if self.is_closed.load(Ordering::Acquire) {
                    *stream = None;
                }
                let stream = stream.as_mut()?;
                let ended = stream.wait_end(SLICE);
                Some(ended.then(|| stream.collect::<oxidize_core::Result<Vec<Token>>>()))
            });
            match slice {
                None => return Err(self.closed()),
                Some(Some(tokens)) => return tokens.map_err(|error| self.exception(error)),
                Some(None) => {
                    if let Err(interrupt) = py.check_signals() {
                        self.cancel("this answer was interrupted");
                        return Err(interrupt);
                    }
                }
            }
        }
    }

    /// The exception of the request's processor, or that of an error of the engine.
    fn exception(&self, error: oxidize_core::Error) -> PyErr {
        let raised = self.failure.as_ref().and_then(Failure::take);
        raised.unwrap_or_else(|| exception(error))
    }

    fn closed(&self) -> PyErr {
        let reason = *self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        runtime_error(reason.unwrap_or("this answer is closed"))
    }

    fn check_process(&self) -> PyResult<()> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(runtime_error(
                "this answer was begun before a fork; its engine stayed in the parent process (use multiprocessing's \
                 start method \"spawn\")",
            )),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // Cancelling in a forked process would wait for a lock that a thread of the parent may hold.
        if std::process::id() != self.process
            && let Ok(mut stream) = self.stream.try_lock()
            && let Some(stream) = stream.take()
        {
            Box::leak(Box::new(stream));
        }
    }
}

/// The tokens of an answer. Dropping the stream cancels the request.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct Stream(pub(crate) Arc<Answer>);

#[pymethods]
impl Stream {
    /// The next token: its id, text, log probability and the most likely ones; None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<TokenTuple>> {
        Ok(self.0.next(py)?.map(tuple))
    }

    /// Waits for the rest of the answer: all tokens.
    fn collect(&self, py: Python<'_>) -> PyResult<Vec<TokenTuple>> {
        Ok(self.0.rest(py)?.into_iter().map(tuple).collect())
    }

    /// The next token if there is one; False if there is none yet, and then `key` comes to `queue` when there is.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        queue: &ReadyQueue,
        key: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.0.check_process()?;
        let waker = Waker::from(Arc::new(QueueWaker {
            queue: queue.0.clone(),
            key,
        }));
        let polled = {
            let mut stream = self.0.stream.lock().unwrap_or_else(PoisonError::into_inner);
            match stream.as_mut() {
                None => return Err(self.0.closed()),
                Some(stream) => loop {
                    use oxidize_core::engine::StreamEvent;
                    match stream.poll_event(&mut Context::from_waker(&waker)) {
                        Poll::Ready(Some(Ok(StreamEvent::Token(token)))) => {
                            break Poll::Ready(Some(Ok(token)));
                        }
                        Poll::Ready(Some(Ok(_))) => {}
                        Poll::Ready(Some(Err(error))) => break Poll::Ready(Some(Err(error))),
                        Poll::Ready(None) => break Poll::Ready(None),
                        Poll::Pending => break Poll::Pending,
                    }
                },
            }
        };
        match polled {
            Poll::Pending => Ok(false.into_pyobject(py)?.to_owned().into_any()),
            Poll::Ready(None) => Ok(py.None().into_bound(py)),
            Poll::Ready(Some(token)) => Ok(tuple(token.map_err(|error| self.0.exception(error))?)
                .into_pyobject(py)?
                .into_any()),
        }
    }

    /// The end of the answer, once the last token was read: finish reason, counts, timings in seconds.
    fn completion<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let stream = self.0.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let completion = stream.as_ref().and_then(|stream| stream.completion());
        completion.map(|end| completion_dict(py, end)).transpose()
    }

    /// Tokens of the prompt with their log probability and the most likely tokens, if asked for.
    fn prompt_logprobs(&self) -> Vec<PromptTuple> {
        let stream = self.0.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = stream.iter().flat_map(|stream| stream.prompt_logprobs());
        tokens
            .map(|token| match &token.score {
                Some(score) => (token.id, Some(score.logprob), score.top.clone()),
                None => (token.id, None, Vec::new()),
            })
            .collect()
    }

    /// Ends the request.
    fn cancel(&self) {
        self.0.cancel("this answer was cancelled");
    }
}

fn tuple(token: Token) -> TokenTuple {
    (token.id, token.text, token.logprob, token.top)
}

fn completion_dict<'py>(py: Python<'py>, end: &Completion) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let reason = match end.finish_reason {
        FinishReason::Length | FinishReason::ContextFull => "length",
        _ => "stop",
    };
    dict.set_item("finish_reason", reason)?;
    dict.set_item("prompt_tokens", end.prompt_tokens)?;
    dict.set_item("cached_tokens", end.cached_tokens)?;
    dict.set_item("completion_tokens", end.generated_tokens)?;
    dict.set_item("end_token", end.end_token.as_ref().map(|token| token.id))?;
    dict.set_item("seed", end.seed)?;
    dict.set_item("queued", end.timings.queued.as_secs_f64())?;
    dict.set_item("prompt_time", end.timings.prompt.as_secs_f64())?;
    dict.set_item("generation_time", end.timings.generation.as_secs_f64())?;
    Ok(dict)
}

/// Keys of streams that have a token, for a thread that wakes the tasks that wait for them.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct ReadyQueue(Arc<Queue>);

#[derive(Default)]
struct Queue {
    keys: Mutex<VecDeque<u64>>,
    ready: Condvar,
}

/// Puts a key into a queue, without Python: the engine's thread never waits for the interpreter.
struct QueueWaker {
    queue: Arc<Queue>,
    key: u64,
}

impl Wake for QueueWaker {
    fn wake(self: Arc<Self>) {
        let mut keys = self
            .queue
            .keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        keys.push_back(self.key);
        drop(keys);
        self.queue.ready.notify_one();
    }
}

#[pymethods]
impl ReadyQueue {
    #[new]
    fn new() -> ReadyQueue {
        ReadyQueue(Arc::default())
    }

    /// Waits at most `timeout` seconds for keys, and takes them.
    fn wait(&self, py: Python<'_>, timeout: f64) -> Vec<u64> {
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(SLICE);
        py.detach(|| {
            let mut keys = self.0.keys.lock().unwrap_or_else(PoisonError::into_inner);
            if keys.is_empty() {
                let waited = self.0.ready.wait_timeout(keys, timeout);
                keys = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            keys.drain(..).collect()
        })
    }
}
