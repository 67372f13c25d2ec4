//! [`Tools`]: the tools of a request, and the grammar that forces a call where one is required.

use oxidize_core::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use crate::error::{ApiError, ApiResult};

/// Maximum number of tools of a request.
const MAX_TOOLS: usize = 512;
/// Maximum number of calls of an answer with required calls.
const MAX_FORCED_CALLS: usize = 16;

/// The tools of a request and its `tool_choice`.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// Tools in OpenAI's format; each has a name.
    list: Vec<Json>,
    choice: ToolChoice,
    /// Allows several calls in one answer.
    parallel: bool,
}

/// Control of tool calls: none, any, or a specific tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No tool is called.
    None,
    /// At least one tool is called.
    Required,
    /// The tool of this name is called.
    Named(String),
}

impl ToolChoice {
    /// Parses OpenAI's `tool_choice`.
    pub fn parse(choice: Option<&Json>) -> ApiResult<ToolChoice> {
        let unknown = || {
            ApiError::bad_request(
                "tool_choice must be auto, none, required, or an object that names a function",
            )
        };
        match choice {
            None | Some(Json::Null) => Ok(ToolChoice::Auto),
            Some(Json::String(word)) => match word.as_str() {
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" | "any" => Ok(ToolChoice::Required),
                _ => Err(unknown()),
            },
            Some(choice) => {
                let name = choice
                    .pointer("/function/name")
                    .or_else(|| choice.get("name"));
                let name = name.and_then(Json::as_str).ok_or_else(unknown)?;
                Ok(ToolChoice::Named(name.to_owned()))
            }
        }
    }
}

impl Tools {
    /// Checks the tools of a request, in OpenAI's format.
    pub fn new(list: Vec<Json>, choice: ToolChoice, parallel: bool) -> ApiResult<Tools> {
        if list.len() > MAX_TOOLS {
            let message = format!(
                "the request has {} tools; at most {MAX_TOOLS} are supported",
                list.len()
            );
            return Err(ApiError::bad_request(message));
        }
        for (index, tool) in list.iter().enumerate() {
            let name = name_of(tool);
            let is_valid = |name: &&str| {
                let letters =
                    |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
                (1..=128).contains(&name.len()) && name.chars().all(letters)
            };
            if name.filter(is_valid).is_none() {
                let message = format!(
                    "tool {index} needs a function name of 1 to 128 letters, digits or _-.:/"
                );
                return Err(ApiError::bad_request(message));
            }
            let parameters = parameters_of(tool);
            if parameters.is_some_and(|schema| !schema.is_object() && !schema.is_null()) {
                let message =
                    format!("tool {index}: parameters must be a JSON object with a schema");
                return Err(ApiError::bad_request(message));
            }
        }
        match &choice {
            ToolChoice::Required if list.is_empty() => {
                return Err(ApiError::bad_request(
                    "tool_choice requires a call, but the request has no tools",
                ));
            }
            ToolChoice::Named(name) if !list.iter().any(|tool| name_of(tool) == Some(name)) => {
                let message = format!("tool_choice names {name:?}, which is not one of the tools");
                return Err(ApiError::bad_request(message));
            }
            _ => {}
        }
        Ok(Tools {
            list,
            choice,
            parallel,
        })
    }

    /// Tools that are described to the model, as a JSON list.
    pub fn offered(&self) -> Option<Json> {
        let offered = !self.list.is_empty() && self.choice != ToolChoice::None;
        offered.then(|| Json::Array(self.list.clone()))
    }

    /// Grammar of an answer that consists of calls only, if a call is required.
    pub fn forced(&self) -> Option<Grammar> {
        let callable: Vec<&Json> = match &self.choice {
            ToolChoice::Auto | ToolChoice::None => return None,
            ToolChoice::Required => self.list.iter().collect(),
            ToolChoice::Named(name) => {
                let named = self.list.iter().filter(|tool| name_of(tool) == Some(name));
                named.collect()
            }
        };
        let mut definitions = Map::new();
        let mut calls = Vec::new();
        for (index, tool) in callable.iter().enumerate() {
            let definition = format!("tool{index}");
            let name = name_of(tool).unwrap_or_default();
            let mut schema = parameters_of(tool)
                .filter(|s| s.is_object())
                .cloned()
                .unwrap_or(json!({}));
            if let Some(schema) = schema.as_object_mut() {
                schema.entry("type").or_insert_with(|| "object".into());
            }
            rebase_references(&mut schema, &format!("#/$defs/{definition}"));
            definitions.insert(definition.clone(), schema);
            calls.push(json!({
                "type": "object",
                "properties": {
                    "name": { "const": name },
                    "arguments": { "$ref": format!("#/$defs/{definition}") },
                },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            }));
        }
        let call = json!({ "anyOf": calls });
        let mut schema = if self.parallel {
            json!({ "type": "array", "items": call, "minItems": 1, "maxItems": MAX_FORCED_CALLS })
        } else {
            call
        };
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("$defs".into(), Json::Object(definitions));
        }
        Some(Grammar::JsonSchema(schema))
    }
}

fn function_of(tool: &Json) -> &Json {
    tool.get("function").unwrap_or(tool)
}

fn name_of(tool: &Json) -> Option<&str> {
    function_of(tool).get("name")?.as_str()
}

fn parameters_of(tool: &Json) -> Option<&Json> {
    function_of(tool).get("parameters")
}

/// Rewrites the references of a schema to itself for a schema that is embedded at `root`.
fn rebase_references(schema: &mut Json, root: &str) {
    // Nesting is limited by the parser of the request.
    match schema {
        Json::Object(map) => {
            if let Some(Json::String(reference)) = map.get_mut("$ref")
                && let Some(rest) = reference.strip_prefix('#')
            {
                *reference = format!("{root}{rest}");
            }
            map.values_mut()
                .for_each(|value| rebase_references(value, root));
        }
        Json::Array(list) => list
            .iter_mut()
            .for_each(|value| rebase_references(value, root)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weather() -> Json {
        json!({"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}},
            "$defs": {"city": {"type": "string"}},
        }}})
    }

    #[test]
    fn tool_choice_is_checked_against_the_tools() {
        let parse = |choice: Json| ToolChoice::parse(Some(&choice));
        assert_eq!(parse(json!("required")).unwrap(), ToolChoice::Required);
        let named = parse(json!({"type": "function", "function": {"name": "weather"}})).unwrap();
        assert_eq!(named, ToolChoice::Named("weather".into()));
        assert!(parse(json!("perhaps")).is_err() && parse(json!(5)).is_err());
        assert!(Tools::new(vec![weather()], named.clone(), true).is_ok());
        assert!(Tools::new(vec![], named, true).is_err());
        assert!(Tools::new(vec![], ToolChoice::Required, true).is_err());
        assert!(Tools::new(vec![json!({"type": "function"})], ToolChoice::Auto, true).is_err());
        let none = Tools::new(vec![weather()], ToolChoice::None, true).unwrap();
        assert_eq!((none.offered(), none.forced()), (None, None));
    }

    #[test]
    fn references_in_a_schema_are_rebased() {
        let tools = Tools::new(vec![weather()], ToolChoice::Required, false).unwrap();
        let Some(Grammar::JsonSchema(schema)) = tools.forced() else {
            panic!()
        };
        let city = schema.pointer("/$defs/tool0/properties/city/$ref").unwrap();
        assert_eq!(city, "#/$defs/tool0/$defs/city");
        assert!(schema.pointer("/$defs/tool0/$defs/city").is_some());
    }
}
