//! Tool call formats of the model families. Each family has a section between markers, whose body a
//! family-specific function parses.

mod call_reader;
mod gemma;
mod json;
mod pythonic;
mod reader;
mod tagged;

use serde_json::Value as Json;

use super::{FunctionCall, ToolCall};

pub use call_reader::{CallDelta, CallReader};
pub(super) use json::{could_be_call, parse_bare};

/// Section of an answer that contains tool calls.
#[derive(Debug)]
pub(super) struct Section {
    /// Opening marker.
    pub(super) open: &'static str,
    /// Closing markers. If there are none, the section ends at the next opening marker or at the
    /// end of the answer.
    pub(super) close: &'static [&'static str],
    /// A body with this prefix is plain content; empty for none.
    pub(super) content_head: &'static str,
    read: fn(&str, &Schemas) -> Option<Vec<ToolCall>>,
}

impl Section {
    /// Parses the calls in a section's body. Returns `None` if there are none or they do not parse.
    pub(super) fn read(&self, body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
        (self.read)(body.trim(), schemas).filter(|calls| !calls.is_empty())
    }
}

const fn section(
    open: &'static str,
    close: &'static [&'static str],
    read: fn(&str, &Schemas) -> Option<Vec<ToolCall>>,
) -> Section {
    Section {
        open,
        close,
        content_head: "",
        read,
    }
}

/// Sections of all families.
static SECTIONS: [Section; 32] = [
    // Hermes, Qwen, GLM and many more.
    section("<tool_call>", &["</tool_call>"], tagged::parse),
    section("<seed:tool_call>", &["</seed:tool_call>"], tagged::parse),
    section(
        "<minimax:tool_call>",
        &["</minimax:tool_call>"],
        tagged::parse,
    ),
    section(
        "<｜DSML｜function_calls>",
        &["</｜DSML｜function_calls>"],
        tagged::parse,
    ),
    section(
        "<｜DSML｜tool_calls>",
        &["</｜DSML｜tool_calls>"],
        tagged::parse,
    ),
    section("<function_call>", &["</function_call>"], tagged::parse),
    section("<function=", &["</function>"], tagged::parse_function_tail),
    // MiniCPM 5.
    section(
        "<function name=",
        &["</function>"],
        tagged::parse_named_function_tail,
    ),
    section(
        "<atem:function_calls>",
        &["</atem:function_calls>"],
        tagged::parse,
    ),
    // MiniMax M3 prefixes every tag.
    section(
        "]<]minimax[>[<tool_call>",
        &["]<]minimax[>[</tool_call>"],
        tagged::parse,
    ),
    // Hunyuan.
    section(
        "<tool_call:opensource>",
        &["</tool_call:opensource>"],
        tagged::parse,
    ),
    // Apriel, MiniMax M1.
    section("<tool_calls>", &["</tool_calls>"], tagged::parse),
    // Kimi K3.
    section(
        "<|open|>tools<|sep|>",
        &["<|close|>tools<|sep|>"],
        tagged::parse_kimi_k3,
    ),
    // Solar.
    section(
        "<|tool_call:begin|>",
        &["<|tool_call:end|>"],
        tagged::parse_solar,
    ),
    // DeepSeek V3, R1 and V3.1.
    section(
        "<｜tool▁calls▁begin｜>",
        &["<｜tool▁calls▁end｜>"],
        tagged::parse_deepseek,
    ),
    section(
        "<｜tool▁call▁begin｜>",
        &["<｜tool▁call▁end｜>"],
        tagged::parse_deepseek,
    ),
    // Kimi K2.
    section(
        "<|tool_calls_section_begin|>",
        &["<|tool_calls_section_end|>"],
        tagged::parse_kimi,
    ),
    // Llama 3.
    section(
        "<|python_tag|>",
        &["<|eom_id|>", "<|eot_id|>"],
        pythonic::parse_or_json,
    ),
    // Mistral.
    section("[TOOL_CALLS]", &[], json::parse_mistral),
    // Command R.
    section("<|START_ACTION|>", &["<|END_ACTION|>"], json::parse),
    section("Action:\n```json", &["```"], json::parse),
    // Granite.
    section("<|tool_call|>", &[], json::parse),
    // GigaChat.
    section("<|function_call|>", &["<|message_sep|>"], json::parse),
    section(
        "function call<|role_sep|>",
        &["<|message_sep|>"],
        json::parse,
    ),
    // Functionary 3.2.
    Section {
        open: ">>>",
        close: &[],
        content_head: "all\n",
        read: json::parse_functionary,
    },
    // Nemotron.
    section("<TOOLCALL>", &["</TOOLCALL>"], json::parse),
    // Apertus.
    section(
        "<|tools_prefix|>",
        &["<|tools_suffix|>"],
        json::parse_by_name,
    ),
    // LFM2.
    section(
        "<|tool_call_start|>",
        &["<|tool_call_end|>"],
        pythonic::parse_or_json,
    ),
    // Gemma 4 and FunctionGemma, then Gemma 3.
    section("<|tool_call>", &["<tool_call|>"], gemma::parse),
    section(
        "<start_function_call>",
        &["<end_function_call>"],
        gemma::parse,
    ),
    section("```tool_call", &["```"], json::parse),
    section("```tool_code", &["```"], pythonic::parse_or_json),
];

/// Detects sections in the source and sample output of a template.
pub(super) fn detect(text: &str) -> Vec<&'static Section> {
    SECTIONS
        .iter()
        .filter(|section| text.contains(section.open))
        .collect()
}

/// Most common section; the default if the template contains none.
pub(super) fn hermes() -> Vec<&'static Section> {
    SECTIONS.iter().take(1).collect()
}

/// Parameter types of the request's tools, for formats that write all values as text.
#[derive(Debug, Clone, Default)]
pub(super) struct Schemas(Json);

impl Schemas {
    /// Creates the schemas from `tools` in the format of OpenAI's API.
    pub(super) fn new(tools: Option<&Json>) -> Self {
        Self(tools.cloned().unwrap_or(Json::Null))
    }

    /// Parses a parameter value. It is a string if the schema says so or if it is not valid JSON.
    pub(super) fn value(&self, function: &str, parameter: &str, text: &str) -> Json {
        if self.is_string(function, parameter) == Some(true) {
            return text.into();
        }
        serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into())
    }

    fn is_string(&self, function: &str, parameter: &str) -> Option<bool> {
        let tool = self
            .0
            .as_array()?
            .iter()
            .map(|tool| tool.get("function").unwrap_or(tool))
            .find(|tool| tool.get("name").and_then(Json::as_str) == Some(function))?;
        let kind = tool
            .get("parameters")?
            .get("properties")?
            .get(parameter)?
            .get("type")?;
        Some(kind == "string")
    }
}

fn call(name: &str, arguments: Json, id: Option<String>) -> ToolCall {
    ToolCall {
        id,
        kind: "function".into(),
        function: FunctionCall {
            name: name.to_owned(),
            arguments,
        },
    }
}

/// True if `name` is a possible function name, which prose is not.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 256
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/'))
}
