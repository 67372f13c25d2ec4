//! Numbers out of range are refused with status 400. The numbers and their ranges come from the OpenAPI
//! document.

use super::*;

/// A numeric field of a request.
#[derive(Debug)]
struct Number {
    /// Path to the field: names of fields, and 0 for an item of a list.
    path: Vec<String>,
    minimum: Option<f64>,
    maximum: Option<f64>,
}

/// Adds the numeric fields of a schema.
fn find(document: &Value, schema: &Value, path: &[String], numbers: &mut Vec<Number>) {
    if path.len() > 5 {
        return;
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let pointed = document.pointer(reference.trim_start_matches('#')).unwrap();
        return find(document, pointed, path, numbers);
    }
    for part in ["allOf", "oneOf", "anyOf"] {
        for schema in schema[part].as_array().into_iter().flatten() {
            find(document, schema, path, numbers);
        }
    }
    let inner = |name: &str| [path, &[name.to_owned()]].concat();
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        find(document, schema, &inner(name), numbers);
    }
    if schema["items"].is_object() {
        find(document, &schema["items"], &inner("0"), numbers);
    }
    let is = |kind: &str| {
        let kinds = &schema["type"];
        kinds == kind
            || kinds
                .as_array()
                .is_some_and(|list| list.contains(&json!(kind)))
    };
    if is("integer") || is("number") {
        // The 64-bit numbers are the seed and the time of `keep_alive`, for which every value is valid.
        let wide = match schema["format"].as_str() {
            Some("int64") => Some(i64::MAX as f64),
            Some("double") => Some(f64::MAX),
            _ => None,
        };
        numbers.push(Number {
            path: path.to_vec(),
            minimum: schema["minimum"].as_f64().or(wide.map(|high| -high)),
            maximum: schema["maximum"].as_f64().or(wide),
        });
    }
}

impl Number {
    /// True if the document allows this value.
    fn allows(&self, value: f64) -> bool {
        self.minimum.is_some_and(|low| low <= value)
            && self.maximum.is_some_and(|high| value <= high)
    }

    /// The body of a request with this value, which need not be valid JSON.
    fn body(&self, value: &str) -> String {
        let mut body = json!({
            "model": "tiny", "stream": false, "max_tokens": 1, "prompt": "x", "input": "x", "query": "x",
            "documents": ["y"], "content": "x", "tokens": [5],
            "messages": [{"role": "user", "content": "x"}],
        });
        if self.path.iter().any(|name| name == "top_logprobs") {
            body["logprobs"] = true.into();
        }
        let placeholder = json!("@");
        let nested = self.path.iter().skip(1).rev();
        let nested = nested.fold(placeholder, |inner, name| match name.as_str() {
            "0" => json!([inner]),
            name => json!({ name: inner }),
        });
        match self.path[0].as_str() {
            "0" => body = json!([nested]),
            name => body[name] = nested,
        }
        body.to_string().replace("\"@\"", value)
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let server = start(&["-c", "256"]);
    let document = server.get("/openapi.json").ok();
    let (mut n_fields, mut wrong) = (0, Vec::new());
    for (path, operations) in document["paths"].as_object().unwrap() {
        let schema = operations["post"].pointer("/requestBody/content/application~1json/schema");
        let mut numbers = Vec::new();
        if let Some(schema) = schema {
            find(&document, schema, &[], &mut numbers);
        }
        n_fields += numbers.len();
        for number in numbers {
            for value in [
                "-1",
                "2147483648",
                "9223372036854775808",
                "NaN",
                "1e400",
                "-1e400",
                "1e39",
            ] {
                let body = number.body(value);
                let reply = http::request(server.address, "POST", path, &[], &body);
                let parsed: f64 = value.parse().unwrap();
                // A large top_n returns all documents.
                let all = path == "/v1/rerank" && value == "2147483648";
                let good = match parsed.is_finite() && (number.allows(parsed) || all) {
                    true => reply.status < 500,
                    false => reply.status == 400,
                };
                if !good {
                    wrong.push(format!(
                        "{path} {:?} {value}: {}",
                        number.path, reply.status
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(n_fields > 150, "{n_fields}");
    wait_until("none run", || server.is_idle());
}

#[test]
fn token_ids_are_checked() {
    let server = start(&["-c", "256"]);
    for tokens in [
        "[-1]",
        "[2147483648]",
        "[9223372036854775808]",
        "[1e400]",
        "[1.5]",
        "[1024]",
    ] {
        for path in [
            "/v1/completions",
            "/completion",
            "/v1/embeddings",
            "/detokenize",
        ] {
            let body = format!(r#"{{"prompt":{tokens},"input":{tokens},"tokens":{tokens}}}"#);
            let reply = http::request(server.address, "POST", path, &[], &body);
            assert_eq!(reply.status, 400, "{path} {tokens}: {}", reply.body);
        }
        let token = tokens.trim_matches(['[', ']']);
        let body = format!(r#"{{"prompt":"x","logit_bias":{{"{token}":1}}}}"#);
        let reply = http::request(server.address, "POST", "/v1/completions", &[], &body);
        assert_eq!(reply.status, 400, "logit_bias {token}: {}", reply.body);
    }
}
