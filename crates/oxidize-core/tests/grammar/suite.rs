//! A thousand schemas: the supported ones of the JSON-Schema test suite, and generated ones. Texts
//! sampled under them must validate with Python's `jsonschema`, and values that the suite declares
//! invalid must be rejected. `make setup` downloads the suite and the validator.

use crate::TINY;
use crate::schemas::sample;
use oxidize_core::grammar::{Grammar, GrammarError};
use oxidize_core::sampling::Rng;
use oxidize_testing::{cached, cached_files, missing};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Texts sampled per schema.
const TEXTS: usize = 3;

/// Schema of the suite with its invalid values, or a generated schema.
struct Case {
    schema: Value,
    invalid: Vec<Value>,
}

/// Schemas of the suite, each with its draft.
fn suite() -> Vec<Case> {
    let drafts = [
        ("draft4", "http://json-schema.org/draft-04/schema#"),
        ("draft6", "http://json-schema.org/draft-06/schema#"),
        ("draft7", "http://json-schema.org/draft-07/schema#"),
        (
            "draft2019-09",
            "https://json-schema.org/draft/2019-09/schema",
        ),
        (
            "draft2020-12",
            "https://json-schema.org/draft/2020-12/schema",
        ),
    ];
    let mut cases = Vec::new();
    for (draft, uri) in drafts {
        for file in cached_files(&format!("schemas/{draft}"), "json") {
            let groups: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            for mut group in groups {
                let mut schema = group["schema"].take();
                if let Value::Object(map) = &mut schema {
                    map.entry("$schema").or_insert(uri.into());
                }
                let tests = group["tests"].as_array().unwrap().iter();
                let invalid = tests.filter(|test| test["valid"] == false);
                cases.push(Case {
                    schema,
                    invalid: invalid.map(|test| test["data"].clone()).collect(),
                });
            }
        }
    }
    cases
}

/// Generates a random schema of supported keywords.
fn random_schema(rng: &mut Rng, depth: usize) -> Value {
    let mut below = |n: u64| rng.next_u64() % n;
    let kind = below(if depth == 0 { 8 } else { 14 });
    let (a, b) = (below(20), below(20));
    let (low, high) = (a.min(b), a.max(b));
    match kind {
        0 => json!({"type": ["null", "boolean"]}),
        1 => json!({"type": "integer", "minimum": -(low as i64), "maximum": high}),
        2 => json!({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high + 1}),
        3 => json!({"type": "integer", "multipleOf": low + 2, "minimum": 0, "maximum": 100_000}),
        4 => json!({"type": "string", "minLength": low, "maxLength": high}),
        5 => {
            let patterns = [
                "^[a-z]{2,5}$",
                "^(yes|no)$",
                "^[0-9]+(\\.[0-9]{2})?$",
                "^x.{0,4}y$",
            ];
            json!({"type": "string", "pattern": patterns[below(4) as usize], "maxLength": 12})
        }
        6 => {
            let formats = ["date", "uuid", "ipv4", "time", "date-time"];
            json!({"type": "string", "format": formats[below(5) as usize]})
        }
        7 => json!({"enum": ["a", low, null, [1, 2], {"k": "v"}, "é\n"]}),
        8 | 9 => {
            let (mut properties, mut required) = (Map::new(), Vec::new());
            for name in ["id", "name", "a b", "ü", "x-y"]
                .iter()
                .take(1 + low as usize % 5)
            {
                properties.insert((*name).into(), random_schema(rng, depth - 1));
                if rng.next_u64().is_multiple_of(2) {
                    required.push(*name);
                }
            }
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
        10 => {
            let items = random_schema(rng, depth - 1);
            json!({"type": "array", "items": items, "minItems": low % 3, "maxItems": low % 3 + high % 3})
        }
        11 => {
            let prefix = [random_schema(rng, depth - 1), random_schema(rng, depth - 1)];
            json!({"type": "array", "prefixItems": prefix, "items": false, "minItems": 1 + low % 2})
        }
        12 => json!({"anyOf": [random_schema(rng, depth - 1), random_schema(rng, depth - 1)]}),
        _ => {
            let value = random_schema(rng, depth - 1);
            json!({"type": "object", "additionalProperties": value, "minProperties": low % 2, "maxProperties": 1 + low % 3})
        }
    }
}

/// Runs the validator on schemas and texts. Returns its complaints and the number of valid texts.
fn validate(lines: &[String]) -> (Vec<String>, usize) {
    let python = cached("venv/bin/python");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/validate_json.py");
    let mut child = Command::new(&python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = lines.join("\n");
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    if log.contains("No module named") {
        missing("the Python package jsonschema");
    }
    assert!(output.status.success(), "{log}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let complaints = stdout.lines().map(str::to_owned).collect();
    (complaints, log.trim().parse().unwrap())
}

pub(crate) fn texts_sampled_under_a_thousand_schemas_validate() {
    let mut cases = suite();
    let n_suite = cases.len();
    let mut rng = Rng::new(77);
    cases.extend((0..700).map(|i| Case {
        schema: random_schema(&mut rng, i % 4),
        invalid: Vec::new(),
    }));
    let (mut lines, mut refused) = (Vec::new(), BTreeMap::<String, usize>::new());
    let (mut n_compiled, mut n_suite_compiled, mut n_rejected, mut unfinished) = (0, 0, 0, 0);
    for (index, case) in cases.iter().enumerate() {
        let grammar = Grammar::JsonSchema(case.schema.clone());
        let constraint = match TINY.grammars.compile(&grammar) {
            Ok(constraint) => constraint,
            Err(error) => {
                assert!(index < n_suite, "{}\n{error}", case.schema);
                let what = match &error {
                    GrammarError::Keyword { keyword, .. } => keyword.clone(),
                    other => other.to_string().chars().take(60).collect(),
                };
                *refused.entry(what).or_default() += 1;
                continue;
            }
        };
        drop(constraint);
        n_compiled += 1;
        n_suite_compiled += usize::from(index < n_suite);
        for invalid in &case.invalid {
            let text = invalid.to_string();
            assert!(
                !TINY.accepts(&grammar, &text),
                "{}\naccepts {text}",
                case.schema
            );
            n_rejected += 1;
        }
        let sampled = (0..TEXTS).map(|_| sample(&TINY, &grammar, &mut rng));
        let texts: Vec<String> = sampled.flatten().collect();
        unfinished += TEXTS - texts.len();
        lines.push(json!({"schema": case.schema, "texts": texts}).to_string());
    }
    eprintln!(
        "{n_suite_compiled} of {n_suite} schemas of the suite are supported; refused: {refused:#?}"
    );
    eprintln!(
        "{n_compiled} schemas, {n_rejected} invalid values rejected, {unfinished} texts did not end"
    );
    assert!(n_compiled >= 1000, "{n_compiled}");
    assert!(
        unfinished * 20 < n_compiled * TEXTS,
        "{unfinished} texts did not end"
    );
    let (complaints, valid) = validate(&lines);
    let shown = complaints
        .iter()
        .take(20)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        complaints.is_empty(),
        "{} of them:\n{shown}",
        complaints.len()
    );
    eprintln!("{valid} texts validate");
    assert!(valid >= 2 * n_compiled, "{valid}");
}
