//! Capabilities of a chat template, detected by rendering small conversations and searching the
//! output for a marker.

use serde_json::{Map, Value as Json, json};

use super::ChatTemplate;

/// Features that a template supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Renders system messages.
    pub system_role: bool,
    /// Renders tool definitions.
    pub tools: bool,
    /// Renders tool calls of the assistant.
    pub tool_calls: bool,
    /// Expects arguments of tool calls as objects, not as JSON text.
    pub object_arguments: bool,
    /// Accepts content as a list of typed parts.
    pub content_parts: bool,
    /// Requires content as a list of typed parts.
    pub needs_content_parts: bool,
    /// Accepts null content in a message with tool calls.
    pub null_content: bool,
    /// Renders the reasoning of the current turn.
    pub reasoning: bool,
}

const NEEDLE: &str = "ndl7f3q";

impl Capabilities {
    pub(super) fn probe(template: &ChatTemplate) -> Self {
        let probe = Probe { template };
        let text_content = probe.renders_needle(json!([user(json!(NEEDLE))]), Json::Null);
        let parts = probe.render(
            json!([user(json!([{"type": "text", "text": NEEDLE}]))]),
            Json::Null,
        );
        // A template without support for parts prints the list in Python syntax.
        let content_parts =
            parts.is_some_and(|text| text.contains(NEEDLE) && !text.contains("'type'"));
        let needs_content_parts = content_parts && !text_content;
        let text = |text: &str| {
            if needs_content_parts {
                json!([{"type": "text", "text": text}])
            } else {
                json!(text)
            }
        };

        let system = json!([{"role": "system", "content": text(NEEDLE)}, user(text("hi"))]);
        let tool = sample_tools(NEEDLE);
        let called = |arguments: Json, content: Json| {
            json!([
                user(text("hi")),
                {"role": "assistant", "content": content, "tool_calls": [
                    {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}},
                ]},
                {"role": "tool", "content": text("ok"), "tool_call_id": "call00001", "name": "f"},
                user(text("go on")),
            ])
        };
        let as_text = json!(format!("{{\"{NEEDLE}\": \"v\"}}"));
        let as_object = json!({NEEDLE: "v"});
        let quoted = format!("\"{NEEDLE}\":");
        let render_call = |arguments: &Json, content: Json| {
            probe.render(called(arguments.clone(), content), Json::Null)
        };
        let text_works = render_call(&as_text, text("")).is_some_and(|text| text.contains(&quoted));
        let object_works = render_call(&as_object, text(""))
            .is_some_and(|text| text.contains(NEEDLE) && !text.contains("{'"));
        // Templates that accept both forms were written for objects.
        let arguments = if object_works { &as_object } else { &as_text };
        let null_content = render_call(arguments, Json::Null)
            .is_some_and(|text| text.contains(NEEDLE) && !text.contains("None"));
        let reasoned = json!([
            user(text("hi")),
            {"role": "assistant", "content": text("x"), "reasoning_content": NEEDLE, "thinking": NEEDLE},
        ]);
        Self {
            system_role: probe.renders_needle(system, Json::Null),
            tools: probe.renders_needle(json!([user(text("hi"))]), tool),
            tool_calls: text_works || object_works,
            object_arguments: object_works,
            content_parts,
            needs_content_parts,
            null_content,
            reasoning: probe.renders_needle(reasoned, Json::Null),
        }
    }
}

/// Tool list with one simple tool.
pub(super) fn sample_tools(name: &str) -> Json {
    let parameter = json!({"type": "string", "description": "d"});
    json!([{"type": "function", "function": {
        "name": name, "description": "d",
        "parameters": {"type": "object", "properties": {"a": parameter}, "required": ["a"]},
    }}])
}

fn user(content: Json) -> Json {
    json!({"role": "user", "content": content})
}

struct Probe<'a> {
    template: &'a ChatTemplate,
}

impl Probe<'_> {
    fn renders_needle(&self, messages: Json, tools: Json) -> bool {
        self.render(messages, tools)
            .is_some_and(|text| text.contains(NEEDLE))
    }

    fn render(&self, messages: Json, tools: Json) -> Option<String> {
        let mut variables = Map::new();
        variables.insert("messages".into(), messages);
        variables.insert("tools".into(), tools);
        variables.insert("documents".into(), Json::Null);
        variables.insert("add_generation_prompt".into(), false.into());
        variables.insert("bos_token".into(), "".into());
        variables.insert("eos_token".into(), "".into());
        self.template.render_variables(&variables).ok()
    }
}
