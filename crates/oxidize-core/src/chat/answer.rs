//! Reads an answer as it streams: reasoning, content and tool calls, in the format of the model's family.
//! What does not parse stays content: nothing is lost but the white space around the parts, and nothing is an error.

use serde_json::{Map, Value as Json, json};

use super::capabilities::sample_tools;
use super::harmony::Harmony;
use super::markers::{Scan, scan};
use super::reasoning::{self, ReasoningMarks, THINK};
use super::tools::{self, CallPiece, CallReader, Schemas, Section, could_be_call, parse_bare};
use super::{ChatTemplate, FunctionCall, ToolCall};

/// How a model marks reasoning and tool calls.
#[derive(Debug, Clone)]
pub struct AnswerFormat {
    reasoning: ReasoningMarks,
    /// Whether the template itself writes the marks; otherwise they count only at the start of an answer.
    reasoning_declared: bool,
    sections: Vec<&'static Section>,
    bare_json: bool,
    harmony: bool,
    /// Marks around the content that carry no meaning of their own.
    transparent: Vec<&'static str>,
}

/// What to look for in an answer.
#[derive(Debug, Clone, Default)]
pub struct AnswerOptions<'a> {
    /// Whether reasoning is told apart; else it stays in the content with its marks.
    pub reasoning: bool,
    /// The tools of the request. Without tools nothing is taken for a call.
    pub tools: Option<&'a Json>,
    /// The rendered prompt, whose end may already have opened the reasoning.
    pub prompt: &'a str,
    /// Whether calls written as JSON are told while they are written. One that breaks off stays a call then; when
    /// calls are told as a whole, it is content.
    pub stream_calls: bool,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerDelta {
    /// More reasoning.
    Reasoning(String),
    /// More of the answer itself.
    Content(String),
    /// A complete tool call, its arguments as an object; its id only if the model wrote one.
    ToolCall(ToolCall),
    /// A tool call begins; its arguments follow.
    CallStart {
        /// Its id, if the model wrote one.
        id: Option<String>,
        /// What is called.
        name: String,
    },
    /// More of the arguments of the call that began last, as JSON text.
    CallArguments(String),
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The reasoning.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// The calls; the arguments of those that streamed are text.
    pub tool_calls: Vec<ToolCall>,
}

/// Reads one answer.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    format: AnswerFormat,
    schemas: Schemas,
    harmony: Option<Harmony>,
    state: State,
    buffer: String,
    /// The mark that opened the section; empty where the prompt did.
    opening: &'static str,
    /// How far the buffer has been searched for the end of a section.
    searched: usize,
    /// White space that belongs to the text only if more of the same text follows.
    space: String,
    /// Nothing but white space has been seen so far.
    fresh: bool,
    /// White space is dropped until text comes.
    trim: bool,
    n_calls: usize,
    /// What reads the calls of the section as they come, if they are told so.
    reader: Option<CallReader>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Content,
    Reasoning,
    /// Inside the section of this index.
    Section(usize),
    /// Everything so far may be a call in bare JSON.
    BareJson,
}

const TRANSPARENT: [&str; 6] = [
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "<response>",
    "</response>",
];

impl AnswerFormat {
    /// The format of a template's family, from its source and from what it makes of a tool call.
    pub fn of(template: &ChatTemplate) -> Self {
        let text = format!("{}\n{}", template.source(), rendered_sample(template));
        let sections = tools::detect(&text);
        let reasoning = reasoning::detect(&text);
        Self {
            reasoning: reasoning.unwrap_or(THINK),
            reasoning_declared: reasoning.is_some(),
            // Llama 3 may write its calls with or without the tag.
            bare_json: sections.is_empty()
                || sections
                    .iter()
                    .all(|section| section.open == "<|python_tag|>"),
            sections: if sections.is_empty() {
                tools::hermes()
            } else {
                sections
            },
            harmony: text.contains("<|channel|>") && text.contains("<|message|>"),
            transparent: TRANSPARENT
                .into_iter()
                .filter(|mark| text.contains(mark))
                .collect(),
        }
    }

