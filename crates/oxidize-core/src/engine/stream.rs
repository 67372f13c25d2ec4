//! [`TokenStream`]: the answer to one request, as an iterator and as an async stream.

use super::request::Event;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The events of a request. Dropping it cancels the request.
pub struct TokenStream {
    channel: Arc<Channel>,
    cancel: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// A queue with one writer, the engine, and one reader.
#[derive(Default)]
pub(super) struct Channel {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    events: VecDeque<Result<Event>>,
    closed: bool,
    waker: Option<Waker>,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, event: Event) {
        let closed = matches!(event, Event::Finished(_));
        self.push(Ok(event), closed);
    }

    pub(super) fn fail(&self, error: impl Into<Error>) {
        self.push(Err(error.into()), true);
    }

    fn push(&self, event: Result<Event>, closed: bool) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.events.push_back(event);
        state.closed = closed;
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl TokenStream {
    pub(super) fn new(
        channel: Arc<Channel>,
        cancel: impl FnOnce() + Send + Sync + 'static,
    ) -> TokenStream {
        TokenStream {
            channel,
            cancel: Some(Box::new(cancel)),
        }
    }

    /// The next event, if it comes within `patience`; for those who have something else to watch.
    pub fn next_within(&mut self, patience: Duration) -> Poll<Option<Result<Event>>> {
        let start = Instant::now();
        let mut state = self.channel.lock();
        loop {
            if let Some(event) = state.events.pop_front() {
                return Poll::Ready(Some(event));
            }
            if state.closed {
                return Poll::Ready(None);
            }
            let Some(left) = patience.checked_sub(start.elapsed()) else {
                return Poll::Pending;
            };
            let waited = self.channel.ready.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reads the answer to its end: its text and how it ended.
    pub fn collect_text(self) -> Result<(String, super::Finished)> {
        let mut text = String::new();
        for event in self {
            match event? {
                Event::Token(token) => text.push_str(&token.text),
                Event::Finished(finished) => {
                    text.push_str(&finished.text);
                    return Ok((text, finished));
                }
            }
        }
        Err(super::EngineError::Stopped.into())
    }
}

impl Iterator for TokenStream {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        let mut state = self.channel.lock();
        loop {
            if let Some(event) = state.events.pop_front() {
                return Some(event);
            }
            if state.closed {
                return None;
            }
            state = self
                .channel
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl futures_core::Stream for TokenStream {
    type Item = Result<Event>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        let mut state = self.channel.lock();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}
