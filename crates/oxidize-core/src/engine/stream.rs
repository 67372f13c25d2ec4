//! [`TokenStream`]: the answer to one request, as an iterator and as an async stream.

use super::request::{Completion, EngineError, Event, PromptToken, StreamEvent, Token};
use crate::clock::Instant;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The tokens of an answer, as an [`Iterator`] and as an async [`Stream`](futures_core::Stream).
///
/// Dropping the stream cancels the request.
///
/// ```no_run
/// # fn main() -> Result<(), oxidize::Error> {
/// # let engine = oxidize::Engine::new(oxidize::Model::load("model.gguf")?)?;
/// let mut stream = engine.chat("Why is the sky blue?")?;
/// for token in &mut stream {
///     print!("{}", token?.text);
/// }
/// if let Some(completion) = stream.completion() {
///     eprintln!("{} tokens", completion.generated_tokens);
/// }
/// # Ok(())
/// # }
/// ```
pub struct TokenStream {
    channel: Arc<Channel>,
    completion: Option<Completion>,
    prompt: Vec<PromptToken>,
    cancel: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// A queue with one writer, the engine, and one reader, the [`TokenStream`].
#[derive(Default)]
pub(super) struct Channel {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    events: VecDeque<Result<Event>>,
    closed: bool,
    /// True while the reader waits for the end, and not for single events.
    waits_for_end: bool,
    waker: Option<Waker>,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, event: Event) {
        let closed = matches!(event, Event::Completion(_));
        self.push(Ok(event), closed);
    }

    pub(super) fn fail(&self, error: impl Into<Error>) {
        self.push(Err(error.into()), true);
    }

    /// Waits for the next event, at most `timeout` if there is one. `Ready(None)` when no more will come.
    fn recv(&self, timeout: Option<Duration>) -> Poll<Option<Result<Event>>> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(event) = state.events.pop_front() {
                return Poll::Ready(Some(event));
            }
            if state.closed {
                return Poll::Ready(None);
            }
            if cfg!(target_family = "wasm") {
                // The engine is stepped by this thread, so waiting would never end.
                return match timeout {
                    Some(_) => Poll::Pending,
                    None => {
                        state.closed = true;
                        Poll::Ready(Some(Err(EngineError::WouldBlock.into())))
                    }
                };
            }
            state = match timeout {
                None => self
                    .ready
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let Some(left) = timeout.checked_sub(start.elapsed()) else {
                        return Poll::Pending;
                    };
                    let waited = self.ready.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Waits until no more events will come, at most `timeout` if there is one; true if so. The reader sleeps until then:
    /// waking it for each token would take time from the threads that compute the next one.
    fn wait_closed(&self, timeout: Option<Duration>) -> bool {
        let start = Instant::now();
        let mut state = self.lock();
        state.waits_for_end = true;
        while !state.closed {
            state = match timeout {
                None => self
                    .ready
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let Some(left) = timeout.checked_sub(start.elapsed()) else {
                        break;
                    };
                    let waited = self.ready.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.waits_for_end = false;
        state.closed
    }

    fn push(&self, event: Result<Event>, closed: bool) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.events.push_back(event);
        state.closed = closed;
        let waker = state.waker.take();
        let wakes = closed || !state.waits_for_end;
        drop(state);
        if wakes {
            self.ready.notify_one();
        }
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
            completion: None,
            prompt: Vec::new(),
            cancel: Some(Box::new(cancel)),
        }
    }

    /// Finish reason, usage and timings of the answer; `None` until the last token was read.
    pub fn completion(&self) -> Option<&Completion> {
        self.completion.as_ref()
    }

    /// Tokens of the prompt with their scores, if [`Request::prompt_logprobs`](super::Request::prompt_logprobs)
    /// asks for them; all of them once the first token or the end was read.
    pub fn prompt_logprobs(&self) -> &[PromptToken] {
        &self.prompt
    }

    /// Takes the tokens that [`prompt_logprobs`](Self::prompt_logprobs) returns.
    pub fn take_prompt_logprobs(&mut self) -> Vec<PromptToken> {
        std::mem::take(&mut self.prompt)
    }

    /// Polls for the next token, or for progress of the prompt.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<StreamEvent>>> {
        loop {
            let event = {
                let mut state = self.channel.lock();
                match state.events.pop_front() {
                    Some(event) => event,
                    None if state.closed => return Poll::Ready(None),
                    None => {
                        state.waker = Some(context.waker().clone());
                        return Poll::Pending;
                    }
                }
            };
            if let Some(event) = self.event(event) {
                return Poll::Ready(event);
            }
        }
    }

