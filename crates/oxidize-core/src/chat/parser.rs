//! Streaming parser of answers: separates reasoning, content and tool calls in the format of the
//! model family. Anything that does not parse stays content. No input is an error, and only
//! whitespace around the parts is dropped.

use serde_json::{Map, Value as Json, json};

use super::capabilities::sample_tools;
use super::harmony::Harmony;
use super::markers::{Scan, scan};
use super::reasoning::{self, ReasoningTags, THINK};
use super::tools::{self, CallDelta, CallReader, Schemas, Section, could_be_call, parse_bare};
use super::{ChatTemplate, FunctionCall, ToolCall};

/// Format of reasoning and tool calls in a model's answers.
#[derive(Debug, Clone)]
pub struct MessageFormat {
    reasoning: ReasoningTags,
    /// True if the template contains the reasoning tags. Otherwise they count only at the start of
    /// an answer.
    reasoning_declared: bool,
    sections: Vec<&'static Section>,
    bare_json: bool,
    harmony: bool,
    /// Tags around the content that are dropped.
    transparent: Vec<&'static str>,
}

/// Options of [`MessageParser`].
#[derive(Debug, Clone, Default)]
pub struct MessageParserOptions<'a> {
    /// Separates reasoning; otherwise it stays in the content with its tags.
    pub reasoning: bool,
    /// Tools of the request. Without tools, nothing is parsed as a call.
    pub tools: Option<&'a Json>,
    /// Rendered prompt, whose end may already open the reasoning.
    pub prompt: &'a str,
    /// Streams the arguments of JSON calls. A truncated call is then still a call; otherwise it is
    /// content.
    pub stream_calls: bool,
}

/// Increment of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageDelta {
    /// Reasoning text.
    Reasoning(String),
    /// Content text.
    Content(String),
    /// Complete tool call with its arguments as an object. It has an id only if the model generated
    /// one.
    ToolCall(ToolCall),
    /// Start of a streamed tool call.
    CallStart {
        /// Id, if the model generated one.
        id: Option<String>,
        /// Function name.
        name: String,
    },
    /// Arguments of the current call, as JSON text.
    CallArguments(String),
}

/// Complete answer.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ParsedMessage {
    /// Reasoning.
    pub reasoning: String,
    /// Content.
    pub content: String,
    /// Tool calls. The arguments of streamed calls are JSON text.
    pub tool_calls: Vec<ToolCall>,
}

/// Streaming parser of one answer.
#[derive(Debug, Clone)]
pub struct MessageParser {
    format: MessageFormat,
    schemas: Schemas,
    harmony: Option<Harmony>,
    state: State,
    buffer: String,
    /// Marker that opened the section; empty if the prompt opened it.
    open_marker: &'static str,
    /// Bytes of the buffer already searched for the end of a section.
    searched: usize,
    /// Whitespace held back, since it is dropped unless more text follows.
    held_space: String,
    /// True until something other than whitespace was seen.
    at_start: bool,
    /// Drops whitespace until text follows.
    trim: bool,
    n_calls: usize,
    /// Reader of the calls in the current section, if calls are streamed.
    reader: Option<CallReader>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Content,
    Reasoning,
    /// Inside the section with this index.
    Section(usize),
    /// The buffer may be a call in bare JSON.
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

impl MessageFormat {
    /// Detects the format from the source of a template and its rendering of a tool call.
    pub fn of(template: &ChatTemplate) -> Self {
        let text = format!("{}\n{}", template.source(), rendered_sample(template));
        let sections = tools::detect(&text);
        let reasoning = reasoning::detect(&text);
        Self {
            reasoning: reasoning.unwrap_or(THINK),
            reasoning_declared: reasoning.is_some(),
            // Llama 3 writes calls with or without the tag.
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
                .filter(|tag| text.contains(tag))
                .collect(),
        }
    }

    /// Reasoning tags.
    pub fn reasoning_tags(&self) -> ReasoningTags {
        self.reasoning
    }

    /// True if the template contains the reasoning tags.
    pub(super) fn declares_reasoning(&self) -> bool {
        self.reasoning_declared
    }

