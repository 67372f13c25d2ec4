//! [`Choice`]: one answer, parsed from the engine's tokens into reasoning, content and tool calls.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use futures_core::Stream;
use oxidize_core::chat::{CallDelta, MessageDelta};
use oxidize_core::engine::{Completion, Token, TokenStream};

use super::{Delta, End, ResponseParser, Update};
use crate::answer::{FinishReason, TokenLogprob};
use crate::error::{ApiError, ApiResult};
use crate::models::{Loaded, Progress};

/// One answer of a generation.
pub(super) struct Choice {
    state: StreamState,
    stream: TokenStream,
    logprobs: Vec<TokenLogprob>,
    updates: VecDeque<Update>,
    n_calls: usize,
    ended: bool,
    pub(super) progress: Arc<Progress>,
}

/// Settings of an answer that the parsing of its stream depends on.
pub(super) struct StreamState {
    /// The model that generates the answer.
    pub(super) model: Arc<Loaded>,
    /// Index of the answer.
    pub(super) index: usize,
    /// Parser of the answer's text.
    pub(super) parser: ResponseParser,
    /// Stop strings of the request.
    pub(super) stops: Vec<String>,
    /// Reports tokens and log probabilities beside the text.
    pub(super) logprobs: bool,
    /// Prefix of the ids of tool calls for which the model generates none.
    pub(super) call_prefix: String,
}

impl Choice {
    /// The answer that `stream` generates.
    pub(super) fn new(stream: TokenStream, progress: Arc<Progress>, state: StreamState) -> Choice {
        Choice {
            state,
            stream,
            logprobs: Vec::new(),
            updates: VecDeque::new(),
            n_calls: 0,
            ended: false,
            progress,
        }
    }

    /// True if the answer has ended and every update was returned.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Polls for the next update.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<ApiResult<Update>> {
        loop {
            if let Some(update) = self.updates.pop_front() {
                self.ended = matches!(update, Update::End(_));
                return Poll::Ready(Ok(update));
            }
            match Pin::new(&mut self.stream).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(token))) => self.token(token),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => match self.stream.completion().cloned() {
                    Some(completion) => self.finish(completion),
                    None => {
                        return Poll::Ready(Err(ApiError::unavailable("the engine has stopped")));
                    }
                },
            }
        }
    }

    fn token(&mut self, token: Token) {
        self.progress.generated.fetch_add(1, Ordering::Relaxed);
        if self.state.logprobs
            && let Ok(tokenizer) = self.state.model.tokenizer()
        {
            self.logprobs.push(TokenLogprob::new(tokenizer, &token));
        }
        self.parse(&token.text);
    }

    fn parse(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match &mut self.state.parser {
            ResponseParser::Text => self.push(Delta::Content(text.to_owned())),
            ResponseParser::Message(parser) => {
                let deltas = parser.push(text);
                self.push_all(deltas);
            }
            ResponseParser::Calls(reader) => {
                for piece in reader.push(text) {
                    match piece {
                        CallDelta::Start { id, name } => self.start_call(id, name),
                        CallDelta::Arguments(text) => self.arguments(text),
                    }
                }
            }
        }
    }

    fn push_all(&mut self, deltas: Vec<MessageDelta>) {
        for delta in deltas {
            match delta {
                MessageDelta::Reasoning(text) => self.push(Delta::Reasoning(text)),
                MessageDelta::Content(text) => self.push(Delta::Content(text)),
                MessageDelta::ToolCall(call) => {
                    let arguments = call.function.arguments_as_text();
                    self.start_call(call.id, call.function.name);
                    self.arguments(arguments);
                }
                MessageDelta::CallStart { id, name } => self.start_call(id, name),
                MessageDelta::CallArguments(text) => self.arguments(text),
            }
        }
    }

    fn start_call(&mut self, id: Option<String>, name: String) {
        let index = self.n_calls;
        self.n_calls += 1;
        let id = id.unwrap_or_else(|| format!("{}_{index}", self.state.call_prefix));
        self.push(Delta::CallStart { index, id, name });
    }

    fn arguments(&mut self, text: String) {
        let index = self.n_calls.saturating_sub(1);
        self.push(Delta::CallArguments { index, text });
    }

    fn push(&mut self, delta: Delta) {
        self.updates.push_back(Update::Delta {
            choice: self.state.index,
            delta,
            logprobs: std::mem::take(&mut self.logprobs),
        });
    }

    fn finish(&mut self, completion: Completion) {
        if let ResponseParser::Message(parser) = &mut self.state.parser {
            let rest = parser.finish();
            self.push_all(rest);
        }
        let reason = FinishReason::new(
            completion.finish_reason,
            &self.state.stops,
            self.n_calls > 0,
        );
        self.updates.push_back(Update::End(Box::new(End {
            choice: self.state.index,
            reason,
            logprobs: std::mem::take(&mut self.logprobs),
            completion,
        })));
    }
}
