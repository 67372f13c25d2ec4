//! What a template can express, found by rendering small conversations and looking for their words in the text.

use serde_json::{Map, Value as Json, json};

use super::ChatTemplate;

/// What a template understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// System messages appear in the text.
    pub system_role: bool,
    /// Tool definitions appear in the text.
    pub tools: bool,
    /// Tool calls of the assistant appear in the text.
    pub tool_calls: bool,
    /// Arguments of tool calls have to be objects instead of JSON text.
    pub object_arguments: bool,
    /// Content may be a list of typed parts.
    pub content_parts: bool,
    /// Content has to be a list of typed parts.
    pub needs_content_parts: bool,
    /// A message with tool calls may have null as its content.
    pub null_content: bool,
    /// Reasoning of the turn being answered appears in the text.
    pub reasoning: bool,
}

const NEEDLE: &str = "ndl7f3q";

impl Capabilities {
    pub(super) fn probe(template: &ChatTemplate) -> Self {
        let probe = Probe { template };
        let text_content = probe.shows(json!([user(json!(NEEDLE))]), Json::Null);
        let parts = probe.render(
            json!([user(json!([{"type": "text", "text": NEEDLE}]))]),
            Json::Null,
        );
        // A template that does not know parts prints the list as Python would.
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
        let shown = |arguments: &Json, content: Json| {
            probe.render(called(arguments.clone(), content), Json::Null)
        };
        let text_works = shown(&as_text, text("")).is_some_and(|text| text.contains(&quoted));
        let object_works = shown(&as_object, text(""))
            .is_some_and(|text| text.contains(NEEDLE) && !text.contains("{'"));
        // Templates that take either were written for objects.
        let arguments = if object_works { &as_object } else { &as_text };
        let null_content = shown(arguments, Json::Null)
            .is_some_and(|text| text.contains(NEEDLE) && !text.contains("None"));
        let reasoned = json!([
            user(text("hi")),
            {"role": "assistant", "content": text("x"), "reasoning_content": NEEDLE, "thinking": NEEDLE},
        ]);
        Self {
            system_role: probe.shows(system, Json::Null),
            tools: probe.shows(json!([user(text("hi"))]), tool),
            tool_calls: text_works || object_works,
            object_arguments: object_works,
            content_parts,
            needs_content_parts,
            null_content,
            reasoning: probe.shows(reasoned, Json::Null),
        }
    }
}

/// A list of one plain tool.
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
    fn shows(&self, messages: Json, tools: Json) -> bool {
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