    /// True if answers are in the Harmony format.
    pub(super) fn is_harmony(&self) -> bool {
        self.harmony
    }
}

impl MessageParser {
    /// Creates a parser for one answer.
    pub fn new(format: &MessageFormat, options: &MessageParserOptions<'_>) -> Self {
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
            format.reasoning = ReasoningTags {
                open: "",
                close: "",
            };
        }
        Self {
            harmony: format.harmony.then(|| Harmony::after(prompt)),
            format,
            schemas: Schemas::new(options.tools),
            state: match section {
                _ if opened => State::Reasoning,
                Some(index) => State::Section(index),
                None => State::Content,
            },
            open_marker: "",
            buffer: String::new(),
            searched: 0,
            held_space: String::new(),
            at_start: true,
            trim: opened,
            n_calls: 0,
            reader: options.stream_calls.then(CallReader::default),
        }
    }

    /// Parses the next text, which includes special tokens.
    pub fn push(&mut self, text: &str) -> Vec<MessageDelta> {
        let mut out = Vec::new();
        if let Some(harmony) = &mut self.harmony {
            harmony.push(text, &mut out);
        } else {
            self.buffer.push_str(text);
            while self.step(&mut out) {}
        }
        out
    }

    /// Ends the answer and returns the text held back.
    pub fn finish(&mut self) -> Vec<MessageDelta> {
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
        let held_space = std::mem::take(&mut self.held_space);
        if matches!(self.state, State::Content) && self.n_calls == 0 && !held_space.is_empty() {
            out.push(MessageDelta::Content(held_space));
        }
        out
    }