    /// Waits for the whole answer and returns its text.
    pub fn text(self) -> Result<String> {
        Ok(self.collect_text()?.0)
    }

    /// Waits for the whole answer and returns its text and its [`Completion`].
    pub fn collect_text(mut self) -> Result<(String, Completion)> {
        self.channel.wait_closed(None);
        let mut text = String::new();
        for token in &mut self {
            text.push_str(&token?.text);
        }
        match self.completion.take() {
            Some(completion) => Ok((text, completion)),
            None => Err(super::EngineError::Stopped.into()),
        }
    }

    /// Waits for the end of the answer, at most `timeout`; true if all of its tokens can be read without waiting.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    #[cfg_attr(not(feature = "unstable"), allow(dead_code))]
    pub(crate) fn wait_end(&self, timeout: Duration) -> bool {
        self.channel.wait_closed(Some(timeout))
    }

    /// The next token, from async code; `None` at the end. Any executor will do.
    ///
    /// ```no_run
    /// # async fn answer(engine: oxidize::Engine) -> Result<(), oxidize::Error> {
    /// let mut stream = engine.chat("Why is the sky blue?")?;
    /// while let Some(token) = stream.recv().await {
    ///     print!("{}", token?.text);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn recv(&mut self) -> Option<Result<Token>> {
        std::future::poll_fn(|context| {
            futures_core::Stream::poll_next(Pin::new(&mut *self), context)
        })
        .await
    }

    /// The next token if it is there: `Pending` if not, `Ready(None)` at the end. Never waits.
    ///
    /// ```no_run
    /// # fn frame(stream: &mut oxidize::TokenStream) -> Result<(), oxidize::Error> {
    /// use std::task::Poll;
    ///
    /// while let Poll::Ready(Some(token)) = stream.try_recv() {
    ///     print!("{}", token?.text);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_recv(&mut self) -> Poll<Option<Result<Token>>> {
        let mut context = Context::from_waker(Waker::noop());
        futures_core::Stream::poll_next(Pin::new(self), &mut context)
    }

    /// Waits at most `timeout` for the next token. `Pending` after a time-out, `Ready(None)` at the end.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Poll<Option<Result<Token>>> {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match self.channel.clone().recv(Some(left)) {
                Poll::Ready(Some(event)) => {
                    if let Some(token) = self.token(event) {
                        return Poll::Ready(token);
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// An event for the reader, `Some(None)` at the end. Keeps the scores of the prompt and the completion, which
    /// are none.
    fn event(&mut self, event: Result<Event>) -> Option<Option<Result<StreamEvent>>> {
        match event {
            Ok(Event::PromptLogprobs(mut tokens)) => {
                self.prompt.append(&mut tokens);
                None
            }
            Ok(Event::Progress(progress)) => Some(Some(Ok(StreamEvent::Progress(progress)))),
            Ok(Event::Token(token)) => Some(Some(Ok(StreamEvent::Token(token)))),
            Ok(Event::Completion(completion)) => {
                self.completion = Some(completion);
                Some(None)
            }
            Err(error) => Some(Some(Err(error))),
        }
    }

    /// Like [`event`](Self::event), for readers of tokens alone.
    fn token(&mut self, event: Result<Event>) -> Option<Option<Result<Token>>> {
        match self.event(event)? {
            Some(Ok(StreamEvent::Token(token))) => Some(Some(Ok(token))),
            Some(Ok(StreamEvent::Progress(_))) => None,
            Some(Err(error)) => Some(Some(Err(error))),
            None => Some(None),
        }
    }
}

impl Iterator for TokenStream {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Result<Token>> {
        loop {
            match self.channel.clone().recv(None) {
                Poll::Ready(Some(event)) => {
                    if let Some(token) = self.token(event) {
                        return token;
                    }
                }
                Poll::Ready(None) | Poll::Pending => return None,
            }
        }
    }
}

impl futures_core::Stream for TokenStream {
    type Item = Result<Token>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Token>>> {
        loop {
            return Poll::Ready(match std::task::ready!(self.poll_event(context)) {
                Some(Ok(StreamEvent::Progress(_))) => continue,
                Some(Ok(StreamEvent::Token(token))) => Some(Ok(token)),
                Some(Err(error)) => Some(Err(error)),
                None => None,
            });
        }
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}
