//! [`Choice`]: one answer, read from the engine's tokens as text, reasoning and calls.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use futures_core::Stream;
use oxidize_core::chat::{AnswerDelta, CallPiece};
use oxidize_core::engine::{Event, FinishReason, Finished, Token, TokenStream};

use super::{End, Part, Piece, Reading, StopReason, TokenInfo};
use crate::error::{ApiError, ApiResult};
use crate::models::Progress;

/// One answer.
pub(super) struct Choice {
    telling: Telling,
    stream: TokenStream,
    tokens: Vec<TokenInfo>,
    pieces: VecDeque<Piece>,
    n_calls: usize,
    ended: bool,
    pub(super) progress: Arc<Progress>,
}

/// How an answer is told.
pub(super) struct Telling {
    /// Its place among the answers.
    pub(super) index: usize,
    /// How its text is understood.
    pub(super) reading: Reading,
    /// What may have ended it.
    pub(super) stops: Vec<String>,
    /// Whether tokens are passed on beside the text.
    pub(super) wants_tokens: bool,
    /// What the ids of calls begin with, where the model gives them none.
    pub(super) call_prefix: String,
}

impl Choice {
    /// The answer that comes from `stream`.
    pub(super) fn new(stream: TokenStream, progress: Arc<Progress>, telling: Telling) -> Choice {
        Choice {
            telling,
            stream,
            tokens: Vec::new(),
            pieces: VecDeque::new(),
            n_calls: 0,
            ended: false,
            progress,
        }
    }

    /// Whether all of it has been told.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The next piece.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<ApiResult<Piece>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                self.ended = matches!(piece, Piece::End(_));
                return Poll::Ready(Ok(piece));
            }
            match Pin::new(&mut self.stream).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(Event::Token(token)))) => self.token(token),
                Poll::Ready(Some(Ok(Event::Finished(finished)))) => self.finish(finished),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => {
                    return Poll::Ready(Err(ApiError::unavailable("the engine has stopped")));
                }
            }
        }
    }

    fn token(&mut self, token: Token) {
        self.progress.generated.fetch_add(1, Ordering::Relaxed);
        if self.telling.wants_tokens {
            self.tokens.push(TokenInfo {
                id: token.id,
                logprob: token.logprob,
                top: token.top,
            });
        }
        self.read(&token.text);
    }

    fn read(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match &mut self.telling.reading {
            Reading::Text => self.part(Part::Content(text.to_owned())),
            Reading::Answer(parser) => {
                let deltas = parser.push(text);
                self.deltas(deltas);
            }
            Reading::Calls(reader) => {
                for piece in reader.push(text) {
                    match piece {
                        CallPiece::Start { id, name } => self.start_call(id, name),
                        CallPiece::Arguments(text) => self.arguments(text),
                    }
                }
            }
        }
    }

    fn deltas(&mut self, deltas: Vec<AnswerDelta>) {
        for delta in deltas {
            match delta {
                AnswerDelta::Reasoning(text) => self.part(Part::Reasoning(text)),
                AnswerDelta::Content(text) => self.part(Part::Content(text)),
                AnswerDelta::ToolCall(call) => {
                    let text = match &call.function.arguments {
                        serde_json::Value::String(text) => text.clone(),
                        serde_json::Value::Null => "{}".to_owned(),
                        arguments => arguments.to_string(),
                    };
                    self.start_call(call.id, call.function.name);
                    self.arguments(text);
                }
                AnswerDelta::CallStart { id, name } => self.start_call(id, name),
                AnswerDelta::CallArguments(text) => self.arguments(text),
            }
        }
    }

    fn start_call(&mut self, id: Option<String>, name: String) {
        let index = self.n_calls;
        self.n_calls += 1;
        let id = id.unwrap_or_else(|| format!("{}_{index}", self.telling.call_prefix));
        self.part(Part::CallStart { index, id, name });
    }

    fn arguments(&mut self, text: String) {
        let index = self.n_calls.saturating_sub(1);
        self.part(Part::CallArguments { index, text });
    }

    fn part(&mut self, part: Part) {
        self.pieces.push_back(Piece::Part {
            choice: self.telling.index,
            part,
            tokens: std::mem::take(&mut self.tokens),
        });
    }

    fn finish(&mut self, finished: Finished) {
        self.read(&finished.text);
        if let Reading::Answer(parser) = &mut self.telling.reading {
            let rest = parser.finish();
            self.deltas(rest);
        }
        let (mut reason, stop) = match finished.reason {
            FinishReason::StopString(index) => (
                StopReason::StopString,
                self.telling.stops.get(index).cloned(),
            ),
            FinishReason::Length => (StopReason::Length, None),
            _ => (StopReason::Stop, None),
        };
        if self.n_calls > 0 && reason == StopReason::Stop {
            reason = StopReason::ToolCalls;
        }
        self.pieces.push_back(Piece::End(Box::new(End {
            choice: self.telling.index,
            reason,
            stop,
            tokens: std::mem::take(&mut self.tokens),
            finished,
        })));
    }
}
