//! JSON schemas: what the constraint engine would pass over is found here and refused by name.
//!
//! llguidance refuses keywords that it knows and does not honour, but ignores those that the schema's
//! draft does not have, and takes options of its own from a key in the schema.

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

/// Schemas inside schemas.
const MOST_NESTING: u64 = 100;
/// Values in a schema, of all kinds.
const MOST_VALUES: u64 = 100_000;
/// References: a chain of them is followed to its end.
const MOST_REFERENCES: u64 = 2000;

/// Keywords that constrain, in whatever draft, and are not honoured.
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

/// Keywords whose value is a schema, a list of schemas or a map of them.
const WITH_SCHEMAS: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "items",
    "oneOf",
    "prefixItems",
];
const WITH_NAMED_SCHEMAS: &[&str] = &["$defs", "definitions", "patternProperties", "properties"];

/// One blank, or a line end and an indentation: a weak model must not fill its answer with blanks.
const WHITESPACE: &str = r" |\n[ \t]{0,20}";

/// The schema as it goes to the constraint engine.
pub(super) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    check_size(schema)?;
    check_keywords(schema)?;
    if !Endings::new(schema).can_end(schema) {
        let problem = "only something endless would fit: the schema always needs itself again";
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

/// The error for what the constraint engine says of a schema.
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
        LimitExceeded::check("values in a schema", values, MOST_VALUES)?;
        LimitExceeded::check("levels of a schema", depth, 2 * MOST_NESTING)?;
        match value {
            Value::Array(items) => todo.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => {
                references += u64::from(map.contains_key("$ref"));
                LimitExceeded::check("references in a schema", references, MOST_REFERENCES)?;
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
            .find(|(key, value)| UNSUPPORTED.contains(&key.as_str()) && !is_off(key, value));
        if let Some((keyword, _)) = unsupported {
            return Err(GrammarError::Keyword {
                keyword: keyword.clone(),
                place: format!("#{place}"),
            });
        }
        for (key, value) in map {
            let at = |inner: &str| format!("{place}/{key}{inner}");
            match value {
                Value::Object(named) if WITH_NAMED_SCHEMAS.contains(&key.as_str()) => {
                    todo.extend(subschemas(named).map(|(name, value)| (at(&name), value)));
                }
                Value::Array(list) if WITH_SCHEMAS.contains(&key.as_str()) => {
                    let items = list.iter().enumerate();
                    todo.extend(items.map(|(i, value)| (at(&format!("/{i}")), value)));
                }
                Value::Object(_) if WITH_SCHEMAS.contains(&key.as_str()) => {
                    todo.push((at(""), value));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Keywords that ask for nothing where they are `false`.
const SWITCHES: &[&str] = &["uniqueItems", "nullable"];

fn is_off(key: &str, value: &Value) -> bool {
    SWITCHES.contains(&key) && *value == Value::Bool(false)
}

/// Takes out what asks for nothing, which the constraint engine refuses whatever it says, and spells out
/// dates, of which it lets through some that are none.
fn adapt(schema: &mut Value) {
    let mut todo = vec![schema];
    while let Some(schema) = todo.pop() {
        let Value::Object(map) = schema else {
            continue;
        };
        map.retain(|key, value| !is_off(key, value));
        spell_out_dates(map);
        for (key, value) in map {
            let one = WITH_SCHEMAS.contains(&key.as_str());
            let named = WITH_NAMED_SCHEMAS.contains(&key.as_str());
            match (value, one, named) {
                (Value::Array(list), true, _) => todo.extend(list),
                (Value::Object(map), _, true) => todo.extend(map.values_mut()),
                (value @ Value::Object(_), true, _) => todo.push(value),
                _ => {}
            }
        }
    }
}

/// Days that there are: 29 February in leap years only.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);
/// The rest of a moment, after the date.
const TIME_OF_DAY: &str = concat!(
    "T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?",
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
);

fn spell_out_dates(map: &mut Map<String, Value>) {
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

/// Which references lead to something that a finite value fits, as far as recursion is concerned.
struct Endings<'a>(HashMap<&'a str, bool>);

impl<'a> Endings<'a> {
    fn new(root: &'a Value) -> Endings<'a> {
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
        let mut endings = Endings(references.iter().map(|&(name, _)| (name, false)).collect());
        // Chains of references are long in one direction or the other: both, in turn.
        let both = |references: &[(&'a str, &'a Value)], endings: &mut Endings<'a>| {
            let there = references.iter();
            let found = |&(name, target): &(&'a str, &'a Value)| {
                let new = endings.0.get(name) == Some(&false) && endings.can_end(target);
                if new {
                    endings.0.insert(name, true);
                }
                new
            };
            there
                .chain(references.iter().rev())
                .map(found)
                .fold(false, |any, new| any | new)
        };
        while both(&references, &mut endings) {}
        endings
    }

    fn can_end(&self, schema: &Value) -> bool {
        let Value::Object(map) = schema else {
            return true;
        };
        let list = |key: &str| map.get(key).and_then(Value::as_array);
        let reference = map.get("$ref").and_then(Value::as_str);
        // Other documents are refused elsewhere.
        let reference = reference.and_then(|name| self.0.get(name)).copied();
        let any = |key| list(key).is_none_or(|any| any.iter().any(|schema| self.can_end(schema)));
        let shape = match map.get("type") {
            Some(Value::String(name)) => self.shape_can_end(map, name),
            Some(Value::Array(names)) => names
                .iter()
                .any(|name| self.shape_can_end(map, name.as_str().unwrap_or_default())),
            _ => true,
        };
        reference.unwrap_or(true)
            && shape
            && any("anyOf")
            && any("oneOf")
            && list("allOf").is_none_or(|all| all.iter().all(|schema| self.can_end(schema)))
    }

    fn shape_can_end(&self, map: &Map<String, Value>, name: &str) -> bool {
        let list = |key: &str| map.get(key).and_then(Value::as_array).into_iter().flatten();
        match name {
            "object" => list("required").all(|name| {
                let member = map.get("properties").zip(name.as_str());
                let schema = member.and_then(|(named, name)| named.get(name));
                schema.is_none_or(|schema| self.can_end(schema))
            }),
            "array" => {
                let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0);
                let least = usize::try_from(least).unwrap_or(usize::MAX);
                let before = list("prefixItems").count();
                let rest = map.get("items").filter(|_| least > before);
                let mut needed = list("prefixItems").take(least).chain(rest);
                needed.all(|schema| self.can_end(schema))
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(schema: Value) -> String {
        prepare(&schema).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_honoured_is_named_with_its_place() {
        let schema = json!({"properties": {"a/b": {"items": [{"not": {}}]}}});
        assert_eq!(
            refused(schema),
            "schema: `not` at #/properties/a~1b/items/0 is not supported"
        );
        for keyword in UNSUPPORTED {
            let schema = json!({"$defs": {"x": {*keyword: true}}});
            let expected = format!("schema: `{keyword}` at #/$defs/x is not supported");
            assert_eq!(refused(schema), expected);
        }
    }

    #[test]
    fn names_and_values_are_no_keywords() {
        let schema = json!({
            "properties": {"not": {"const": {"not": 1}}, "if": {"enum": [{"uniqueItems": 1}]}},
            "default": {"contains": 1},
        });
        assert!(prepare(&schema).is_ok());
    }

    #[test]
    fn what_is_switched_off_asks_for_nothing() {
        let off = json!({
            "type": "array", "uniqueItems": false, "items": {"nullable": false, "enum": [{"uniqueItems": false}]},
            "$defs": {"uniqueItems": {"uniqueItems": false}},
        });
        let prepared = prepare(&off).unwrap();
        assert_eq!(prepared["items"], json!({"enum": [{"uniqueItems": false}]}));
        assert_eq!(prepared["$defs"], json!({"uniqueItems": {}}));
        assert!(prepared.get("uniqueItems").is_none());
        assert!(refused(json!({"uniqueItems": true})).contains("uniqueItems"));
        assert!(refused(json!({"not": false})).contains("not"));
    }

    #[test]
    fn what_always_needs_itself_again_is_refused() {
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
        assert!(refused(node(json!({"required": ["next"]}))).contains("endless"));
        let way_out = json!({"properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"]});
        assert!(prepare(&node(way_out)).is_ok());
        assert!(refused(json!({"$ref": "#"})).contains("endless"));
        assert!(
            refused(json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}))
                .contains("endless")
        );
        assert!(prepare(&json!({"type": "array", "items": {"$ref": "#"}})).is_ok());
    }

    #[test]
    fn a_schema_that_is_too_deep_is_refused() {
        let mut schema = json!({});
        for _ in 0..1000 {
            schema = json!({"items": schema});
        }
        assert_eq!(
            refused(schema),
            "grammar: 201 levels of a schema asked for, the limit is 200"
        );
    }
}
