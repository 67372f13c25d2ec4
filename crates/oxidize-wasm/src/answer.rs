//! [`Answer`]: a request that runs, and its [`Event`]s.

use std::task::{Context, Poll, Waker};

use oxidize_core::chat::{MessageDelta, MessageParser, ToolCall};
use oxidize_core::engine::{
    Completion, FinishReason, PromptProgress, StreamEvent, Timings, Token, TokenStream,
};
use serde::Serialize;

use crate::error::Failure;

/// A request that runs.
pub(crate) struct Answer {
    pub(crate) id: u32,
    stream: TokenStream,
    parser: Option<MessageParser>,
    n_calls: usize,
}

/// An event of an answer, for the page.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(crate) enum Event {
    /// Progress of the prompt.
    #[serde(rename_all = "camelCase")]
    Progress {
        id: u32,
        total: usize,
        cached: usize,
        processed: usize,
    },
    /// A token, and what its text adds to the answer.
    #[serde(rename_all = "camelCase")]
    Token {
        id: u32,
        token: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprob: Option<f32>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        top: Vec<(u32, f32)>,
        #[serde(flatten)]
        delta: Delta,
    },
    /// The end of the answer.
    #[serde(rename_all = "camelCase")]
    End {
        id: u32,
        #[serde(flatten)]
        delta: Delta,
        finish_reason: &'static str,
        prompt_tokens: usize,
        cached_tokens: usize,
        generated_tokens: usize,
        reasoning_tokens: usize,
        seed: String,
        timings: Milliseconds,
    },
    /// An error, which ends the answer.
    Error {
        id: u32,
        #[serde(flatten)]
        failure: Failure,
    },
}

/// Text and calls that a token adds to an answer.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

/// A tool call in OpenAI's form.
#[derive(Debug, Serialize)]
struct Call {
    id: String,
    r#type: &'static str,
    function: Function,
}

#[derive(Debug, Serialize)]
struct Function {
    name: String,
    arguments: String,
}

/// Durations of the phases of an answer.
#[derive(Debug, Serialize)]
pub(crate) struct Milliseconds {
    queued: f64,
    prompt: f64,
    generation: f64,
}

impl From<&Timings> for Milliseconds {
    fn from(timings: &Timings) -> Milliseconds {
        let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
        Milliseconds {
            queued: ms(timings.queued),
            prompt: ms(timings.prompt),
            generation: ms(timings.generation),
        }
    }
}

impl Answer {
    pub(crate) fn new(id: u32, stream: TokenStream, parser: Option<MessageParser>) -> Answer {
        Answer {
            id,
            stream,
            parser,
            n_calls: 0,
        }
    }

    /// Moves the events that are there to `events`. False when the answer has ended.
    pub(crate) fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        loop {
            let mut context = Context::from_waker(Waker::noop());
            match self.stream.poll_event(&mut context) {
                Poll::Pending => return true,
                Poll::Ready(Some(Ok(StreamEvent::Token(token)))) => events.push(self.token(token)),
                Poll::Ready(Some(Ok(StreamEvent::Progress(progress)))) => {
                    events.push(self.progress(progress));
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => {
                    let (id, failure) = (self.id, error.into());
                    events.push(Event::Error { id, failure });
                    return false;
                }
                Poll::Ready(None) => {
                    events.push(self.end());
                    return false;
                }
            }
        }
    }

    fn progress(&self, progress: PromptProgress) -> Event {
        Event::Progress {
            id: self.id,
            total: progress.total,
            cached: progress.cached,
            processed: progress.processed,
        }
    }

    fn token(&mut self, token: Token) -> Event {
        let delta = match &mut self.parser {
            Some(parser) => parser.push(&token.text),
            None => vec![MessageDelta::Content(token.text)],
        };
        Event::Token {
            id: self.id,
            token: token.id,
            logprob: token.logprob,
            top: token.top,
            delta: self.delta(delta),
        }
    }

    fn end(&mut self) -> Event {
        let rest = self.parser.take().map(|mut parser| parser.finish());
        let delta = self.delta(rest.unwrap_or_default());
        let Some(completion) = self.stream.completion() else {
            let failure = Failure::new(crate::Code::Internal, "the engine has stopped");
            let id = self.id;
            return Event::Error { id, failure };
        };
        Event::End {
            id: self.id,
            delta,
            finish_reason: self.finish_reason(completion),
            prompt_tokens: completion.prompt_tokens,
            cached_tokens: completion.cached_tokens,
            generated_tokens: completion.generated_tokens,
            reasoning_tokens: completion.reasoning_tokens,
            // As text: a number of JavaScript does not hold 64 bits.
            seed: completion.seed.to_string(),
            timings: Milliseconds::from(&completion.timings),
        }
    }

    fn finish_reason(&self, completion: &Completion) -> &'static str {
        match completion.finish_reason {
            FinishReason::Length => "length",
            FinishReason::ContextFull => "context-full",
            _ if self.n_calls > 0 => "tool-calls",
            _ => "stop",
        }
    }

    fn delta(&mut self, parts: Vec<MessageDelta>) -> Delta {
        let mut delta = Delta::default();
        for part in parts {
            match part {
                MessageDelta::Content(text) => delta.text.push_str(&text),
                MessageDelta::Reasoning(text) => delta.reasoning.push_str(&text),
                MessageDelta::ToolCall(call) => delta.tool_calls.push(self.call(call)),
                // Only streamed calls come in pieces.
                MessageDelta::CallStart { .. } | MessageDelta::CallArguments(_) => {}
            }
        }
        delta
    }

    fn call(&mut self, call: ToolCall) -> Call {
        let index = self.n_calls;
        self.n_calls += 1;
        let arguments = call.function.arguments_as_text();
        Call {
            id: call
                .id
                .unwrap_or_else(|| format!("call_{}_{index}", self.id)),
            r#type: "function",
            function: Function {
                name: call.function.name,
                arguments,
            },
        }
    }
}
