//! Streams: the answer to a request, token by token. One thread reads; any thread may cancel.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use oxidize_core::engine::{Completion, StreamEvent};
use oxidize_core::{Token, TokenStream};

use crate::handle::{self, Kind};
use crate::pointer;
use crate::status::{Failure, Status, entry};

/// Handle of a stream.
pub type StreamHandle = u64;

/// A token of an answer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StreamToken {
    /// Token id.
    pub id: u32,
    /// Log probability, or NaN if the request did not ask for it.
    pub logprob: f32,
    /// Bytes of its text, without the NUL. 0 while a character or a stop text may be incomplete.
    pub text_length: usize,
    /// Number of the most likely tokens, for `oxidize_stream_top_logprobs`.
    pub n_top: usize,
}

/// A token and its log probability.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TokenLogprob {
    /// Token id.
    pub id: u32,
    /// Log probability.
    pub logprob: f32,
}

/// Reason why an answer ended.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its answer, or the grammar is complete.
    EndOfText = 0,
    /// A stop text occurred.
    StopText = 1,
    /// A stop token was sampled.
    StopToken = 2,
    /// `max_tokens` was reached.
    Length = 3,
    /// The context is full.
    ContextFull = 4,
    /// The request was canceled.
    Canceled = 5,
}

/// The end of an answer. For a canceled request, `finish_reason` and `generated_tokens` are known; the rest is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StreamResult {
    /// Reason for the end.
    pub finish_reason: FinishReason,
    /// Index of the stop text that occurred, or -1.
    pub stop_index: i32,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub generated_tokens: u64,
    /// Tokens of the answer that belong to reasoning before it.
    pub reasoning_tokens: u64,
    /// The token that ended the answer and is not part of it, or -1.
    pub end_token: i64,
    /// Seed of the sampler.
    pub seed: u64,
    /// Seconds from submission to the first step.
    pub queued_seconds: f64,
    /// Seconds from the first step to the first token.
    pub prompt_seconds: f64,
    /// Seconds from the first token to the last.
    pub generation_seconds: f64,
}

/// Function that receives a token, its text of `token->text_length` bytes and a NUL, and `user_data`. A result other than
/// 0 cancels the request.
///
/// The token and the text are valid during the call. It is called on the thread that reads. It must return: no
/// exceptions, no `longjmp`. It may call any function of the library.
pub type TokenCallback = Option<
    unsafe extern "C" fn(
        token: *const StreamToken,
        text: *const c_char,
        user_data: *mut c_void,
    ) -> i32,
>;

/// End of an answer that the engine did not bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By `oxidize_stream_cancel`, a callback, or `oxidize_stream_free`.
    Canceled,
    /// By `oxidize_engine_free`.
    Stopped,
}

/// The answer to a request.
pub(crate) struct Stream {
    /// Locked by the thread that reads.
    reader: Mutex<Reader>,
    signal: Arc<Signal>,
}

struct Reader {
    /// The engine's tokens; `None` after the end, so that the engine is free of the request.
    tokens: Option<TokenStream>,
    /// A token whose text did not fit the buffer of the caller.
    undelivered: Option<Token>,
    /// The most likely tokens at the place of the last token.
    top: Vec<(u32, f32)>,
    n_delivered: u64,
    outcome: Option<Result<StreamResult, Failure>>,
}

/// Wakes the thread that reads: a token is ready, or the answer was ended.
#[derive(Default)]
struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Default)]
struct SignalState {
    is_ready: bool,
    ended: Option<End>,
}

