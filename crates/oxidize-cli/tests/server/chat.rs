//! `/v1/chat/completions` and `/v1/responses`.

use super::*;

const CHAT: &str = "/v1/chat/completions";

fn content(completion: &Value, choice: usize) -> &str {
    completion["choices"][choice]["message"]["content"]
        .as_str()
        .unwrap()
}

fn weather() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"$ref": "#/$defs/days"}},
            "required": ["city", "days"], "additionalProperties": false,
            "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        }}},
        {"type": "function", "function": {"name": "time", "parameters": {
            "type": "object", "properties": {}, "additionalProperties": false,
        }}},
    ])
}

#[test]
fn streamed_and_whole_answers_agree() {
    let server = start(&[]);
    let asked = question("Hello", 24);
    let whole = server.post(CHAT, &asked).ok();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], "tiny");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 24);
    let mut streamed = asked.clone();
    streamed["stream_options"] = json!({ "include_usage": true });
    let events = server.events(CHAT, &streamed);
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, content(&whole, 0));
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"]["total_tokens"],
        whole["usage"]["total_tokens"]
    );
    let finish = &events[events.len() - 2];
    assert_eq!(finish["choices"][0]["finish_reason"], "length");
    assert!(finish["timings"]["predicted_n"] == 24);
    // The stream ends with OpenAI's end marker.
    let mut body = asked;
    body["stream"] = true.into();
    assert!(server.post(CHAT, &body).body.ends_with("data: [DONE]\n\n"));
}

#[test]
fn repeated_prompts_are_cached() {
    let server = start(&[]);
    let long = "All happy families are alike. ".repeat(20);
    let cached = |reply: &Value| {
        reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    let first = server.post(CHAT, &question(&long, 4)).ok();
    let second = server.post(CHAT, &question(&long, 4)).ok();
    assert_eq!(cached(&first), 0);
    let prompt = second["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached(&second) > prompt - 33, "{second}");
    assert_eq!(second["timings"]["cache_n"].as_u64(), Some(cached(&second)));
    assert!(second["timings"]["queued_ms"].as_f64().is_some());
    assert_eq!(content(&first, 0), content(&second, 0));
}

#[test]
fn several_answers_differ_and_follow_the_seed() {
    let server = start(&[]);
    let mut asked = question("Hello", 12);
    asked["temperature"] = 1.into();
    asked["n"] = 3.into();
    asked["seed"] = 7.into();
    let first = server.post(CHAT, &asked).ok();
    let texts: Vec<&str> = (0..3).map(|i| content(&first, i)).collect();
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert_eq!(first["usage"]["completion_tokens"], 36);
    let again = server.post(CHAT, &asked).ok();
    assert_eq!(first["choices"], again["choices"]);
    asked["seed"] = 8.into();
    let other = server.post(CHAT, &asked).ok();
    assert_ne!(first["choices"], other["choices"]);
    let events = server.events(CHAT, &asked);
    for (choice, whole) in other["choices"].as_array().unwrap().iter().enumerate() {
        let mine = events
            .iter()
            .filter(|event| event["choices"][0]["index"] == choice);
        let text: String = mine
            .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(text, whole["message"]["content"].as_str().unwrap());
    }
}

#[test]
fn stop_strings_logprobs_and_biases() {
    let server = start(&[]);
    let mut asked = question("Hello", 16);
    asked["logprobs"] = true.into();
    asked["top_logprobs"] = 3.into();
    let whole = server.post(CHAT, &asked).ok();
    let tokens = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(tokens.len(), 16);
    for token in &tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy sampling takes the most likely token.
        assert_eq!(
            (&top[0]["id"], &top[0]["logprob"]),
            (&token["id"], &token["logprob"])
        );
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
    let events = server.events(CHAT, &asked);
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, tokens);

    // A stop string ends the answer and is not part of it.
    let text = content(&whole, 0).to_owned();
    let stop: String = text.chars().skip(4).take(2).collect();
    let mut stopped = question("Hello", 16);
    stopped["stop"] = json!([stop]);
    let answer = server.post(CHAT, &stopped).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(content(&answer, 0), &text[..text.find(&stop).unwrap()]);

    let first = tokens[0]["id"].as_u64().unwrap();
    let mut biased = asked;
    biased["logit_bias"] = json!({ first.to_string(): -100 });
    let answer = server.post(CHAT, &biased).ok();
    assert_ne!(answer["choices"][0]["logprobs"]["content"][0]["id"], first);
}

#[test]
fn answers_follow_the_response_format() {
    let server = start(&[]);
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"], "additionalProperties": false,
    });
    let mut asked = question("Hello", 64);
    asked["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": true}});
    let answer = server.post(CHAT, &asked).ok();
    let value: Value = serde_json::from_str(content(&answer, 0)).unwrap();
    assert!(value["a"].is_u64() && value["b"].is_string(), "{value}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");

    let mut asked = question("Hello", 64);
    asked["grammar"] = "root ::= \"yes\" | \"no\"".into();
    let answer = server.post(CHAT, &asked).ok();
    assert!(["yes", "no"].contains(&content(&answer, 0)));

    let mut asked = question("Hello", 64);
    asked["response_format"] =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}});
    let error = server.post(CHAT, &asked).error(400);
    assert!(error.contains("`not`"), "{error}");
}

