//! Calls written as JSON: one object, several in a row, or a list, under the common keys.

use serde_json::{Map, Value as Json};

use super::{Schemas, call, is_name};
use crate::chat::ToolCall;

pub(super) const NAME_KEYS: [&str; 3] = ["name", "tool_name", "function_name"];
pub(super) const ARGUMENT_KEYS: [&str; 4] = ["arguments", "parameters", "args", "input"];
pub(super) const ID_KEYS: [&str; 3] = ["id", "tool_call_id", "call_id"];
/// Keys that wrap a call or a list of calls.
const WRAPPERS: [&str; 3] = ["function", "tool_call", "tool_calls"];

/// Parses JSON inside a section.
pub(super) fn parse(body: &str, _: &Schemas) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for value in values(strip_fence(body))? {
        collect(&value, false, &mut calls)?;
    }
    Some(calls)
}

/// Parses JSON without markers; both a name and arguments are required.
pub(in crate::chat) fn parse_bare(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for value in values(strip_fence(text.trim()))? {
        collect(&value, true, &mut calls)?;
    }
    (!calls.is_empty()).then_some(calls)
}

/// Apertus: `[{"name": {arguments}}, …]`.
pub(super) fn parse_by_name(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    let Ok(Json::Array(items)) = serde_json::from_str(body) else {
        return parse(body, schemas);
    };
    items
        .iter()
        .map(|item| match item.as_object()?.iter().next()? {
            (name, arguments @ Json::Object(_)) if is_name(name) => {
                Some(call(name, arguments.clone(), None))
            }
            _ => None,
        })
        .collect()
}

/// Mistral: a JSON list, or from Tekken v11 `name[CALL_ID]id[ARGS]{…}`.
pub(super) fn parse_mistral(body: &str, schemas: &Schemas) -> Option<Vec<ToolCall>> {
    let Some((head, arguments)) = body.split_once("[ARGS]") else {
        return match body.find('{') {
            // Some checkpoints omit [ARGS].
            Some(at) if at > 0 && is_name(body.get(..at)?.trim()) => {
                let arguments: Json = serde_json::from_str(body.get(at..)?).ok()?;
                Some(vec![call(body.get(..at)?.trim(), arguments, None)])
            }
            _ => parse(body, schemas),
        };
    };
    let (name, id) = head
        .split_once("[CALL_ID]")
        .map_or((head, None), |(name, id)| {
            (name, Some(id.trim().to_owned()))
        });
    let arguments: Json = serde_json::from_str(arguments.trim()).ok()?;
    is_name(name.trim()).then(|| vec![call(name.trim(), arguments, id)])
}

/// Functionary 3.2: the name on a line, then the arguments.
pub(super) fn parse_functionary(body: &str, _: &Schemas) -> Option<Vec<ToolCall>> {
    let (name, arguments) = body.split_once('\n')?;
    let arguments: Json = serde_json::from_str(arguments.trim()).ok()?;
    (is_name(name.trim()) && arguments.is_object())
        .then(|| vec![call(name.trim(), arguments, None)])
}

/// True while text that starts like a bare call may still be one; once false, it need not be held
/// back.
pub(in crate::chat) fn could_be_call(text: &str) -> bool {
    let mut rest = text.trim_start();
    while let Some(inner) = rest.strip_prefix(['[', '{']) {
        rest = inner.trim_start();
    }
    if rest.is_empty() {
        return true;
    }
    let Some(key) = rest.strip_prefix('"') else {
        return false;
    };
    let known = NAME_KEYS
        .iter()
        .chain(&ARGUMENT_KEYS)
        .chain(&ID_KEYS)
        .chain(&WRAPPERS)
        .chain(&["type"]);
    match key.split_once('"') {
        Some((key, _)) => known.into_iter().any(|known| *known == key),
        None => known.into_iter().any(|known| known.starts_with(key)),
    }
}

/// Values of a text that consists of JSON values, optionally separated by commas or semicolons.
fn values(text: &str) -> Option<Vec<Json>> {
    let mut values = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Json>();
        values.push(stream.next()?.ok()?);
        rest = rest
            .get(stream.byte_offset()..)?
            .trim_start_matches([',', ';'])
            .trim();
    }
    Some(values)
}

fn strip_fence(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```") else {
        return text;
    };
    let inner = inner.strip_prefix("json").unwrap_or(inner);
    inner.strip_suffix("```").unwrap_or(inner).trim()
}

fn collect(value: &Json, strict: bool, calls: &mut Vec<ToolCall>) -> Option<()> {
    match value {
        Json::Array(items) => items
            .iter()
            .try_for_each(|item| collect(item, strict, calls)),
        Json::Object(map) => {
            let first = |keys: &[&str]| keys.iter().find_map(|key| map.get(*key));
            let id = first(&ID_KEYS).and_then(|id| match id {
                Json::String(text) => Some(text.clone()),
                Json::Number(number) => Some(number.to_string()),
                _ => None,
            });
            let name = first(&NAME_KEYS)
                .or_else(|| map.get("function"))
                .and_then(Json::as_str);
            if let Some(name) = name {
                let arguments = match first(&ARGUMENT_KEYS) {
                    Some(arguments) => normalize(arguments)?,
                    None if strict => return None,
                    None => Json::Object(Map::new()),
                };
                if !is_name(name) {
                    return None;
                }
                calls.push(call(name, arguments, id));
                return Some(());
            }
            let inner = first(&WRAPPERS)?;
            let before = calls.len();
            collect(inner, strict, calls)?;
            if let (Some(id), [only]) = (id, calls.get_mut(before..)?) {
                only.id.get_or_insert(id);
            }
            Some(())
        }
        _ => None,
    }
}

/// Arguments as an object, parsed if they are JSON text.
fn normalize(arguments: &Json) -> Option<Json> {
    match arguments {
        Json::Object(_) => Some(arguments.clone()),
        Json::Null => Some(Json::Object(Map::new())),
        Json::String(text) => serde_json::from_str(text).ok().filter(Json::is_object),
        _ => None,
    }
}