impl Kind for Stream {
    const NAME: &'static str = "a stream";
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, SignalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; false if there is none before the deadline.
    fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.lock();
        while !state.is_ready && state.ended.is_none() {
            state = match deadline {
                None => {
                    let waited = self.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.is_ready = false;
        true
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.lock().is_ready = true;
        self.changed.notify_all();
    }
}

impl Stream {
    pub(crate) fn new(tokens: TokenStream) -> Stream {
        Stream {
            reader: Mutex::new(Reader {
                tokens: Some(tokens),
                undelivered: None,
                top: Vec::new(),
                n_delivered: 0,
                outcome: None,
            }),
            signal: Arc::default(),
        }
    }

    /// Ends the request. A thread that is waiting for a token stops waiting.
    pub(crate) fn end(&self, end: End) {
        self.signal.lock().ended.get_or_insert(end);
        self.signal.changed.notify_all();
        self.release();
    }

    /// Drops the engine's tokens if the answer was ended, unless a thread is reading: that calls this when it is done.
    fn release(&self) {
        let ended = self.signal.lock().ended;
        if let (Some(end), Some(mut reader)) = (ended, self.try_lock()) {
            reader.end(end);
        }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Reader>> {
        match self.reader.try_lock() {
            Ok(reader) => Some(reader),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Calls `read` as the one thread that reads.
    fn read<T>(
        &self,
        read: impl FnOnce(&mut Reader, &Arc<Signal>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(mut reader) = self.try_lock() else {
            let message = "another thread is reading this stream";
            return Err(Failure::new(Status::Busy, message));
        };
        let result = read(&mut reader, &self.signal);
        drop(reader);
        // Whoever ended the answer meanwhile found the lock taken.
        self.release();
        result
    }
}

/// Result of a read.
enum Next {
    Token(Token),
    Pending,
    End,
}

impl Reader {
    fn next(&mut self, signal: &Arc<Signal>, deadline: Option<Instant>) -> Result<Next, Failure> {
        let waker = Waker::from(signal.clone());
        loop {
            if let Some(end) = signal.lock().ended {
                self.end(end);
            }
            if let Some(outcome) = &self.outcome {
                return outcome.clone().map(|_| Next::End);
            }
            if let Some(token) = self.undelivered.take() {
                return Ok(Next::Token(token));
            }
            let Some(tokens) = &mut self.tokens else {
                return Ok(Next::End);
            };
            match tokens.poll_event(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(Ok(StreamEvent::Token(token)))) => return Ok(Next::Token(token)),
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => self.finish(Err(error.into())),
                Poll::Ready(None) => {
                    let result = match tokens.completion() {
                        Some(completion) => Ok(result_of(completion)),
                        None => Err(stopped()),
                    };
                    self.finish(result);
                }
                Poll::Pending if signal.wait(deadline) => {}
                Poll::Pending => return Ok(Next::Pending),
            }
        }
    }

    fn finish(&mut self, outcome: Result<StreamResult, Failure>) {
        self.tokens = None;
        self.outcome.get_or_insert(outcome);
    }

    fn end(&mut self, end: End) {
        let outcome = match end {
            End::Canceled => Ok(canceled(self.n_delivered)),
            End::Stopped => Err(stopped()),
        };
        self.finish(outcome);
    }

    /// Notes that the caller has a token.
    fn deliver(&mut self, token: &mut Token) {
        self.n_delivered += 1;
        self.top = std::mem::take(&mut token.top);
    }
}

fn stopped() -> Failure {
    Failure::new(Status::Stopped, "the engine of this stream has stopped")
}

fn canceled(generated_tokens: u64) -> StreamResult {
    StreamResult {
        finish_reason: FinishReason::Canceled,
        stop_index: -1,
        prompt_tokens: 0,
        cached_tokens: 0,
        generated_tokens,
        reasoning_tokens: 0,
        end_token: -1,
        seed: 0,
        queued_seconds: 0.0,
        prompt_seconds: 0.0,
        generation_seconds: 0.0,
    }
}

fn result_of(completion: &Completion) -> StreamResult {
    use oxidize_core::FinishReason as Reason;
    let (finish_reason, stop_index) = match completion.finish_reason {
        Reason::StopString(index) => (
            FinishReason::StopText,
            i32::try_from(index).unwrap_or(i32::MAX),
        ),
        Reason::StopToken(_) => (FinishReason::StopToken, -1),
        Reason::Length => (FinishReason::Length, -1),
        Reason::ContextFull => (FinishReason::ContextFull, -1),
        _ => (FinishReason::EndOfText, -1),
    };
    let end_token = completion.end_token.as_ref();
    StreamResult {
        finish_reason,
        stop_index,
        prompt_tokens: completion.prompt_tokens as u64,
        cached_tokens: completion.cached_tokens as u64,
        generated_tokens: completion.generated_tokens as u64,
        reasoning_tokens: completion.reasoning_tokens as u64,
        end_token: end_token.map_or(-1, |token| i64::from(token.id)),
        seed: completion.seed,
        queued_seconds: completion.timings.queued.as_secs_f64(),
        prompt_seconds: completion.timings.prompt.as_secs_f64(),
        generation_seconds: completion.timings.generation.as_secs_f64(),
    }
}

fn describe(token: &Token) -> StreamToken {
    StreamToken {
        id: token.id,
        logprob: token.logprob.unwrap_or(f32::NAN),
        text_length: token.text.len(),
        n_top: token.top.len(),
    }
}

/// Waits for the next token, and copies its text into `buffer`.
///
/// Waits at most `timeout_ms` milliseconds, not at all with 0, and as long as it takes with a negative number. Returns
/// `OXIDIZE_STATUS_OK` with a token, `OXIDIZE_STATUS_END` after the last, or `OXIDIZE_STATUS_PENDING` if there is none
/// yet. If the text and a NUL do not fit into `capacity` bytes, `token->text_length` has its length, and the next call
/// returns the same token.
///
/// # Safety
///
/// `token` points to room for an `oxidize_stream_token`; `buffer` points to `capacity` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_stream_next(
    stream: StreamHandle,
    timeout_ms: i64,
    token: *mut StreamToken,
    buffer: *mut c_char,
    capacity: usize,
) -> Status {
    entry(|| {
        let nothing = StreamToken {
            id: 0,
            logprob: f32::NAN,
            text_length: 0,
            n_top: 0,
        };
        // SAFETY: the caller promises room for a token.
        unsafe { pointer::write("token", token, nothing)? };
        let stream = handle::get::<Stream>(stream)?;
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // A time too far for the clock is forever.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        stream.read(|reader, signal| {
            let mut next = match reader.next(signal, deadline)? {
                Next::Token(next) => next,
                Next::Pending => return Ok(Status::Pending),
                Next::End => return Ok(Status::End),
            };
            // SAFETY: the caller promises room for a token, and `capacity` bytes.
            let written = unsafe {
                pointer::write("token", token, describe(&next))?;
                pointer::write_text(&next.text, buffer, capacity, std::ptr::null_mut())
            };
            match written {
                Ok(_) => reader.deliver(&mut next),
                Err(_) => reader.undelivered = Some(next),
            }
            written
        })
    })
}

/// Copies the most likely tokens at the place of the token that was read last into `entries`, most likely first.
///
/// # Safety
///
/// `entries` points to room for `capacity` elements; `n_entries` is null or points to room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_stream_top_logprobs(
    stream: StreamHandle,
    entries: *mut TokenLogprob,
    capacity: usize,
    n_entries: *mut usize,
) -> Status {
    entry(|| {
        let stream = handle::get::<Stream>(stream)?;
        let top = stream.read(|reader, _| Ok(reader.top.clone()))?;
        let top = top.into_iter();
        let top: Vec<_> = top
            .map(|(id, logprob)| TokenLogprob { id, logprob })
            .collect();
        // SAFETY: the caller promises room for `capacity` elements, and for a number or null.
        unsafe { pointer::write_slice(&top, entries, capacity, n_entries) }
    })
}

thread_local! {
    /// Callbacks that are running on this thread, one inside the other.
    static CALLBACKS: Cell<usize> = const { Cell::new(0) };
}

/// True below a callback that received a token.
pub(crate) fn is_in_callback() -> bool {
    CALLBACKS.try_with(Cell::get).unwrap_or(0) > 0
}

/// Reads a stream to its end, and passes every token to `callback`, which may be null. Returns `OXIDIZE_STATUS_END` at
/// the end of the answer, also if the callback or another thread canceled it; `oxidize_stream_get_result` has the reason.
///
/// # Safety
///
/// `callback` is null or a function of its type that accepts `user_data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_stream_read(
    stream: StreamHandle,
    callback: TokenCallback,
    user_data: *mut c_void,
) -> Status {
    entry(|| {
        let stream = handle::get::<Stream>(stream)?;
        loop {
            let next = stream.read(|reader, signal| {
                let mut next = reader.next(signal, None)?;
                let described = match &mut next {
                    Next::Token(token) => {
                        let described = describe(token);
                        reader.deliver(token);
                        Some(described)
                    }
                    _ => None,
                };
                Ok((next, described))
            })?;
            let (Next::Token(token), Some(described)) = next else {
                return Ok(Status::End);
            };
            let Some(callback) = callback else {
                continue;
            };
            let mut text = token.text.into_bytes();
            text.push(0);
            CALLBACKS.with(|n| n.set(n.get() + 1));
            // SAFETY: the caller promises a function of this type; the token and the text, which ends with NUL, are
            // local variables that live longer than the call.
            let answer = unsafe { callback(&raw const described, text.as_ptr().cast(), user_data) };
            CALLBACKS.with(|n| n.set(n.get() - 1));
            if answer != 0 {
                stream.end(End::Canceled);
            }
        }
    })
}

