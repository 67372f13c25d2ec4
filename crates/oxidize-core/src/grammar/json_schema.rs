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
        if let Some(keyword) = map.keys().find(|key| UNSUPPORTED.contains(&key.as_str())) {
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

/// Named subschemas with their part of the JSON pointer.
fn subschemas(named: &Map<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    named.iter().map(|(name, value)| {
        let name = name.replace('~', "~0").replace('/', "~1");
        (format!("/{name}"), value)
    })
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
