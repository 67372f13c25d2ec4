//! Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.

use super::*;

const MESSAGES: &str = "/v1/messages";

fn turns() -> Value {
    json!([{ "role": "user", "content": [{ "type": "text", "text": "Hello" }] }])
}

#[test]
fn streamed_and_whole_messages_agree() {
    let server = start(&[]);
    let asked = json!({"model": "tiny", "system": "Be kind.", "messages": turns(), "max_tokens": 8, "temperature": 0});
    let whole = server.post(MESSAGES, &asked).ok();
    assert_eq!(
        (&whole["type"], &whole["role"]),
        (&json!("message"), &json!("assistant"))
    );
    let events = server.events(MESSAGES, &asked);
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(
        kinds[kinds.len() - 3..],
        ["content_block_stop", "message_delta", "message_stop"]
    );
    let text: String = events
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str())
        .collect();
    assert_eq!(text, whole["content"][0]["text"].as_str().unwrap());
    let last = &events[events.len() - 2];
    assert_eq!(last["delta"]["stop_reason"], whole["stop_reason"]);
    let usage = &whole["usage"];
    let input = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    let counted = server.post("/v1/messages/count_tokens", &asked).ok();
    assert_eq!(counted["input_tokens"], input);
}

#[test]
fn required_tools_are_called() {
    let server = start(&[]);
    let asked = json!({
        "messages": turns(), "max_tokens": 400, "temperature": 0,
        "tools": [{"name": "time", "description": "The time.", "input_schema": {
            "type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"], "additionalProperties": false,
        }}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    });
    let whole = server.post(MESSAGES, &asked).ok();
    assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
    assert_eq!(whole["content"][0]["input"], json!({"zone": "UTC"}));
    let events = server.events(MESSAGES, &asked);
    let start = events
        .iter()
        .find(|event| event["type"] == "content_block_start")
        .unwrap();
    assert_eq!(start["content_block"]["name"], "time");
    let input: String = events
        .iter()
        .filter_map(|event| event["delta"]["partial_json"].as_str())
        .collect();
    assert_eq!(
        serde_json::from_str::<Value>(&input).unwrap(),
        json!({"zone": "UTC"})
    );
}

#[test]
fn errors_have_anthropics_format() {
    let server = start(&[]);
    let reply = server.post(MESSAGES, &json!({ "messages": turns() }));
    assert_eq!(reply.status, 400);
    let error = reply.json();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&json!("error"), &json!("invalid_request_error"))
    );
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("max_tokens")
    );
    let reply = server.post(
        MESSAGES,
        &json!({"model": "none", "messages": turns(), "max_tokens": 1}),
    );
    assert_eq!(
        (reply.status, &reply.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
}
