//! [`Choice`]: one answer, parsed from the engine's tokens into reasoning, content and tool calls.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use oxidize_core::chat::{CallDelta, MessageDelta};
use oxidize_core::engine::{BeamSequence, Completion, StreamEvent, Token, TokenStream};

use super::{Delta, End, ResponseParser, Update};
use crate::answer::{FinishReason, PromptLogprob, TokenLogprob};
use crate::error::{ApiError, ApiResult};
use crate::models::{Loaded, Progress};

/// One answer of a generation.
pub(super) struct Choice {
    state: StreamState,
    source: Source,
    logprobs: Vec<TokenLogprob>,
    updates: VecDeque<Update>,
    n_calls: usize,
    /// Text so far, for the log.
    logged: String,
    ended: bool,
    pub(super) progress: Arc<Progress>,
}

/// The tokens of an answer.
pub(super) enum Source {
    /// From the engine.
    Stream(TokenStream),
    /// Found by a search.
    Found(VecDeque<Token>, Completion),
}

impl Source {
    /// An answer that a beam search has found, as one piece of text.
    pub(super) fn found(answer: BeamSequence, prompt_tokens: usize, took: Duration) -> Source {
        let (text, completion) = answer.into_stream_parts(prompt_tokens, took);
        Source::Found(VecDeque::from([text]), completion)
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<oxidize_core::Result<StreamEvent>>> {
        match self {
            Source::Stream(stream) => stream.poll_event(context),
            Source::Found(tokens, _) => Poll::Ready(
                tokens
                    .pop_front()
                    .map(|token| Ok(StreamEvent::Token(token))),
            ),
        }
    }

    fn completion(&self) -> Option<&Completion> {
        match self {
            Source::Stream(stream) => stream.completion(),
            Source::Found(_, completion) => Some(completion),
        }
    }
}

/// Settings of an answer that the parsing of its stream depends on.
pub(super) struct StreamState {
    /// The model that generates the answer.
    pub(super) model: Arc<Loaded>,
    /// Index of the answer.
    pub(super) index: usize,
    /// Parser of the answer's text.
    pub(super) parser: ResponseParser,
    /// Leaves reasoning out of the answer.
    pub(super) hide_reasoning: bool,
    /// Stop strings of the request.
    pub(super) stops: Vec<String>,
    /// Reports tokens and log probabilities beside the text.
    pub(super) logprobs: bool,
    /// Reports the token that ends the answer like the others, as clients that score prompts expect.
    pub(super) scores_end: bool,
    /// Name of the client, if answers are logged.
    pub(super) log: Option<String>,
    /// Prefix of the ids of tool calls for which the model generates none.
    pub(super) call_prefix: String,
}

impl Choice {
    /// The answer of `source`.
    pub(super) fn new(source: Source, progress: Arc<Progress>, state: StreamState) -> Choice {
        Choice {
            state,
            source,
            logprobs: Vec::new(),
            updates: VecDeque::new(),
            n_calls: 0,
            logged: String::new(),
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
            match self.source.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(StreamEvent::Progress(progress)))) => {
                    self.updates.push_back(Update::Progress {
                        choice: self.state.index,
                        progress,
                    });
                }
                Poll::Ready(Some(Ok(StreamEvent::Token(token)))) => {
                    self.prompt();
                    self.token(token);
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => match self.source.completion().cloned() {
                    Some(completion) => self.finish(completion),
                    None => {
                        return Poll::Ready(Err(ApiError::unavailable("the engine has stopped")));
                    }
                },
            }
        }
    }

    /// Reports the scores of the prompt, which are complete before the first token.
    fn prompt(&mut self) {
        let Source::Stream(stream) = &mut self.source else {
            return;
        };
        let tokens = stream.take_prompt_logprobs();
        if !tokens.is_empty()
            && let Ok(tokenizer) = self.state.model.tokenizer()
        {
            let tokens = tokens
                .iter()
                .map(|token| PromptLogprob::new(tokenizer, token));
            self.updates.push_back(Update::Prompt {
                choice: self.state.index,
                tokens: tokens.collect(),
            });
        }
    }

    fn token(&mut self, token: Token) {
        if self.state.log.is_some() {
            self.logged.push_str(&token.text);
        }
        self.progress.generated.fetch_add(1, Ordering::Relaxed);
        // A token without log probability carries the rest of the text.
        if self.state.logprobs
            && token.logprob.is_some()
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
            ResponseParser::Calls(None, _) => self.read_calls(text),
            ResponseParser::Calls(Some(parser), _) => {
                let deltas = parser.push(text);
                self.push_before_calls(deltas);
            }
        }
    }

    /// Adds reasoning, and the text of calls that follows it.
    fn push_before_calls(&mut self, deltas: Vec<MessageDelta>) {
        for delta in deltas {
            match delta {
                MessageDelta::Content(text) => self.read_calls(&text),
                other => self.push_all(vec![other]),
            }
        }
    }

    /// Adds the text of an answer that consists of calls.
    fn read_calls(&mut self, text: &str) {
        let ResponseParser::Calls(_, reader) = &mut self.state.parser else {
            return;
        };
        for piece in reader.push(text) {
            match piece {
                CallDelta::Start { id, name } => self.start_call(id, name),
                CallDelta::Arguments(text) => self.arguments(text),
            }
        }
    }

    fn push_all(&mut self, deltas: Vec<MessageDelta>) {
        for delta in deltas {
            match delta {
                MessageDelta::Reasoning(_) if self.state.hide_reasoning => {}
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
        self.prompt();
        match &mut self.state.parser {
            ResponseParser::Text | ResponseParser::Calls(None, _) => {}
            ResponseParser::Message(parser) => {
                let rest = parser.finish();
                self.push_all(rest);
            }
            ResponseParser::Calls(Some(parser), _) => {
                let rest = parser.finish();
                self.push_before_calls(rest);
            }
        }
        if self.state.scores_end
            && let Some(end) = &completion.end_token
            && let Ok(tokenizer) = self.state.model.tokenizer()
        {
            self.logprobs.push(TokenLogprob::new(tokenizer, end));
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

/// Logs the answer however it ends, if answers are logged.
impl Drop for Choice {
    fn drop(&mut self) {
        if let Some(client) = &self.state.log {
            let (answer, complete) = (&self.logged, self.ended);
            tracing::info!(client, answer, complete, "answer");
        }
    }
}
