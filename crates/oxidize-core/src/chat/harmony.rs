//! Harmony format of gpt-oss: a sequence of messages whose header has a channel and possibly a
//! recipient. `analysis` is reasoning, `final` is the answer, and a message to `functions.…` is a
//! tool call.

use serde_json::Value as Json;

use super::markers::{Scan, scan};
use super::parser::MessageDelta;
use super::reasoning::HARMONY_ANSWER;
use super::{FunctionCall, ToolCall};

const MESSAGE: &str = "<|message|>";
/// Tokens that end the body of a message.
const BODY_ENDS: [&str; 5] = [
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|start|>",
    "<|channel|>",
];

/// Possible starts of a header. The role precedes it, in the prompt or after `<|start|>`.
const HEADER_STARTS: [&str; 5] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "to=",
    "assistant",
];
/// Longest header in bytes.
const MAX_HEADER: usize = 256;

/// Streaming parser. The prompt usually ends with `<|start|>assistant`, so the answer starts with a header.
#[derive(Debug, Clone)]
pub(super) struct Harmony {
    buffer: String,
    state: State,
    /// Bytes of the buffer already searched for the end of a call.
    searched: usize,
}

#[derive(Debug, Clone)]
enum State {
    Header,
    Reasoning,
    Content,
    /// Header, kept to output the message as content if the call does not parse, and recipient.
    Call {
        header: String,
        name: String,
    },
}

impl Harmony {
    /// A parser of the text after `prompt`, which may end with the header of the answer.
    pub(super) fn after(prompt: &str) -> Self {
        let has_header = prompt.ends_with(HARMONY_ANSWER);
        Self {
            buffer: String::new(),
            state: if has_header {
                State::Content
            } else {
                State::Header
            },
            searched: 0,
        }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Vec<MessageDelta>) {
        self.buffer.push_str(text);
        while self.step(out) {}
    }

    pub(super) fn finish(&mut self, out: &mut Vec<MessageDelta>) {
        let rest = std::mem::take(&mut self.buffer);
        match std::mem::replace(&mut self.state, State::Header) {
            // A header without a message is dropped; other text is content.
            State::Header
                if rest.starts_with("<|") && !rest.contains(' ') || rest.trim().is_empty() => {}
            State::Header | State::Content => emit(out, MessageDelta::Content(rest)),
            State::Reasoning => emit(out, MessageDelta::Reasoning(rest)),
            State::Call { header, name } => end_call(&header, &name, &rest, out),
        }
    }

    /// Processes part of the buffer. Returns true if there may be more to process.
    fn step(&mut self, out: &mut Vec<MessageDelta>) -> bool {
        if matches!(self.state, State::Header) {
            return self.read_header(out);
        }
        match scan(&self.buffer, self.searched, &BODY_ENDS) {
            Scan::Open(at) => {
                if matches!(self.state, State::Call { .. }) {
                    self.searched = at;
                } else {
                    let rest = self.buffer.split_off(at);
                    let text = std::mem::replace(&mut self.buffer, rest);
                    self.emit_body(text, out);
                }
                false
            }
            Scan::Found { at, which } => {
                self.searched = 0;
                let rest = self.buffer.split_off(at);
                let body = std::mem::take(&mut self.buffer);
                let marker = BODY_ENDS.get(which).copied().unwrap_or("");
                // A channel token belongs to the header that it starts.
                self.buffer = if marker == "<|channel|>" {
                    rest
                } else {
                    rest.get(marker.len()..).unwrap_or("").to_owned()
                };
                match std::mem::replace(&mut self.state, State::Header) {
                    State::Call { header, name } => end_call(&header, &name, &body, out),
                    state => {
                        self.state = state;
                        self.emit_body(body, out);
                        self.state = State::Header;
                    }
                }
                true
            }
        }
    }

    fn emit_body(&self, text: String, out: &mut Vec<MessageDelta>) {
        match self.state {
            State::Reasoning => emit(out, MessageDelta::Reasoning(text)),
            _ => emit(out, MessageDelta::Content(text)),
        }
    }

    /// Reads the header of the next message. Text that cannot be a header is content.
    fn read_header(&mut self, out: &mut Vec<MessageDelta>) -> bool {
        let header_text = self.buffer.trim_start();
        if header_text.is_empty()
            || HEADER_STARTS
                .iter()
                .any(|start| start.len() > header_text.len() && start.starts_with(header_text))
        {
            return false;
        }
        let Some(start) = HEADER_STARTS
            .iter()
            .find(|start| header_text.starts_with(**start))
        else {
            self.state = State::Content;
            return true;
        };
        let skipped = self.buffer.len() - header_text.len();
        let at = match self.buffer.find(MESSAGE) {
            Some(at) if at <= MAX_HEADER => at,
            None if self.buffer.len() < MAX_HEADER + MESSAGE.len() => return false,
            _ => {
                // Emit its start now, so that it is not parsed as a header again.
                let rest = self.buffer.split_off(skipped + start.len());
                emit(
                    out,
                    MessageDelta::Content(std::mem::replace(&mut self.buffer, rest)),
                );
                self.state = State::Content;
                return true;
            }
        };
        let body = self.buffer.split_off(at + MESSAGE.len());
        let header = std::mem::replace(&mut self.buffer, body);
        let recipient = header.split("to=").nth(1).map(|rest| {
            rest.split(|c: char| c.is_whitespace() || c == '<')
                .next()
                .unwrap_or("")
                .to_owned()
        });
        let analysis = header.contains("<|channel|>analysis");
        self.state = match recipient {
            Some(name) if !name.is_empty() => State::Call { header, name },
            _ if analysis => State::Reasoning,
            _ => State::Content,
        };
        true
    }
}

fn end_call(header: &str, recipient: &str, body: &str, out: &mut Vec<MessageDelta>) {
    let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
    match serde_json::from_str::<Json>(body.trim()) {
        Ok(arguments @ Json::Object(_)) => out.push(MessageDelta::ToolCall(ToolCall {
            id: None,
            kind: "function".into(),
            function: FunctionCall {
                name: name.to_owned(),
                arguments,
            },
        })),
        _ => emit(out, MessageDelta::Content(format!("{header}{body}"))),
    }
}

fn emit(out: &mut Vec<MessageDelta>, delta: MessageDelta) {
    let empty = matches!(&delta, MessageDelta::Content(text) | MessageDelta::Reasoning(text) if text.is_empty());
    if !empty {
        out.push(delta);
    }
}
