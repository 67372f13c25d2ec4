//! JSON schemas: texts sampled under a schema validate, according to an independent validator.

use crate::{TINY, Vocabulary};
use oxidize_core::grammar::Grammar;
use oxidize_core::sampling::Rng;
use serde_json::{Value, json};

/// Schemas with all supported keywords.
fn schemas() -> Vec<Value> {
    let point = json!({"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"], "additionalProperties": false});
    let tree = json!({"type": "object", "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}, "required": ["v"], "additionalProperties": false});
    vec![
        json!({"type": "null"}),
        json!({"type": "boolean"}),
        json!({"type": "integer"}),
        json!({"type": "number"}),
        json!({"type": "string", "maxLength": 10}),
        json!({"type": "string", "minLength": 3, "maxLength": 5}),
        json!({"type": "integer", "minimum": 10, "maximum": 99}),
        json!({"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5}),
        json!({"type": "number", "minimum": -1.5, "maximum": 2.25}),
        json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
        json!({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1_000_000}),
        json!({"type": "integer", "minimum": 1000}),
        json!({"enum": ["red", "green", 3, null, {"a": 1}]}),
        json!({"const": {"k": [1, 2, "three"]}}),
        json!({"const": "a \"quoted\" é\n text"}),
        json!({"type": ["string", "null"], "maxLength": 4}),
        json!({"type": ["integer", "boolean"]}),
        json!({"type": "array", "items": {"type": "boolean"}}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 3}], "items": false, "minItems": 2}),
        json!({"type": "array", "items": {"type": "array", "items": {"enum": [0, 1]}, "minItems": 2, "maxItems": 2}, "maxItems": 3}),
        point.clone(),
        json!({"type": "array", "items": point, "minItems": 1, "maxItems": 2}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": false}),
        json!({"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3}),
        json!({"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2}),
        json!({"type": "object", "properties": {"not": {"const": 1}, "if": {"const": 2}}, "required": ["not", "if"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"date": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"}}, "required": ["date", "id"], "additionalProperties": false}),
        json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
        json!({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]}),
        json!({"anyOf": [{"const": "yes"}, {"type": "array", "items": {"const": "no"}, "maxItems": 2}]}),
        json!({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}),
        json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"], "additionalProperties": false},
            {"type": "object", "properties": {"kind": {"const": "b"}, "s": {"type": "null"}}, "required": ["kind", "s"], "additionalProperties": false}]}),
        json!({"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 8}]}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}], "maxProperties": 2}),
        json!({"$defs": {"name": {"type": "string", "minLength": 1, "maxLength": 4}}, "type": "object", "properties": {"first": {"$ref": "#/$defs/name"}, "last": {"$ref": "#/$defs/name"}}, "required": ["first", "last"], "additionalProperties": false}),
        json!({"$defs": {"t": tree}, "$ref": "#/$defs/t"}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"n": {"type": "integer"}}, "type": "array", "items": [{"$ref": "#/definitions/n"}, {"type": "boolean"}], "additionalItems": false, "minItems": 2}),
        json!({"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": false, "maxProperties": 2}),
        json!({"title": "T", "description": "D", "type": "object", "properties": {"steps": {"type": "array", "items": {"type": "object", "properties": {"say": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}}, "required": ["say", "n"], "additionalProperties": false}, "maxItems": 2}, "answer": {"type": "string", "maxLength": 8}}, "required": ["steps", "answer"], "additionalProperties": false}),
        json!(true),
    ]
}

/// True if `value` matches. Supports the keywords used in this file.
fn matches_schema(root: &Value, schema: &Value, value: &Value) -> bool {
    let map = match schema {
        Value::Bool(all) => return *all,
        Value::Object(map) => map,
        _ => panic!("{schema} is no schema"),
    };
    let list = |key: &str| map.get(key).and_then(Value::as_array);
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let count = |key: &str| map.get(key).and_then(Value::as_u64).map(|n| n as usize);
    let within = |n: usize, least: &str, most: &str| {
        count(least).is_none_or(|least| n >= least) && count(most).is_none_or(|most| n <= most)
    };
    let is = |name: &Value| match (name.as_str().unwrap(), value) {
        ("integer", Value::Number(n)) => n.as_f64().unwrap().fract() == 0.0,
        ("number", Value::Number(_)) | ("null", Value::Null) | ("boolean", Value::Bool(_)) => true,
        ("string", Value::String(_))
        | ("array", Value::Array(_))
        | ("object", Value::Object(_)) => true,
        _ => false,
    };
    let mut good = match map.get("type") {
        Some(Value::Array(names)) => names.iter().any(is),
        Some(name) => is(name),
        None => true,
    };
    good &= map.get("const").is_none_or(|wanted| wanted == value);
    good &= list("enum").is_none_or(|wanted| wanted.contains(value));
    good &= list("allOf").is_none_or(|all| all.iter().all(|s| matches_schema(root, s, value)));
    good &= list("anyOf").is_none_or(|any| any.iter().any(|s| matches_schema(root, s, value)));
    good &= list("oneOf").is_none_or(|one| {
        one.iter()
            .filter(|s| matches_schema(root, s, value))
            .count()
            == 1
    });
    if let Some(Value::String(reference)) = map.get("$ref") {
        let target = root.pointer(reference.strip_prefix('#').unwrap()).unwrap();
        good &= matches_schema(root, target, value);
    }
    match value {
        Value::Number(n) => {
            let n = n.as_f64().unwrap();
            good &= number("minimum").is_none_or(|least| n >= least);
            good &= number("maximum").is_none_or(|most| n <= most);
            good &= number("exclusiveMinimum").is_none_or(|least| n > least);
            good &= number("exclusiveMaximum").is_none_or(|most| n < most);
            good &= number("multipleOf").is_none_or(|of| n % of == 0.0);
        }
        Value::String(text) => {
            good &= within(text.chars().count(), "minLength", "maxLength");
            let shape: String = text.chars().map(shape).collect();
            good &= match map.get("format").and_then(Value::as_str) {
                Some("date") => shape == "9999-99-99",
                Some("uuid") => {
                    text.len() == 36 && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
                }
                _ => true,
            };
            // The only pattern in these schemas.
            good &= map.get("pattern").is_none() || shape == "AA-999";
        }
        Value::Array(items) => {
            good &= within(items.len(), "minItems", "maxItems");
            let (before, rest) = match (list("prefixItems").or(list("items")), map.get("items")) {
                (Some(before), Some(Value::Array(_))) => {
                    (before.clone(), map.get("additionalItems"))
                }
                (before, rest) => (before.cloned().unwrap_or_default(), rest),
            };
            for (i, item) in items.iter().enumerate() {
                good &= before
                    .get(i)
                    .or(rest)
                    .is_none_or(|s| matches_schema(root, s, item));
            }
        }
        Value::Object(members) => {
            good &= within(members.len(), "minProperties", "maxProperties");
            good &= list("required").is_none_or(|names| {
                names
                    .iter()
                    .all(|name| members.contains_key(name.as_str().unwrap()))
            });
            for (name, member) in members {
                let named = map.get("properties").and_then(|named| named.get(name));
                let patterns = map.get("patternProperties").and_then(Value::as_object);
                let mut known = named.is_some();
                good &= named.is_none_or(|s| matches_schema(root, s, member));
                for (pattern, schema) in patterns.into_iter().flatten() {
                    // The patterns of these schemas are a letter at the start.
                    if name.starts_with(pattern.strip_prefix('^').unwrap()) {
                        known = true;
                        good &= matches_schema(root, schema, member);
                    }
                }
                let others = map.get("additionalProperties");
                good &= known || others.is_none_or(|s| matches_schema(root, s, member));
            }
        }
        _ => {}
    }
    good
}

fn shape(character: char) -> char {
    match character {
        '0'..='9' => '9',
        'A'..='Z' => 'A',
        other => other,
    }
}

/// Samples an answer of random tokens. Returns `None` if it does not end in time.
pub(crate) fn sample(vocabulary: &Vocabulary, grammar: &Grammar, rng: &mut Rng) -> Option<String> {
    let tokenizer = &vocabulary.tokenizer;
    let mut constraint = vocabulary.compile(grammar);
    let mut bytes = Vec::new();
    for step in 0..600 {
        if constraint.is_complete() {
            return Some(String::from_utf8(bytes).unwrap());
        }
        let mask = constraint.mask().unwrap();
        let allowed: Vec<u32> = (0..mask.len() as u32)
            .filter(|&token| mask.allows(token))
            .collect();
        // Random text hardly ever ends, so closing tokens become more likely with its length.
        let is_closing = |&&token: &&u32| {
            let piece = tokenizer.piece(token).unwrap_or_default();
            tokenizer.is_end_of_generation(token)
                || matches!(piece, [b'"' | b']' | b'}' | b')' | b';' | b'=' | b'\n'])
        };
        let closing: Vec<u32> = allowed.iter().filter(is_closing).copied().collect();
        let prefer_closing = step > 20 && rng.next_f64() < 0.5;
        let from = if prefer_closing && !closing.is_empty() {
            &closing
        } else {
            &allowed
        };
        let token = from[(rng.next_u64() % from.len() as u64) as usize];
        if tokenizer.is_end_of_generation(token) {
            return Some(String::from_utf8(bytes).unwrap());
        }
        constraint.accept(token).unwrap();
        bytes.extend_from_slice(tokenizer.piece(token).unwrap());
    }
    None
}

pub(crate) fn texts_sampled_under_a_schema_match_it() {
    sampled_texts(&TINY, 8);
}

/// Samples some texts under each schema.
pub(crate) fn sampled_texts(vocabulary: &Vocabulary, times: usize) {
    let mut rng = Rng::new(3);
    let (mut done, mut unfinished) = (0, 0);
    for schema in schemas() {
        let grammar = Grammar::JsonSchema(schema.clone());
        for _ in 0..times {
            let Some(text) = sample(vocabulary, &grammar, &mut rng) else {
                unfinished += 1;
                continue;
            };
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // A number may exceed the range of a float, which this parser does not support.
                Err(error) if error.to_string().contains("out of range") => continue,
                Err(error) => panic!("{schema}\n{text}\n{error}"),
            };
            assert!(matches_schema(&schema, &schema, &value), "{schema}\n{text}");
            done += 1;
        }
    }
    eprintln!("{done} answers match, {unfinished} did not end in time");
    assert!(unfinished * 10 < done, "{unfinished} of {done} did not end");
}

pub(crate) fn validator_detects_mismatches() {
    for (schema, value) in [
        (json!({"type": "integer"}), json!(1.5)),
        (json!({"minimum": 2}), json!(1)),
        (json!({"properties": {"a": {"const": 1}}}), json!({"a": 2})),
        (json!({"oneOf": [true, true]}), json!(1)),
        (json!({"items": {"type": "null"}}), json!([1])),
        (json!({"additionalProperties": false}), json!({"a": 1})),
        (
            json!({"$defs": {"x": false}, "$ref": "#/$defs/x"}),
            json!(1),
        ),
    ] {
        assert!(
            !matches_schema(&schema, &schema, &value),
            "{schema} {value}"
        );
    }
}

pub(crate) fn schemas_accept_matching_values_only() {
    matching_values(&TINY);
}

pub(crate) fn matching_values(vocabulary: &Vocabulary) {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}}, "required": ["name", "age"], "additionalProperties": false});
    vocabulary.check(
        &Grammar::JsonSchema(schema),
        &[
            "{\"name\": \"Ada\", \"age\": 36}",
            "{\"name\":\"é\\n\",\"age\":0}",
            "{\n    \"name\": \"x\",\n    \"age\": 1\n}",
        ],
        &[
            "{\"name\": \"Ada\"}",
            "{\"name\": \"Ada\", \"age\": -1}",
            "{\"name\": 1, \"age\": 1}",
            "{\"name\": \"a\", \"age\": 1, \"b\": 2}",
        ],
    );
}

pub(crate) fn date_formats_accept_valid_dates_only() {
    date_formats(&TINY);
}

pub(crate) fn date_formats(vocabulary: &Vocabulary) {
    let date = Grammar::JsonSchema(json!({"type": "string", "format": "date"}));
    let good = [
        "\"2024-02-29\"",
        "\"2000-02-29\"",
        "\"2023-02-28\"",
        "\"1999-12-31\"",
        "\"2023-04-30\"",
    ];
    let bad = [
        "\"2023-02-29\"",
        "\"1900-02-29\"",
        "\"2023-04-31\"",
        "\"2023-13-01\"",
        "\"2023-00-10\"",
        "\"2023-01-32\"",
        "\"23-01-01\"",
    ];
    vocabulary.check(&date, &good, &bad);
    let date_time = json!({"type": "string", "format": "date-time", "pattern": "^2024"});
    let good = [
        "\"2024-02-29T23:59:59Z\"",
        "\"2024-01-01T00:00:00.5+01:00\"",
    ];
    let bad = [
        "\"2024-02-30T00:00:00Z\"",
        "\"2023-01-01T00:00:00Z\"",
        "\"2024-01-01\"",
    ];
    vocabulary.check(&Grammar::JsonSchema(date_time), &good, &bad);
}
