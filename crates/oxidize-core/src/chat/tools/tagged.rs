//! Calls written with tags: `<function=…>`, `<invoke name=…>`, GLM's `<arg_key>`, and the special
//! tokens that DeepSeek and Kimi put around JSON.

use serde_json::{Map, Value as Json};

use super::{Schemas, call, is_name, json};
use crate::chat::ToolCall;

/// Text that DeepSeek V3.2, MiniMax M3, Muse and Hunyuan add to every tag.
const TAG_DECORATIONS: [&str; 5] = [
    "｜DSML｜",
    "]<]minimax[>[",
    "atem:",
    ":opensource",
    "<tool_sep>",
];

/// Parses the body of a section that is JSON or uses tags.
pub(super) fn parse(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    if body.starts_with(['{', '[']) {
        return json::parse(body, schemas);
    }
    let mut body = body.to_owned();
    for mark in TAG_DECORATIONS {
        body = body.replace(mark, "");
    }
    if body.contains("<function=") {
        parse_functions(&body, schemas)
    } else if body.contains("<invoke") {
        parse_invokes(&body, schemas)
    } else {
        parse_arg_keys(&body, schemas)
    }
}

/// Text between `<function=` and `</function>`: `name>{json}` (Llama, Functionary) or parameters
/// (Qwen).
pub(super) fn parse_function_tail(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    parse_function(body, schemas).map(|call| vec![call])
}

/// One or more `<function=name> <parameter=key>value</parameter> … </function>`.
fn parse_functions(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    let mut parts = body.split("<function=");
    parts.next().filter(|before| before.trim().is_empty())?;
    parts
        .map(|part| {
            parse_function(
                part.split_once("</function>")
                    .map_or(part, |(inner, _)| inner),
                schemas,
            )
        })
        .collect()
}

fn parse_function(text: &str, schemas: &Schemas) -> Option<ToolCall> {
    let (name, inner) = text.split_once('>')?;
    let name = name.trim().trim_matches('"');
    if !is_name(name) {
        return None;
    }
    let inner = inner.trim();
    if inner.starts_with('{') {
        let arguments: Json = serde_json::from_str(inner).ok()?;
        return Some(call(name, arguments, None));
    }
    let mut arguments = Map::new();
    let mut parts = inner.split("<parameter=");
    parts.next().filter(|before| before.trim().is_empty())?;
    for part in parts {
        let (key, value) = part.split_once('>')?;
        let value = value
            .split_once("</parameter>")
            .map_or(value, |(value, _)| value);
        let key = key.trim().trim_matches('"');
        arguments.insert(
            key.to_owned(),
            schemas.value(name, key, strip_line_breaks(value)),
        );
    }
    Some(call(name, Json::Object(arguments), None))
}

/// One or more `<invoke name="…"> <parameter name="…">value</parameter> … </invoke>`.
fn parse_invokes(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    let mut parts = body.split("<invoke");
    parts.next().filter(|before| before.trim().is_empty())?;
    let mut calls = Vec::new();
    for part in parts {
        let part = part
            .split_once("</invoke>")
            .map_or(part, |(inner, _)| inner);
        let (head, inner) = part.split_once('>')?;
        let name = attribute(head, "name")?;
        if !is_name(name) {
            return None;
        }
        let mut arguments = Map::new();
        if !inner.contains("<parameter") {
            arguments = parse_child_tags(inner, name, schemas)?;
        }
        for parameter in inner.split("<parameter").skip(1) {
            let (head, value) = parameter.split_once('>')?;
            let key = attribute(head, "name")?;
            let value = strip_line_breaks(
                value
                    .split_once("</parameter>")
                    .map_or(value, |(value, _)| value),
            );
            let value = match attribute(head, "string") {
                Some("true") => value.into(),
                Some(_) => serde_json::from_str(value.trim()).unwrap_or_else(|_| value.into()),
                None => schemas.value(name, key, value),
            };
            arguments.insert(key.to_owned(), value);
        }
        calls.push(call(name, Json::Object(arguments), None));
    }
    Some(calls)
}

/// `<key>value</key> …`, one tag per argument.
fn parse_child_tags(inner: &str, function: &str, schemas: &Schemas) -> Option<Map<String, Json>> {
    let mut arguments = Map::new();
    let mut rest = inner.trim();
    while !rest.is_empty() {
        let (key, tail) = rest.strip_prefix('<')?.split_once('>')?;
        let (value, tail) = tail.split_once(&format!("</{key}>"))?;
        arguments.insert(key.to_owned(), schemas.value(function, key, value));
        rest = tail.trim();
    }
    Some(arguments)
}