    /// The marks of the reasoning.
    pub fn reasoning_marks(&self) -> ReasoningMarks {
        self.reasoning
    }
}

impl AnswerParser {
    /// A parser for one answer.
    pub fn new(format: &AnswerFormat, options: &AnswerOptions<'_>) -> Self {
        let mut format = format.clone();
        let has_tools = options
            .tools
            .is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty()));
        if !has_tools {
            format.sections.clear();
            format.bare_json = false;
        }
        let opened =
            options.reasoning && options.prompt.trim_end().ends_with(format.reasoning.open);
        let prompt = options.prompt.trim_end();
        let section = format
            .sections
            .iter()
            .position(|section| prompt.ends_with(section.open));
        if !options.reasoning {
            format.reasoning = ReasoningMarks {
                open: "",
                close: "",
            };
        }
        Self {
            harmony: format.harmony.then(Harmony::new),
            format,
            schemas: Schemas::new(options.tools),
            state: match section {
                _ if opened => State::Reasoning,
                Some(index) => State::Section(index),
                None => State::Content,
            },
            opening: "",
            buffer: String::new(),
            searched: 0,
            space: String::new(),
            fresh: true,
            trim: opened,
            n_calls: 0,
            reader: options.stream_calls.then(CallReader::default),
        }
    }

    /// Takes the next piece of text, special tokens included.
    pub fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        let mut out = Vec::new();
        if let Some(harmony) = &mut self.harmony {
            harmony.push(text, &mut out);
        } else {
            self.buffer.push_str(text);
            while self.step(&mut out) {}
        }
        out
    }

    /// The answer is over: gives out what was held back.
    pub fn finish(&mut self) -> Vec<AnswerDelta> {
        let mut out = Vec::new();
        if let Some(harmony) = &mut self.harmony {
            harmony.finish(&mut out);
            return out;
        }
        if matches!(self.state, State::Section(_) | State::BareJson) {
            self.stream_calls(self.buffer.len(), &mut out);
        }
        let rest = std::mem::take(&mut self.buffer);
        match self.state {
            State::Content => self.content(&rest, &mut out),
            State::Reasoning => self.reasoning(&rest, &mut out),
            State::Section(index) => self.end_section(index, &rest, "", &mut out),
            State::BareJson => {
                self.state = State::Content;
                self.calls(parse_bare(&rest), "", &rest, "", &mut out);
            }
        }
        let space = std::mem::take(&mut self.space);
        if matches!(self.state, State::Content) && self.n_calls == 0 && !space.is_empty() {
            out.push(AnswerDelta::Content(space));
        }
        out
    }

    /// One move; true when the buffer may allow another.
    fn step(&mut self, out: &mut Vec<AnswerDelta>) -> bool {
        match self.state {
            State::Content => self.step_content(out),
            State::Reasoning => self.step_reasoning(out),
            State::Section(index) => self.step_section(index, out),
            State::BareJson => {
                if could_be_call(&self.buffer) {
                    self.stream_calls(self.buffer.len(), out);
                    return false;
                }
                self.reader = self.reader.take().map(|_| CallReader::default());
                self.fresh = false;
                self.state = State::Content;
                true
            }
        }
    }

    fn step_content(&mut self, out: &mut Vec<AnswerDelta>) -> bool {
        if self.fresh && self.format.bare_json && self.buffer.trim_start().starts_with(['{', '[']) {
            self.state = State::BareJson;
            self.searched = 0;
            return true;
        }
        // Sections first, then transparent marks, then reasoning.
        let mut markers: Vec<&str> = self
            .format
            .sections
            .iter()
            .map(|section| section.open)
            .collect();
        let n_sections = markers.len();
        markers.extend(&self.format.transparent);
        let open = self.format.reasoning.open;
        if !open.is_empty() && (self.format.reasoning_declared || self.fresh) {
            markers.push(open);
        }
        match scan(&self.buffer, 0, &markers) {
            Scan::Open(at) => {
                let text = self.take(at);
                self.content(&text, out);
                false
            }
            Scan::Found { at, which } => {
                let marker = markers.get(which).copied().unwrap_or("");
                let is_reasoning = which + 1 == markers.len() && marker == open;
                let before = self.take(at);
                self.content(&before, out);
                if is_reasoning && !self.format.reasoning_declared && !self.fresh {
                    // The mark is not one where text came first: it is part of that text.
                    let mark = self.take(marker.len());
                    self.content(&mark, out);
                    return true;
                }
                self.take(marker.len());
                self.searched = 0;
                if which < n_sections {
                    self.open_section(which);
                } else if is_reasoning {
                    self.space.clear();
                    self.trim = true;
                    self.state = State::Reasoning;
                }
                true
            }
        }
    }

    fn step_reasoning(&mut self, out: &mut Vec<AnswerDelta>) -> bool {
        match scan(&self.buffer, 0, &[self.format.reasoning.close]) {
            Scan::Open(at) => {
                let text = self.take(at);
                self.reasoning(&text, out);
                false
            }
            Scan::Found { at, .. } => {
                let text = self.take(at);
                self.reasoning(&text, out);
                self.take(self.format.reasoning.close.len());
                self.space.clear();
                self.trim = true;
                self.fresh = true;
                self.state = State::Content;
                true
            }
        }
    }

    fn open_section(&mut self, index: usize) {
        self.opening = self
            .format
            .sections
            .get(index)
            .map_or("", |section| section.open);
        self.state = State::Section(index);
    }

    fn step_section(&mut self, index: usize, out: &mut Vec<AnswerDelta>) -> bool {
        let Some(section) = self.format.sections.get(index).copied() else {
            return false;
        };
        if !section.content_head.is_empty() && self.buffer.starts_with(section.content_head) {
            self.take(section.content_head.len());
            self.state = State::Content;
            return true;
        }
        // Without a closing mark the next opening ends a section.
        let next = [section.open];
        let ends = if section.close.is_empty() {
            &next[..]
        } else {
            section.close
        };
        match scan(&self.buffer, self.searched, ends) {
            Scan::Open(at) => {
                self.stream_calls(at, out);
                false
            }
            Scan::Found { at, which } => {
                self.stream_calls(at, out);
                let body = self.take(at);
                let end = ends.get(which).copied().unwrap_or("");
                self.take(end.len());
                self.searched = 0;
                let closing = if section.close.is_empty() { "" } else { end };
                self.state = State::Content;
                self.end_section(index, &body, closing, out);
                if section.close.is_empty() {
                    self.open_section(index);
                }
                true
            }
        }
    }

    fn end_section(&mut self, index: usize, body: &str, closing: &str, out: &mut Vec<AnswerDelta>) {
        let Some(section) = self.format.sections.get(index).copied() else {
            return;
        };
        let calls = section.read(body, &self.schemas);
        self.calls(calls, self.opening, body, closing, out);
        self.state = State::Content;
    }

    /// Tells of the calls in the buffer up to `end`, where they are told as they come.
    fn stream_calls(&mut self, end: usize, out: &mut Vec<AnswerDelta>) {
        let text = self.buffer.get(self.searched..end).unwrap_or_default();
        self.searched = self.searched.max(end);
        for piece in self.reader.iter_mut().flat_map(|reader| reader.push(text)) {
            out.push(match piece {
                CallPiece::Start { id, name } => AnswerDelta::CallStart { id, name },
                CallPiece::Arguments(text) => AnswerDelta::CallArguments(text),
            });
        }
    }

    /// Tells of the calls in a section that have not been told of yet. A section that holds none is content.
    fn calls(
        &mut self,
        calls: Option<Vec<ToolCall>>,
        opening: &str,
        body: &str,
        closing: &str,
        out: &mut Vec<AnswerDelta>,
    ) {
        let told = self.reader.as_mut().map(std::mem::take).unwrap_or_default();
        let calls = match calls {
            None if told.n_calls() == 0 => {
                return self.content(&[opening, body, closing].concat(), out);
            }
            calls => calls.unwrap_or_default(),
        };
        if calls.is_empty() && told.is_closed() {
            // Whole calls and then something else.
            let rest = body.rsplit(['}', ']']).next().unwrap_or_default();
            self.content(rest, out);
        }
        self.n_calls += calls.len().max(told.n_calls());
        self.space.clear();
        self.trim = true;
        self.fresh = false;
        let rest = calls.into_iter().skip(told.n_calls());
        out.extend(rest.map(AnswerDelta::ToolCall));
    }

    fn content(&mut self, text: &str, out: &mut Vec<AnswerDelta>) {
        if let Some(text) = self.settle(text) {
            self.fresh = false;
            out.push(AnswerDelta::Content(text));
        }
    }

    fn reasoning(&mut self, text: &str, out: &mut Vec<AnswerDelta>) {
        if let Some(text) = self.settle(text) {
            out.push(AnswerDelta::Reasoning(text));
        }
    }

    /// The text that can be given out now; white space at its end waits for what follows.
    fn settle(&mut self, text: &str) -> Option<String> {
        let text = if self.trim { text.trim_start() } else { text };
        let body = text.trim_end();
        let space = text.get(body.len()..).unwrap_or("");
        if body.is_empty() {
            self.space.push_str(space);
            return None;
        }
        self.trim = false;
        let mut settled = std::mem::replace(&mut self.space, space.to_owned());
        settled.push_str(body);
        Some(settled)
    }

    /// Takes the first `n` bytes off the buffer.
    fn take(&mut self, n: usize) -> String {
        let rest = self.buffer.split_off(n.min(self.buffer.len()));
        std::mem::replace(&mut self.buffer, rest)
    }
}