/// Cancels a request, from any thread. A thread that is reading gets `OXIDIZE_STATUS_END`. Nothing happens after the end.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_stream_cancel(stream: StreamHandle) -> Status {
    entry(|| {
        handle::get::<Stream>(stream)?.end(End::Canceled);
        Ok(Status::Ok)
    })
}

/// Copies the finish reason, counts and timings of an answer that was read to its end. Before the end, it returns
/// `OXIDIZE_STATUS_PENDING`; for an answer that failed, the failure.
///
/// # Safety
///
/// `result` points to room for an `oxidize_stream_result`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oxidize_stream_get_result(
    stream: StreamHandle,
    result: *mut StreamResult,
) -> Status {
    entry(|| {
        let stream = handle::get::<Stream>(stream)?;
        let outcome = stream.read(|reader, signal| {
            if let Some(end) = signal.lock().ended {
                reader.end(end);
            }
            reader.outcome.clone().transpose()
        })?;
        let Some(outcome) = outcome else {
            return Ok(Status::Pending);
        };
        // SAFETY: the caller promises room for a result.
        unsafe { pointer::write("result", result, outcome)? };
        Ok(Status::Ok)
    })
}

/// Frees a stream, and cancels its request unless it has ended. A thread that is reading gets `OXIDIZE_STATUS_END`.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_stream_free(stream: StreamHandle) -> Status {
    entry(|| {
        handle::remove::<Stream>(stream)?.end(End::Canceled);
        Ok(Status::Ok)
    })
}