#[test]
fn required_tools_are_called() {
    let server = start(&[]);
    let mut asked = question("Weather in Rome?", 800);
    asked["tools"] = weather();
    asked["parallel_tool_calls"] = false.into();
    asked["tool_choice"] = json!({"type": "function", "function": {"name": "weather"}});
    let answer = server.post(CHAT, &asked).ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather");
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(
        arguments["days"].is_u64() && arguments["city"].is_string(),
        "{arguments}"
    );

    // Streamed arguments come in several parts.
    let events = server.events(CHAT, &asked);
    let deltas: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0))
        .collect();
    assert_eq!(deltas[0]["function"]["name"], "weather");
    assert!(deltas[0]["id"].as_str().unwrap().starts_with("call_"));
    let pieces: Vec<&str> = deltas
        .iter()
        .filter_map(|d| d["function"]["arguments"].as_str())
        .collect();
    assert!(pieces.len() > 3, "{pieces:?}");
    assert_eq!(
        pieces.concat(),
        call["function"]["arguments"].as_str().unwrap()
    );

    asked["tool_choice"] = "required".into();
    asked["parallel_tool_calls"] = true.into();
    let answer = server.post(CHAT, &asked).ok();
    let calls = answer["choices"][0]["message"]["tool_calls"]
        .as_array()
        .unwrap();
    assert!(
        calls
            .iter()
            .all(|c| ["weather", "time"].contains(&c["function"]["name"].as_str().unwrap()))
    );
    asked["tool_choice"] = "none".into();
    let answer = server.post(CHAT, &asked).ok();
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    asked["tool_choice"] = json!({"type": "function", "function": {"name": "nothing"}});
    assert!(server.post(CHAT, &asked).error(400).contains("nothing"));
}

#[test]
fn a_last_message_of_the_assistant_is_continued() {
    let server = start(&[]);
    let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is"}]);
    let prompt = server
        .post("/apply-template", &json!({ "messages": messages }))
        .ok();
    assert!(
        prompt["prompt"]
            .as_str()
            .unwrap()
            .ends_with("The answer is")
    );
    let answer = server
        .post(CHAT, &json!({ "messages": messages, "max_tokens": 3 }))
        .ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn errors_describe_the_problem() {
    let server = start(&["-c", "256"]);
    let error = server
        .post(CHAT, &question(&"word ".repeat(400), 5))
        .error(400);
    assert!(error.contains("256") && error.contains("tokens"), "{error}");
    let mut asked = question("x", 5);
    asked["model"] = "gpt-none".into();
    assert!(server.post(CHAT, &asked).error(404).contains("gpt-none"));
    for (body, word) in [
        (json!({"messages": []}), "messages"),
        (json!({}), "messages"),
        (json!({"messages": "x"}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
            "image_url",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3}),
            "logprobs",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}}),
            "xml",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "samplers": ["nope"]}),
            "nope",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "grammar": "root ::= ("}),
            "grammar",
        ),
    ] {
        let error = server.post(CHAT, &body).error(400);
        assert!(error.contains(word), "{error} for {body}");
    }
    assert_eq!(server.get("/nothing").status, 404);
    assert_eq!(server.get(CHAT).status, 405);
}

#[test]
fn streamed_and_whole_responses_agree() {
    let server = start(&[]);
    let asked = json!({"input": "Hello", "max_output_tokens": 8, "temperature": 0, "instructions": "Be kind.", "ignore_eos": true});
    let whole = server.post("/v1/responses", &asked).ok();
    assert_eq!(
        (&whole["object"], &whole["status"]),
        (&json!("response"), &json!("incomplete"))
    );
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 8);
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    let events = server.events("/v1/responses", &asked);
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
    );
    assert_eq!(kinds.last(), Some(&"response.incomplete"));
    let deltas: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(deltas, text);
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], index);
    }

    let tools = json!([{"type": "function", "name": "time", "parameters": {"type": "object", "additionalProperties": false}}]);
    let asked = json!({"input": "What time is it?", "tools": tools, "tool_choice": "required", "parallel_tool_calls": false});
    let whole = server.post("/v1/responses", &asked).ok();
    assert_eq!(whole["output"][0]["type"], "function_call");
    assert_eq!(whole["output"][0]["name"], "time");
}