impl Answer {
    /// Reads a whole answer at once.
    pub fn parse(format: &AnswerFormat, options: &AnswerOptions<'_>, text: &str) -> Self {
        let mut parser = AnswerParser::new(format, options);
        let mut answer = Self::default();
        let deltas = parser.push(text);
        answer.extend(deltas);
        answer.extend(parser.finish());
        answer
    }

    /// Adds pieces to the answer.
    pub fn extend(&mut self, deltas: impl IntoIterator<Item = AnswerDelta>) {
        for delta in deltas {
            match delta {
                AnswerDelta::Reasoning(text) => self.reasoning.push_str(&text),
                AnswerDelta::Content(text) => self.content.push_str(&text),
                AnswerDelta::ToolCall(call) => self.tool_calls.push(call),
                AnswerDelta::CallStart { id, name } => self.tool_calls.push(ToolCall {
                    id,
                    kind: "function".into(),
                    function: FunctionCall {
                        name,
                        arguments: Json::String(String::new()),
                    },
                }),
                AnswerDelta::CallArguments(text) => {
                    let call = self.tool_calls.last_mut();
                    if let Some(Json::String(arguments)) =
                        call.map(|call| &mut call.function.arguments)
                    {
                        arguments.push_str(&text);
                    }
                }
            }
        }
    }
}

/// What the template writes for a tool call, as some build their marks while rendering.
fn rendered_sample(template: &ChatTemplate) -> String {
    let arguments = if template.capabilities().object_arguments {
        json!({"a": "b"})
    } else {
        json!("{\"a\": \"b\"}")
    };
    let mut variables = Map::new();
    variables.insert(
        "messages".into(),
        json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ]},
        ]),
    );
    let tool = sample_tools("f");
    for (name, value) in [
        ("tools", tool),
        ("documents", Json::Null),
        ("add_generation_prompt", true.into()),
    ] {
        variables.insert(name.into(), value);
    }
    for token in ["bos_token", "eos_token"] {
        variables.insert(token.into(), "".into());
    }
    template.render_variables(&variables).unwrap_or_default()
}

#[cfg(test)]
mod tests;
