//! Preparation of JSON schemas: rejects, by name, keywords that the constraint engine would ignore.
//!
//! llguidance rejects keywords that it knows but does not support. It ignores those that are not in
//! the schema's draft, and reads options of its own from a key in the schema.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)
)]

use super::GrammarError;
use crate::limits::LimitExceeded;
use llguidance::JsonCompileOptions;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Limit on nested schemas.
const MAX_NESTING: u64 = 100;
/// Limit on the values in a schema, of all types.
const MAX_VALUES: u64 = 100_000;
/// Limit on references; each chain of them is followed to its end.
const MAX_REFERENCES: u64 = 2000;

/// Unsupported constraint keywords of all drafts.
const UNSUPPORTED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "contentSchema",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "formatMaximum",
    "formatMinimum",
    "if",
    "maxContains",
    "minContains",
    "not",
    "nullable",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "x-guidance",
];

/// Keywords whose value is a schema or a list of schemas, and those whose value is a map of
/// schemas.
const SCHEMA_KEYWORDS: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "items",
    "oneOf",
    "prefixItems",
];
const SCHEMA_MAP_KEYWORDS: &[&str] = &["$defs", "definitions", "patternProperties", "properties"];

/// Allowed whitespace: one space, or a line break and indentation. More would let a weak model fill
/// its answer with spaces.
const WHITESPACE: &str = r" |\n[ \t]{0,20}";

/// Checks a schema and adapts it for the constraint engine.
pub(super) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    check_size(schema)?;
    check_keywords(schema)?;
    if !FiniteReferences::new(schema).has_finite_match(schema) {
        let problem = "the schema matches only infinite values: it always requires itself";
        return Err(GrammarError::Schema(problem.into()));
    }
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        Value::Bool(true) => json!({}),
        Value::Bool(false) => {
            return Err(GrammarError::Schema("`false` allows nothing".into()));
        }
        other => {
            let problem = format!("expected an object or a boolean, found {}", kind(other));
            return Err(GrammarError::Schema(problem));
        }
    };
    adapt(&mut schema);
    JsonCompileOptions {
        whitespace_pattern: Some(WHITESPACE.into()),
        ..JsonCompileOptions::default()
    }
    .apply_to(&mut schema);
    Ok(schema)
}