    /// Processes part of the buffer. Returns true if there may be more to process.
    fn step(&mut self, out: &mut Vec<MessageDelta>) -> bool {
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
                self.at_start = false;
                self.state = State::Content;
                true
            }
        }
    }

    fn step_content(&mut self, out: &mut Vec<MessageDelta>) -> bool {
        if self.at_start
            && self.format.bare_json
            && self.buffer.trim_start().starts_with(['{', '['])
        {
            self.state = State::BareJson;
            self.searched = 0;
            return true;
        }
        // Order: sections, transparent tags, reasoning.
        let mut markers: Vec<&str> = self
            .format
            .sections
            .iter()
            .map(|section| section.open)
            .collect();
        let n_sections = markers.len();
        markers.extend(&self.format.transparent);
        let open = self.format.reasoning.open;
        if !open.is_empty() && (self.format.reasoning_declared || self.at_start) {
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
                if is_reasoning && !self.format.reasoning_declared && !self.at_start {
                    // Not declared by the template and not at the start: the tag is content.
                    let tag = self.take(marker.len());
                    self.content(&tag, out);
                    return true;
                }
                self.take(marker.len());
                self.searched = 0;
                if which < n_sections {
                    self.open_section(which);
                } else if is_reasoning {
                    self.held_space.clear();
                    self.trim = true;
                    self.state = State::Reasoning;
                }
                true
            }
        }
    }

    fn step_reasoning(&mut self, out: &mut Vec<MessageDelta>) -> bool {
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
                self.held_space.clear();
                self.trim = true;
                self.at_start = true;
                self.state = State::Content;
                true
            }
        }
    }

    fn open_section(&mut self, index: usize) {
        self.open_marker = self
            .format
            .sections
            .get(index)
            .map_or("", |section| section.open);
        self.state = State::Section(index);
    }

    fn step_section(&mut self, index: usize, out: &mut Vec<MessageDelta>) -> bool {
        let Some(section) = self.format.sections.get(index).copied() else {
            return false;
        };
        if !section.content_head.is_empty() && self.buffer.starts_with(section.content_head) {
            self.take(section.content_head.len());
            self.state = State::Content;
            return true;
        }
        // A section without a closing marker ends at the next opening marker.
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
                let close_marker = if section.close.is_empty() { "" } else { end };
                self.state = State::Content;
                self.end_section(index, &body, close_marker, out);
                if section.close.is_empty() {
                    self.open_section(index);
                }
                true
            }
        }
    }

    fn end_section(
        &mut self,
        index: usize,
        body: &str,
        close_marker: &str,
        out: &mut Vec<MessageDelta>,
    ) {
        let Some(section) = self.format.sections.get(index).copied() else {
            return;
        };
        let calls = section.read(body, &self.schemas);
        self.calls(calls, self.open_marker, body, close_marker, out);
        self.state = State::Content;
    }

    /// Emits the calls in the buffer up to `end`, if calls are streamed.
    fn stream_calls(&mut self, end: usize, out: &mut Vec<MessageDelta>) {
        let text = self.buffer.get(self.searched..end).unwrap_or_default();
        self.searched = self.searched.max(end);
        for delta in self.reader.iter_mut().flat_map(|reader| reader.push(text)) {
            out.push(match delta {
                CallDelta::Start { id, name } => MessageDelta::CallStart { id, name },
                CallDelta::Arguments(text) => MessageDelta::CallArguments(text),
            });
        }
    }

    /// Emits the calls of a section that were not streamed. A section without calls is content.
    fn calls(
        &mut self,
        calls: Option<Vec<ToolCall>>,
        open_marker: &str,
        body: &str,
        close_marker: &str,
        out: &mut Vec<MessageDelta>,
    ) {
        let streamed = self.reader.as_mut().map(std::mem::take).unwrap_or_default();
        let calls = match calls {
            None if streamed.n_calls() == 0 => {
                return self.content(&[open_marker, body, close_marker].concat(), out);
            }
            calls => calls.unwrap_or_default(),
        };
        if calls.is_empty() && streamed.is_closed() {
            // Complete calls followed by something else.
            let rest = body.rsplit(['}', ']']).next().unwrap_or_default();
            self.content(rest, out);
        }
        self.n_calls += calls.len().max(streamed.n_calls());
        self.held_space.clear();
        self.trim = true;
        self.at_start = false;
        let rest = calls.into_iter().skip(streamed.n_calls());
        out.extend(rest.map(MessageDelta::ToolCall));
    }

    fn content(&mut self, text: &str, out: &mut Vec<MessageDelta>) {
        if let Some(text) = self.flush(text) {
            self.at_start = false;
            out.push(MessageDelta::Content(text));
        }
    }

    fn reasoning(&mut self, text: &str, out: &mut Vec<MessageDelta>) {
        if let Some(text) = self.flush(text) {
            out.push(MessageDelta::Reasoning(text));
        }
    }

    /// Returns the text to emit now. Whitespace at its end is held back.
    fn flush(&mut self, text: &str) -> Option<String> {
        let text = if self.trim { text.trim_start() } else { text };
        let body = text.trim_end();
        let held_space = text.get(body.len()..).unwrap_or("");
        if body.is_empty() {
            self.held_space.push_str(held_space);
            return None;
        }
        self.trim = false;
        let mut ready = std::mem::replace(&mut self.held_space, held_space.to_owned());
        ready.push_str(body);
        Some(ready)
    }

    /// Removes the first `n` bytes from the buffer.
    fn take(&mut self, n: usize) -> String {
        let rest = self.buffer.split_off(n.min(self.buffer.len()));
        std::mem::replace(&mut self.buffer, rest)
    }
}

impl ParsedMessage {
    /// Parses a complete answer.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn parse(
        format: &MessageFormat,
        options: &MessageParserOptions<'_>,
        text: &str,
    ) -> Self {
        let mut parser = MessageParser::new(format, options);
        let mut answer = Self::default();
        let deltas = parser.push(text);
        answer.extend(deltas);
        answer.extend(parser.finish());
        answer
    }

    /// Appends increments to the answer.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn extend(&mut self, deltas: impl IntoIterator<Item = MessageDelta>) {
        for delta in deltas {
            match delta {
                MessageDelta::Reasoning(text) => self.reasoning.push_str(&text),
                MessageDelta::Content(text) => self.content.push_str(&text),
                MessageDelta::ToolCall(call) => self.tool_calls.push(call),
                MessageDelta::CallStart { id, name } => self.tool_calls.push(ToolCall {
                    id,
                    kind: "function".into(),
                    function: FunctionCall {
                        name,
                        arguments: Json::String(String::new()),
                    },
                }),
                MessageDelta::CallArguments(text) => {
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

/// Rendering of a sample tool call: some templates build their tags while rendering.
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
