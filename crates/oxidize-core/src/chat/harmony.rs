//! The harmony format of gpt-oss: messages with a channel and perhaps a recipient in their header.
//! `analysis` is reasoning, `final` is the answer, a message to `functions.…` is a tool call.

use serde_json::Value as Json;

use super::answer::AnswerDelta;
use super::markers::{Scan, scan};
use super::{FunctionCall, ToolCall};

const MESSAGE: &str = "<|message|>";
/// What ends the body of a message.
const ENDS: [&str; 5] = [
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|start|>",
    "<|channel|>",
];

/// What a header begins with; the role has been said by the prompt or by `<|start|>`.
const STARTS: [&str; 5] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "to=",
    "assistant",
];
/// Longest header in bytes.
const MAX_HEADER: usize = 256;

/// Reads harmony as it arrives. The prompt ends with `<|start|>assistant`, so that a header comes first.
#[derive(Debug, Clone)]
pub(super) struct Harmony {
    buffer: String,
    state: State,
    /// How far the buffer has been searched for the end of a call.
    searched: usize,
}

#[derive(Debug, Clone)]
enum State {
    Header,
    Reasoning,
    Content,
    /// The header, so that a call that does not parse can be given back whole, and the recipient.
    Call {
        header: String,
        name: String,
    },
}

impl Harmony {
    pub(super) fn new() -> Self {
        Self {
            buffer: String::new(),
            state: State::Header,
            searched: 0,
        }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Vec<AnswerDelta>) {
        self.buffer.push_str(text);
        while self.step(out) {}
    }

    pub(super) fn finish(&mut self, out: &mut Vec<AnswerDelta>) {
        let rest = std::mem::take(&mut self.buffer);
        match std::mem::replace(&mut self.state, State::Header) {
            // A header without a message says nothing; other text is content.
            State::Header
                if rest.starts_with("<|") && !rest.contains(' ') || rest.trim().is_empty() => {}
            State::Header | State::Content => emit(out, AnswerDelta::Content(rest)),
            State::Reasoning => emit(out, AnswerDelta::Reasoning(rest)),
            State::Call { header, name } => end_call(&header, &name, &rest, out),
        }
    }

    /// True when there may be more to do with what is in the buffer.
    fn step(&mut self, out: &mut Vec<AnswerDelta>) -> bool {
        if matches!(self.state, State::Header) {
            return self.read_header(out);
        }
        match scan(&self.buffer, self.searched, &ENDS) {
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
                let marker = ENDS.get(which).copied().unwrap_or("");
                // A channel mark belongs to the header it begins.
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

    fn emit_body(&self, text: String, out: &mut Vec<AnswerDelta>) {
        match self.state {
            State::Reasoning => emit(out, AnswerDelta::Reasoning(text)),
            _ => emit(out, AnswerDelta::Content(text)),
        }
    }

    /// Reads up to the body of the next message. Text that cannot be a header is content.
    fn read_header(&mut self, out: &mut Vec<AnswerDelta>) -> bool {
        let begun = self.buffer.trim_start();
        if begun.is_empty()
            || STARTS
                .iter()
                .any(|start| start.len() > begun.len() && start.starts_with(begun))
        {
            return false;
        }
        let Some(start) = STARTS.iter().find(|start| begun.starts_with(**start)) else {
            self.state = State::Content;
            return true;
        };
        let skipped = self.buffer.len() - begun.len();
        let at = match self.buffer.find(MESSAGE) {
            Some(at) if at <= MAX_HEADER => at,
            None if self.buffer.len() < MAX_HEADER + MESSAGE.len() => return false,
            _ => {
                // Its opening goes out at once, lest it be read as a header again.
                let rest = self.buffer.split_off(skipped + start.len());
                emit(
                    out,
                    AnswerDelta::Content(std::mem::replace(&mut self.buffer, rest)),
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

fn end_call(header: &str, recipient: &str, body: &str, out: &mut Vec<AnswerDelta>) {
    let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
    match serde_json::from_str::<Json>(body.trim()) {
        Ok(arguments @ Json::Object(_)) => out.push(AnswerDelta::ToolCall(ToolCall {
            id: None,
            kind: "function".into(),
            function: FunctionCall {
                name: name.to_owned(),
                arguments,
            },
        })),
        _ => emit(out, AnswerDelta::Content(format!("{header}{body}"))),
    }
}

fn emit(out: &mut Vec<AnswerDelta>, delta: AnswerDelta) {
    let empty = matches!(&delta, AnswerDelta::Content(text) | AnswerDelta::Reasoning(text) if text.is_empty());
    if !empty {
        out.push(delta);
    }
}