/// Error for a message of the constraint engine about a schema.
pub(super) fn explain(problem: String) -> GrammarError {
    if problem.contains("oneOf constraints are not supported") {
        return GrammarError::Schema(
            "`oneOf` with alternatives that can hold at once is not supported; `anyOf` is".into(),
        );
    }
    GrammarError::Schema(problem)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn check_size(schema: &Value) -> Result<(), GrammarError> {
    let (mut todo, mut values, mut references) = (vec![(schema, 0)], 0, 0);
    while let Some((value, depth)) = todo.pop() {
        values += 1;
        LimitExceeded::check("values in a schema", values, MAX_VALUES)?;
        LimitExceeded::check("levels of a schema", depth, 2 * MAX_NESTING)?;
        match value {
            Value::Array(items) => todo.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => {
                references += u64::from(map.contains_key("$ref"));
                LimitExceeded::check("references in a schema", references, MAX_REFERENCES)?;
                todo.extend(map.values().map(|value| (value, depth + 1)));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_keywords(schema: &Value) -> Result<(), GrammarError> {
    let mut todo = vec![(String::new(), schema)];
    while let Some((place, schema)) = todo.pop() {
        let Value::Object(map) = schema else {
            continue;
        };
        let unsupported = map
            .iter()
            .find(|(key, value)| UNSUPPORTED.contains(&key.as_str()) && !is_disabled(key, value));
        if let Some((keyword, _)) = unsupported {
            return Err(GrammarError::Keyword {
                keyword: keyword.clone(),
                place: format!("#{place}"),
            });
        }
        for (key, value) in map {
            let at = |inner: &str| format!("{place}/{key}{inner}");
            match value {
                Value::Object(named) if SCHEMA_MAP_KEYWORDS.contains(&key.as_str()) => {
                    todo.extend(subschemas(named).map(|(name, value)| (at(&name), value)));
                }
                Value::Array(list) if SCHEMA_KEYWORDS.contains(&key.as_str()) => {
                    let items = list.iter().enumerate();
                    todo.extend(items.map(|(i, value)| (at(&format!("/{i}")), value)));
                }
                Value::Object(_) if SCHEMA_KEYWORDS.contains(&key.as_str()) => {
                    todo.push((at(""), value));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Keywords that have no effect if their value is `false`.
const BOOLEAN_KEYWORDS: &[&str] = &["uniqueItems", "nullable"];

fn is_disabled(key: &str, value: &Value) -> bool {
    BOOLEAN_KEYWORDS.contains(&key) && *value == Value::Bool(false)
}

/// Removes keywords without effect, which the constraint engine would reject, and replaces date
/// formats by exact patterns, since the engine accepts some invalid dates.
fn adapt(schema: &mut Value) {
    let mut todo = vec![schema];
    while let Some(schema) = todo.pop() {
        let Value::Object(map) = schema else {
            continue;
        };
        map.retain(|key, value| !is_disabled(key, value));
        format_dates(map);
        for (key, value) in map {
            let one = SCHEMA_KEYWORDS.contains(&key.as_str());
            let named = SCHEMA_MAP_KEYWORDS.contains(&key.as_str());
            match (value, one, named) {
                (Value::Array(list), true, _) => todo.extend(list),
                (Value::Object(map), _, true) => todo.extend(map.values_mut()),
                (value @ Value::Object(_), true, _) => todo.push(value),
                _ => {}
            }
        }
    }
}

/// Valid dates: 29 February in leap years only.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);
/// Rest of a `date-time` after the date.
const TIME_OF_DAY: &str = concat!(
    "T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?",
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
);

fn format_dates(map: &mut Map<String, Value>) {
    let pattern = match map.get("format").and_then(Value::as_str) {
        Some("date") => format!("^{DATE}$"),
        Some("date-time") => format!("^{DATE}{TIME_OF_DAY}$"),
        _ => return,
    };
    map.remove("format");
    if !map.contains_key("pattern") {
        map.insert("pattern".into(), pattern.into());
        return;
    }
    let all = map.entry("allOf").or_insert_with(|| json!([]));
    if let Value::Array(all) = all {
        all.push(json!({"pattern": pattern}));
    }
}

/// Named subschemas with their part of the JSON pointer.
fn subschemas(named: &Map<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    named.iter().map(|(name, value)| {
        let name = name.replace('~', "~0").replace('/', "~1");
        (format!("/{name}"), value)
    })
}

/// References whose target matches some finite value, by name.
struct FiniteReferences<'a>(HashMap<&'a str, bool>);

impl<'a> FiniteReferences<'a> {
    fn new(root: &'a Value) -> FiniteReferences<'a> {
        let (mut todo, mut references) = (vec![root], Vec::new());
        while let Some(value) = todo.pop() {
            match value {
                Value::Array(items) => todo.extend(items),
                Value::Object(map) => {
                    let reference = map.get("$ref").and_then(Value::as_str);
                    let target = reference.and_then(|reference| {
                        Some((reference, root.pointer(reference.strip_prefix('#')?)?))
                    });
                    references.extend(target);
                    todo.extend(map.values());
                }
                _ => {}
            }
        }
        let mut finite =
            FiniteReferences(references.iter().map(|&(name, _)| (name, false)).collect());
        // Chains of references may run in either direction, so both are visited in turn.
        let both = |references: &[(&'a str, &'a Value)], finite: &mut FiniteReferences<'a>| {
            let forward = references.iter();
            let found = |&(name, target): &(&'a str, &'a Value)| {
                let new = finite.0.get(name) == Some(&false) && finite.has_finite_match(target);
                if new {
                    finite.0.insert(name, true);
                }
                new
            };
            forward
                .chain(references.iter().rev())
                .map(found)
                .fold(false, |any, new| any | new)
        };
        while both(&references, &mut finite) {}
        finite
    }

    fn has_finite_match(&self, schema: &Value) -> bool {
        let Value::Object(map) = schema else {
            return true;
        };
        let list = |key: &str| map.get(key).and_then(Value::as_array);
        let reference = map.get("$ref").and_then(Value::as_str);
        // References to other documents are rejected elsewhere.
        let reference = reference.and_then(|name| self.0.get(name)).copied();
        let any = |key| {
            list(key).is_none_or(|any| any.iter().any(|schema| self.has_finite_match(schema)))
        };
        let shape = match map.get("type") {
            Some(Value::String(name)) => self.type_has_finite_match(map, name),
            Some(Value::Array(names)) => names
                .iter()
                .any(|name| self.type_has_finite_match(map, name.as_str().unwrap_or_default())),
            _ => true,
        };
        reference.unwrap_or(true)
            && shape
            && any("anyOf")
            && any("oneOf")
            && list("allOf")
                .is_none_or(|all| all.iter().all(|schema| self.has_finite_match(schema)))
    }

    fn type_has_finite_match(&self, map: &Map<String, Value>, name: &str) -> bool {
        let list = |key: &str| map.get(key).and_then(Value::as_array).into_iter().flatten();
        match name {
            "object" => list("required").all(|name| {
                let member = map.get("properties").zip(name.as_str());
                let schema = member.and_then(|(named, name)| named.get(name));
                schema.is_none_or(|schema| self.has_finite_match(schema))
            }),
            "array" => {
                let min_items = map.get("minItems").and_then(Value::as_u64).unwrap_or(0);
                let min_items = usize::try_from(min_items).unwrap_or(usize::MAX);
                let before = list("prefixItems").count();
                let rest = map.get("items").filter(|_| min_items > before);
                let mut needed = list("prefixItems").take(min_items).chain(rest);
                needed.all(|schema| self.has_finite_match(schema))
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection(schema: Value) -> String {
        prepare(&schema).unwrap_err().to_string()
    }

    #[test]
    fn unsupported_keywords_are_reported_with_their_place() {
        let schema = json!({"properties": {"a/b": {"items": [{"not": {}}]}}});
        assert_eq!(
            rejection(schema),
            "schema: `not` at #/properties/a~1b/items/0 is not supported"
        );
        for keyword in UNSUPPORTED {
            let schema = json!({"$defs": {"x": {*keyword: true}}});
            let expected = format!("schema: `{keyword}` at #/$defs/x is not supported");
            assert_eq!(rejection(schema), expected);
        }
    }

    #[test]
    fn names_and_values_are_not_keywords() {
        let schema = json!({
            "properties": {"not": {"const": {"not": 1}}, "if": {"enum": [{"uniqueItems": 1}]}},
            "default": {"contains": 1},
        });
        assert!(prepare(&schema).is_ok());
    }

    #[test]
    fn disabled_keywords_have_no_effect() {
        let off = json!({
            "type": "array", "uniqueItems": false, "items": {"nullable": false, "enum": [{"uniqueItems": false}]},
            "$defs": {"uniqueItems": {"uniqueItems": false}},
        });
        let prepared = prepare(&off).unwrap();
        assert_eq!(prepared["items"], json!({"enum": [{"uniqueItems": false}]}));
        assert_eq!(prepared["$defs"], json!({"uniqueItems": {}}));
        assert!(prepared.get("uniqueItems").is_none());
        assert!(rejection(json!({"uniqueItems": true})).contains("uniqueItems"));
        assert!(rejection(json!({"not": false})).contains("not"));
    }

    #[test]
    fn infinitely_recursive_schemas_are_rejected() {
        let node = |more: Value| {
            let next = json!({"$ref": "#/$defs/n"});
            let mut schema = json!({"$defs": {"n": {"type": "object", "properties": {"next": next}}}, "$ref": "#/$defs/n"});
            let target = schema
                .pointer_mut("/$defs/n")
                .and_then(Value::as_object_mut);
            target.unwrap().extend(more.as_object().unwrap().clone());
            schema
        };
        assert!(prepare(&node(json!({}))).is_ok());
        assert!(rejection(node(json!({"required": ["next"]}))).contains("infinite"));
        let way_out = json!({"properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"]});
        assert!(prepare(&node(way_out)).is_ok());
        assert!(rejection(json!({"$ref": "#"})).contains("infinite"));
        assert!(
            rejection(json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}))
                .contains("infinite")
        );
        assert!(prepare(&json!({"type": "array", "items": {"$ref": "#"}})).is_ok());
    }

    #[test]
    fn deeply_nested_schema_is_rejected() {
        let mut schema = json!({});
        for _ in 0..1000 {
            schema = json!({"items": schema});
        }
        assert_eq!(
            rejection(schema),
            "grammar: 201 levels of a schema exceed the limit of 200"
        );
    }
}
