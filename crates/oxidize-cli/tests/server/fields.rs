//! Fields of requests: unknown ones are reported, known ones that cannot be honored are refused, and type errors
//! name the field.

use super::*;

/// A body for each endpoint that reads one.
fn bodies() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 1}),
        ),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
        (
            "/v1/responses",
            json!({"input": "a", "max_output_tokens": 1}),
        ),
        ("/v1/embeddings", json!({"input": "a"})),
        ("/embedding", json!({"content": "a"})),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 1}),
        ),
        ("/v1/messages/count_tokens", json!({"messages": messages})),
        ("/completion", json!({"prompt": "a", "n_predict": 1})),
        ("/tokenize", json!({"content": "a"})),
        ("/detokenize", json!({"tokens": [5]})),
        ("/apply-template", json!({"messages": messages})),
        (
            "/api/generate",
            json!({"model": "tiny", "prompt": "a", "options": {"num_predict": 1}}),
        ),
        (
            "/api/chat",
            json!({"model": "tiny", "messages": messages, "options": {"num_predict": 1}}),
        ),
        ("/api/embed", json!({"model": "tiny", "input": "a"})),
        ("/api/embeddings", json!({"model": "tiny", "prompt": "a"})),
        ("/api/show", json!({"model": "tiny"})),
    ]
}

#[test]
fn unknown_fields_are_listed_in_a_header() {
    let server = start(&[]);
    for (path, mut body) in bodies() {
        let plain = server.post(path, &body);
        assert_eq!(plain.status, 200, "{path}: {}", plain.body);
        assert_eq!(plain.header("x-oxidize-ignored"), None, "{path}");
        body["temprature"] = 0.5.into();
        body["ünknown,\n"] = Value::Null;
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        let ignored = reply.header("x-oxidize-ignored");
        assert_eq!(ignored, Some("temprature, ?nknown??"), "{path}");
    }
    // Inside of objects, and beside an error.
    let nested = json!({"model": "tiny", "prompt": "a", "options": {"num_predict": 1, "top_q": 1}});
    let reply = server.post("/api/generate", &nested);
    assert_eq!(reply.header("x-oxidize-ignored"), Some("options.top_q"));
    let wrong = json!({"prompt": "a", "shade": 1, "temperature": -1});
    let reply = server.post("/v1/completions", &wrong);
    assert_eq!(reply.status, 400);
    assert_eq!(reply.header("x-oxidize-ignored"), Some("shade"));
    // Streams have the header too. Messages and schemas are free in their fields.
    let stream = json!({"messages": [{"role": "user", "content": "a", "mood": "good"}], "stream": true,
        "max_tokens": 1, "zzz": 1, "response_format": {"type": "json_schema", "json_schema": {"name": "n",
        "schema": {"type": "integer", "title": "t"}}}});
    let reply = server.post("/v1/chat/completions", &stream);
    assert_eq!(reply.header("x-oxidize-ignored"), Some("zzz"));
}

#[test]
fn a_strict_server_refuses_unknown_fields() {
    let server = start(&["--strict"]);
    for (path, mut body) in bodies() {
        assert_eq!(server.post(path, &body).status, 200, "{path}");
        body["temprature"] = 0.5.into();
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        assert!(
            reply.body.contains("`temprature`"),
            "{path}: {}",
            reply.body
        );
    }
    drop(server);
    let mut command = command(&["--port", "0", tiny().to_str().unwrap()]);
    command.env("OXIDIZE_STRICT", "1");
    let server = start_command(command);
    let body = json!({"prompt": "a", "max_tokens": 1, "zzz": 1});
    assert!(
        server
            .post("/v1/completions", &body)
            .error(400)
            .contains("`zzz`")
    );
}

/// Fields that cannot be honored are refused by name, unless their value changes nothing.
#[test]
fn fields_that_cannot_be_honored_are_refused() {
    let server = start(&[]);
    let post = |path: &str, field: &str, value: &Value| {
        let known = bodies();
        let (_, mut body) = known.into_iter().find(|(known, _)| *known == path).unwrap();
        body[field] = value.clone();
        server.post(path, &body)
    };
    for (path, field, same, other) in [
        (
            "/v1/responses",
            "truncation",
            json!("disabled"),
            json!("auto"),
        ),
        ("/v1/responses", "background", json!(false), json!(true)),
        (
            "/v1/responses",
            "conversation",
            Value::Null,
            json!("conv_1"),
        ),
        ("/v1/responses", "store", json!(false), json!(true)),
        (
            "/v1/chat/completions",
            "modalities",
            json!(["text"]),
            json!(["text", "audio"]),
        ),
        (
            "/v1/chat/completions",
            "audio",
            Value::Null,
            json!({"voice": "x"}),
        ),
        ("/v1/chat/completions", "best_of", json!(1), json!(0)),
        (
            "/v1/chat/completions",
            "use_beam_search",
            json!(false),
            json!("yes"),
        ),
        (
            "/v1/chat/completions",
            "service_tier",
            json!("auto"),
            json!("priority"),
        ),
        (
            "/v1/completions",
            "truncate_prompt_tokens",
            Value::Null,
            json!(5),
        ),
        (
            "/v1/completions",
            "skip_special_tokens",
            json!(true),
            json!(false),
        ),
        (
            "/completion",
            "image_data",
            json!([]),
            json!([{"data": "x"}]),
        ),
        ("/completion", "t_max_predict_ms", json!(-1), json!(5)),
        (
            "/v1/messages",
            "mcp_servers",
            json!([]),
            json!([{"url": "x"}]),
        ),
        (
            "/api/generate",
            "template",
            json!(""),
            json!("{{ .Prompt }}"),
        ),
        ("/api/generate", "images", json!([]), json!(["aGk="])),
        ("/api/embed", "truncate", json!(false), json!(true)),
    ] {
        let reply = post(path, field, &same);
        assert_eq!(reply.status, 200, "{path} {field} {same}: {}", reply.body);
        assert_eq!(reply.header("x-oxidize-ignored"), None, "{path} {field}");
        let reply = post(path, field, &other);
        assert_eq!(reply.status, 400, "{path} {field} {other}: {}", reply.body);
        assert!(reply.body.contains(field), "{path} {field}: {}", reply.body);
    }
}

