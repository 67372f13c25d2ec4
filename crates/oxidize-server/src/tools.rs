//! Tools: what a client may offer a model, and how a call is forced where one is required.

use oxidize_core::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use crate::error::{ApiError, ApiResult};

/// Most tools of a request.
const MAX_TOOLS: usize = 512;
/// Most calls that are forced at once.
const MAX_FORCED_CALLS: usize = 16;

/// The tools of a request and what is to be done with them.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// In OpenAI's shape, each with a name.
    list: Vec<Json>,
    choice: ToolChoice,
    /// Whether an answer may have several calls.
    parallel: bool,
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// If the model wants to.
    #[default]
    Auto,
    /// Not at all.
    None,
    /// At least one of them.
    Required,
    /// This one.
    Named(String),
}

impl ToolChoice {
    /// Reads OpenAI's `tool_choice`.
    pub fn parse(choice: Option<&Json>) -> ApiResult<ToolChoice> {
        let unknown = || {
            ApiError::bad_request("tool_choice must be auto, none, required, or name a function")
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
    /// Checks the tools of a request, in OpenAI's shape.
    pub fn new(list: Vec<Json>, choice: ToolChoice, parallel: bool) -> ApiResult<Tools> {
        if list.len() > MAX_TOOLS {
            let message = format!("{} tools, the limit is {MAX_TOOLS}", list.len());
            return Err(ApiError::bad_request(message));
        }
        for (index, tool) in list.iter().enumerate() {
            let name = name_of(tool);
            let good = |name: &&str| {
                let letters =
                    |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
                (1..=128).contains(&name.len()) && name.chars().all(letters)
            };
            if name.filter(good).is_none() {
                let message =
                    format!("tool {index}: a function with a name of up to 128 letters is needed");
                return Err(ApiError::bad_request(message));
            }
            let parameters = parameters_of(tool);
            if parameters.is_some_and(|schema| !schema.is_object() && !schema.is_null()) {
                let message = format!("tool {index}: parameters must be a JSON schema");
                return Err(ApiError::bad_request(message));
            }
        }
        match &choice {
            ToolChoice::Required if list.is_empty() => {
                return Err(ApiError::bad_request(
                    "a tool call is required, but there are no tools",
                ));
            }
            ToolChoice::Named(name) if !list.iter().any(|tool| name_of(tool) == Some(name)) => {
                let message = format!("tool_choice names {name:?}, which is not among the tools");
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

    /// The tools that the model is told of, as a JSON list.
    pub fn offered(&self) -> Option<Json> {
        let offered = !self.list.is_empty() && self.choice != ToolChoice::None;
        offered.then(|| Json::Array(self.list.clone()))
    }

    /// The grammar of an answer that is nothing but calls, if one is required.
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
            let place = format!("tool{index}");
            let name = name_of(tool).unwrap_or_default();
            let mut schema = parameters_of(tool)
                .filter(|s| s.is_object())
                .cloned()
                .unwrap_or(json!({}));
            if let Some(schema) = schema.as_object_mut() {
                schema.entry("type").or_insert_with(|| "object".into());
            }
            move_references(&mut schema, &format!("#/$defs/{place}"));
            definitions.insert(place.clone(), schema);
            calls.push(json!({
                "type": "object",
                "properties": {
                    "name": { "const": name },
                    "arguments": { "$ref": format!("#/$defs/{place}") },
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

/// References of a schema to itself, once it is part of another.
fn move_references(schema: &mut Json, root: &str) {
    // Nesting is limited by the parser of the request.
    match schema {
        Json::Object(map) => {
            if let Some(Json::String(reference)) = map.get_mut("$ref")
                && let Some(rest) = reference.strip_prefix('#')
            {
                *reference = format!("{root}{rest}");
            }
            map.values_mut()
                .for_each(|value| move_references(value, root));
        }
        Json::Array(list) => list
            .iter_mut()
            .for_each(|value| move_references(value, root)),
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
    fn choices_are_checked_against_the_tools() {
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
    fn references_follow_their_schema() {
        let tools = Tools::new(vec![weather()], ToolChoice::Required, false).unwrap();
        let Some(Grammar::JsonSchema(schema)) = tools.forced() else {
            panic!()
        };
        let city = schema.pointer("/$defs/tool0/properties/city/$ref").unwrap();
        assert_eq!(city, "#/$defs/tool0/$defs/city");
        assert!(schema.pointer("/$defs/tool0/$defs/city").is_some());
    }
}