/// MiniCPM: text between `<function name=` and `</function>`.
pub(super) fn parse_named_function_tail(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    let (name, inner) = body.split_once('>')?;
    let name = name.trim().trim_matches('"');
    let mut arguments = Map::new();
    for part in inner.split("<param ").skip(1) {
        let (head, value) = part.split_once('>')?;
        let key = attribute(head, "name")?;
        let value = value
            .split_once("</param>")
            .map_or(value, |(value, _)| value);
        let value = value
            .strip_prefix("<![CDATA[")
            .and_then(|value| value.strip_suffix("]]>"))
            .unwrap_or(value);
        arguments.insert(key.to_owned(), schemas.value(name, key, value));
    }
    is_name(name).then(|| vec![call(name, Json::Object(arguments), None)])
}

/// GLM: `name <arg_key>k</arg_key> <arg_value>v</arg_value> …`.
fn parse_arg_keys(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    let mut parts = body.split("<arg_key>");
    let name = parts.next()?.trim();
    if !is_name(name) {
        return None;
    }
    let mut arguments = Map::new();
    for part in parts {
        let (key, rest) = part.split_once("</arg_key>")?;
        let (_, value) = rest.split_once("<arg_value>")?;
        let value = value
            .split_once("</arg_value>")
            .map_or(value, |(value, _)| value);
        arguments.insert(
            key.trim().to_owned(),
            schemas.value(name, key.trim(), value),
        );
    }
    Some(vec![call(name, Json::Object(arguments), None)])
}

/// DeepSeek: `type<｜tool▁sep｜>name` and a fenced JSON block, or from V3.1 `name<｜tool▁sep｜>{json}`.
pub(super) fn parse_deepseek(body: &str, _: &Schemas) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for part in body.split("<｜tool▁call▁begin｜>") {
        let part = part
            .split("<｜tool▁call▁end｜>")
            .next()
            .unwrap_or("")
            .trim();
        if part.is_empty() {
            continue;
        }
        let (head, tail) = part.split_once("<｜tool▁sep｜>")?;
        let (name, arguments) = match tail.split_once("```json") {
            Some((name, fenced)) => (name, fenced.trim().trim_end_matches('`')),
            None => (head, tail),
        };
        let arguments: Json = serde_json::from_str(arguments.trim()).ok()?;
        calls.push(is_name(name.trim()).then(|| call(name.trim(), arguments, None))?);
    }
    Some(calls)
}

/// Kimi K2: `functions.name:0<|tool_call_argument_begin|>{json}`; the text before the token is the
/// call id.
pub(super) fn parse_kimi(body: &str, _: &Schemas) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for part in body.split("<|tool_call_begin|>") {
        let part = part.split("<|tool_call_end|>").next().unwrap_or("").trim();
        if part.is_empty() {
            continue;
        }
        let (id, arguments) = part.split_once("<|tool_call_argument_begin|>")?;
        let arguments: Json = serde_json::from_str(arguments.trim()).ok()?;
        let id = id.trim();
        let name = id.strip_prefix("functions.").unwrap_or(id);
        let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
        calls.push(is_name(name).then(|| call(name, arguments, Some(id.to_owned())))?);
    }
    Some(calls)
}

/// Kimi K3: `call tool="name" …` elements with one JSON element or one element per argument.
pub(super) fn parse_kimi_k3(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for part in body.split("<|open|>call ").skip(1) {
        let (head, inner) = part.split_once("<|sep|>")?;
        let name = attribute(head, "tool").filter(|name| is_name(name))?;
        let mut arguments = Map::new();
        for element in inner.split("<|open|>").skip(1) {
            let (head, value) = element.split_once("<|sep|>")?;
            let (value, _) = value.split_once("<|close|>")?;
            match attribute(head, "key").or_else(|| attribute(head, "name")) {
                Some(key) if attribute(head, "type") == Some("string") => {
                    arguments.insert(key.to_owned(), value.into());
                }
                Some(key) => {
                    arguments.insert(key.to_owned(), schemas.value(name, key, value));
                }
                None => arguments = serde_json::from_str(value).ok()?,
            }
        }
        calls.push(call(name, Json::Object(arguments), None));
    }
    Some(calls)
}

/// Solar: `id<|tool_call:name|>name<|tool_call:args|>{json}`.
pub(super) fn parse_solar(body: &str, _: &Schemas) -> Option<Vec<ToolCall>> {
    let (id, rest) = body.split_once("<|tool_call:name|>")?;
    let (name, arguments) = rest.split_once("<|tool_call:args|>")?;
    let arguments: Json = serde_json::from_str(arguments.trim()).ok()?;
    let id = Some(id.trim().to_owned()).filter(|id| !id.is_empty());
    is_name(name.trim()).then(|| vec![call(name.trim(), arguments, id)])
}

fn attribute<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = head.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// Strips one line break at each end, which is not part of the value.
fn strip_line_breaks(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