#[test]
fn type_errors_name_the_field_and_the_accepted_forms() {
    let server = start(&[]);
    for (path, body, parts) in [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": 5}]}),
            ["`messages[0].content`", "a string or a list", "not 5"],
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"content": "a"}]}),
            ["messages[0].role", "missing", ""],
        ),
        (
            "/v1/chat/completions",
            json!({"messages": "a"}),
            ["`messages`", "a list", "not the string"],
        ),
        (
            "/v1/completions",
            json!({"prompt": {"a": 1}}),
            ["`prompt`", "a string or a list", "an object"],
        ),
        (
            "/v1/completions",
            json!({"prompt": [[[1]]]}),
            ["`prompt[0][0]`", "a string", "not a list"],
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "stop": 3}),
            ["`stop`", "a string or a list of", "not 3"],
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "logit_bias": "x"}),
            ["`logit_bias`", "an object or a list", "not"],
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "top_k": "x"}),
            ["`top_k`", "an integer from -1", "\"x\""],
        ),
        (
            "/v1/messages",
            json!({"max_tokens": 1, "messages": [{"role": "user", "content": 5}]}),
            ["`messages[0].content`", "a string or a list", "not 5"],
        ),
        (
            "/v1/responses",
            json!({"input": 5}),
            ["`input`", "a string or a list", "not 5"],
        ),
        (
            "/v1/rerank",
            json!({"query": "a", "documents": [5]}),
            ["`documents[0]`", "a string or an object", "not 5"],
        ),
        (
            "/api/embed",
            json!({"model": "tiny", "input": 5}),
            ["`input`", "a string or a list", "not 5"],
        ),
        (
            "/api/generate",
            json!({"model": "tiny", "prompt": "a", "options": {"seed": "x"}}),
            ["`options.seed`", "an integer", "\"x\""],
        ),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{path} {body}: {}", reply.body);
        let message = reply.body.replace("\\\"", "\"");
        for part in parts {
            assert!(message.contains(part), "{path} {body}: {part}: {message}");
        }
        assert!(
            !message.contains("untagged") && !message.contains("enum"),
            "{message}"
        );
    }
}

#[test]
fn numbers_without_limit_and_mixed_prompts_are_accepted() {
    let server = start(&["-c", "64"]);
    let asked = json!({"prompt": "Hello", "max_tokens": -1, "top_k": -1, "temperature": 0, "ignore_eos": true});
    let whole = server.post("/v1/completions", &asked).ok();
    let usage = &whole["usage"];
    assert_eq!(usage["total_tokens"], 64, "{usage}");
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": -1, "ignore_eos": true});
    assert_eq!(
        server.post("/v1/chat/completions", &chat).ok()["usage"]["total_tokens"],
        64
    );
    let limit = json!({"prompt": "a", "max_tokens": -2});
    assert!(
        server
            .post("/v1/completions", &limit)
            .error(400)
            .contains("max_tokens")
    );

    let asked = |prompt: Value| json!({"prompt": prompt, "n_predict": 4, "temperature": 0, "ignore_eos": true});
    let tokens =
        |text: &str| server.post("/tokenize", &json!({"content": text})).ok()["tokens"].clone();
    let (hi, there) = (tokens("Hi"), tokens(" there"));
    let joined: Vec<Value> = [&hi, &there]
        .into_iter()
        .flat_map(|list| list.as_array().unwrap().clone())
        .collect();
    let mut mixed = hi.as_array().unwrap().clone();
    mixed.push(" there".into());
    let mixed = server.post("/completion", &asked(mixed.into())).ok();
    let plain = server.post("/completion", &asked(joined.into())).ok();
    assert_eq!(mixed["content"], plain["content"]);
    assert_eq!(mixed["tokens_evaluated"], plain["tokens_evaluated"]);
    server.post("/completion", &asked(json!([1, "Hi", 2]))).ok();
}

#[test]
fn paths_of_other_servers_exist() {
    let server = start(&[]);
    let text = json!({"content": "a cat"});
    let ours = server.post("/v1/embeddings", &text).ok();
    for path in ["/embedding", "/embeddings"] {
        let list = server.post(path, &text).ok();
        assert_eq!(
            list[0]["embedding"][0], ours["data"][0]["embedding"],
            "{path}"
        );
    }
    let one = server
        .post(
            "/api/embeddings",
            &json!({"model": "tiny", "prompt": "a cat"}),
        )
        .ok();
    assert_eq!(one["embedding"], ours["data"][0]["embedding"]);
    let asked = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    assert_eq!(
        server.post("/chat/completions", &asked).ok()["object"],
        "chat.completion"
    );
    assert_eq!(
        server
            .post("/responses", &json!({"input": "a", "max_output_tokens": 1}))
            .ok()["object"],
        "response"
    );
    assert_eq!(server.get("/models").ok()["data"][0]["id"], "tiny");
    for path in ["/rerank", "/reranking", "/v1/reranking", "/v1/rerank"] {
        let reply = server.post(path, &json!({"query": "a", "documents": ["b"]}));
        assert!(reply.error(400).contains("not a reranker"), "{path}");
    }
}
