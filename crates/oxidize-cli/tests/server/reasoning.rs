//! Reasoning: on, off, or up to a budget, in the fields of every API, with grammars and tool calls after it.

use super::*;

/// A template that opens the reasoning, unless it is switched off.
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>\n\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";

/// A server of the checked-in model with this template. Its answers begin with random reasoning.
fn reasoning_server(args: &[&str]) -> (tempfile::TempDir, Running) {
    server_of(&fixture(), args)
}

fn server_of(model: &str, args: &[&str]) -> (tempfile::TempDir, Running) {
    let directory = tempfile::tempdir().unwrap();
    let template = directory.path().join("template.jinja");
    std::fs::write(&template, TEMPLATE).unwrap();
    let fixed = [
        "--port",
        "0",
        model,
        "--chat-template-file",
        template.to_str().unwrap(),
    ];
    let server = start_with(&[&fixed, args].concat());
    (directory, server)
}

/// A greedy chat whose answer is three digits.
fn digits(fields: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Which number?"}], "regex": "[0-9]{3}",
        "temperature": 0, "max_tokens": 60,
    });
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

fn is_three_digits(text: &Value) -> bool {
    let text = text.as_str().unwrap_or_default();
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn budgets_end_the_reasoning_and_the_grammar_follows() {
    let (_directory, server) = reasoning_server(&[]);
    for fields in [
        json!({"thinking_budget": 5}),
        json!({"thinking_token_budget": 5}),
        json!({"reasoning_budget": 5}),
        json!({"reasoning": {"max_tokens": 5}}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 5}}),
    ] {
        let reply = server.post("/v1/chat/completions", &digits(fields.clone()));
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.header("x-oxidize-ignored"), None, "{fields}");
        let answer = reply.json();
        let message = &answer["choices"][0]["message"];
        assert!(is_three_digits(&message["content"]), "{fields}: {answer}");
        assert!(!message["reasoning_content"].as_str().unwrap().is_empty());
        let details = &answer["usage"]["completion_tokens_details"];
        assert_eq!(details["reasoning_tokens"], 5, "{answer}");
    }
    let hidden = digits(json!({"thinking_budget": 5, "include_reasoning": false}));
    let answer = server.post("/v1/chat/completions", &hidden).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message.get("reasoning_content"), None, "{answer}");
    assert!(is_three_digits(&message["content"]), "{answer}");
}

#[test]
fn reasoning_is_off_when_asked() {
    let (_directory, server) = reasoning_server(&[]);
    for fields in [
        json!({"reasoning_effort": "none"}),
        json!({"reasoning": {"enabled": false}}),
        json!({"enable_thinking": false}),
        json!({"thinking_budget": 0}),
        json!({"thinking": {"type": "disabled"}}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        let answer = server
            .post("/v1/chat/completions", &digits(fields.clone()))
            .json();
        let message = &answer["choices"][0]["message"];
        assert!(is_three_digits(&message["content"]), "{fields}: {answer}");
        assert_eq!(message.get("reasoning_content"), None, "{fields}: {answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
    }
    let wrong = digits(json!({"thinking": {"type": "sometimes"}}));
    let reply = server.post("/v1/chat/completions", &wrong);
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("thinking.type"), "{}", reply.body);
}

#[test]
fn streams_separate_reasoning_and_answer() {
    let (_directory, server) = reasoning_server(&[]);
    let body = digits(json!({"thinking_budget": 4}));
    let events = server.events("/v1/chat/completions", &body);
    let text = |field: &str| -> String {
        let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
        deltas.filter_map(|delta| delta[field].as_str()).collect()
    };
    assert!(is_three_digits(&json!(text("content"))), "{events:?}");
    assert!(!text("reasoning_content").is_empty());
}

#[test]
fn required_tool_calls_follow_the_reasoning() {
    // The description of the tool needs more context than the other model has.
    let (_directory, server) = server_of(tiny().to_str().unwrap(), &[]);
    let body = json!({
        "messages": [{"role": "user", "content": "Weather?"}], "temperature": 0, "thinking_budget": 6,
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"day": {"enum": ["today", "tomorrow"]}}, "required": ["day"],
        }}}],
        "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 1500,
    });
    let answer = server.post("/v1/chat/completions", &body).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        message["tool_calls"][0]["function"]["name"], "weather",
        "{answer}"
    );
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], 6, "{answer}");
}

#[test]
fn anthropic_ollama_and_responses_have_their_own_fields() {
    let (_directory, server) = reasoning_server(&[]);
    let anthropic = json!({
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "temperature": 0,
        "thinking": {"type": "enabled", "budget_tokens": 5},
    });
    let answer = server.post("/v1/messages", &anthropic).json();
    assert_eq!(answer["content"][0]["type"], "thinking", "{answer}");
    assert_eq!(answer["content"][1]["type"], "text", "{answer}");
    let ollama = |think: Value| {
        let body = json!({
            "model": "model", "messages": [{"role": "user", "content": "hi"}], "stream": false,
            "think": think, "options": {"num_predict": 8, "temperature": 0},
        });
        server.post("/api/chat", &body).json()
    };
    let thought = ollama(json!(true));
    assert!(thought["message"]["thinking"].is_string(), "{thought}");
    let quick = ollama(json!(false));
    assert!(quick["message"]["thinking"].is_null(), "{quick}");
    assert!(!quick["message"]["content"].as_str().unwrap().is_empty());
    let responses = |reasoning: Value| {
        let body = json!({"input": "hi", "max_output_tokens": 20, "temperature": 0, "reasoning": reasoning});
        server.post("/v1/responses", &body).json()
    };
    let limited = responses(json!({"effort": "low", "max_tokens": 3}));
    let details = &limited["usage"]["output_tokens_details"];
    assert_eq!(details["reasoning_tokens"], 3, "{limited}");
    let none = responses(json!({"effort": "none"}));
    assert_eq!(
        none["usage"]["output_tokens_details"]["reasoning_tokens"],
        0
    );
    assert_eq!(none["output"][0]["type"], "message", "{none}");
}

#[test]
fn flags_set_the_default_of_requests() {
    let (_directory, server) = reasoning_server(&["--think", "off"]);
    let reasoning = |fields: Value| {
        let answer = server.post("/v1/chat/completions", &digits(fields)).json();
        answer["usage"]["completion_tokens_details"]["reasoning_tokens"].clone()
    };
    assert_eq!(reasoning(json!({})), 0);
    let asked = json!({"enable_thinking": true, "thinking_budget": 4});
    assert_eq!(reasoning(asked), 4);
    let (_other, server) = reasoning_server(&["--think-budget", "7"]);
    let answer = server
        .post("/v1/chat/completions", &digits(json!({})))
        .json();
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], 7, "{answer}");
}
