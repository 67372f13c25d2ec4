//! Ollama's API, which streams lines of JSON.

use super::*;

fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn chats_are_streamed_by_default() {
    let server = start(&[]);
    let mut asked = json!({
        "model": "tiny:latest", "messages": [{"role": "user", "content": "Hello"}],
        "options": {"num_predict": 8, "temperature": 0, "ignore_eos": true},
    });
    let streamed = lines(&server.post("/api/chat", &asked));
    let text: String = streamed
        .iter()
        .filter_map(|line| line["message"]["content"].as_str())
        .collect();
    let last = streamed.last().unwrap();
    assert_eq!(
        (&last["done"], &last["done_reason"]),
        (&json!(true), &json!("length"))
    );
    assert_eq!(last["eval_count"], 8);
    asked["stream"] = false.into();
    let whole = server.post("/api/chat", &asked).ok();
    assert_eq!(whole["message"]["content"], text);
    assert!(whole["created_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn generation_with_and_without_template() {
    let server = start(&[]);
    let asked = |raw: bool| {
        json!({
            "model": "tiny", "prompt": "Hello", "raw": raw, "stream": false,
            "options": {"num_predict": 4, "temperature": 0, "ignore_eos": true},
        })
    };
    let plain = server.post("/api/generate", &asked(true)).ok();
    let templated = server.post("/api/generate", &asked(false)).ok();
    assert!(plain["prompt_eval_count"].as_u64() < templated["prompt_eval_count"].as_u64());
    assert_eq!(plain["eval_count"], 4);
    let loaded = server.post("/api/generate", &json!({"model": "tiny"})).ok();
    assert_eq!(loaded["done_reason"], "load");
    let schema = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false});
    let formed = json!({"model": "tiny", "prompt": "x", "stream": false, "format": schema, "options": {"num_predict": 40}});
    let answer = server.post("/api/generate", &formed).ok();
    let value: Value = serde_json::from_str(answer["response"].as_str().unwrap()).unwrap();
    assert_eq!(value, json!({"a": 1}));
}

#[test]
fn models_are_listed_and_described() {
    let server = start(&[]);
    let tags = server.get("/api/tags").ok();
    assert_eq!(tags["models"][0]["name"], "tiny");
    assert_eq!(tags["models"][0]["details"]["quantization_level"], "Q8_0");
    let shown = server.post("/api/show", &json!({"model": "tiny"})).ok();
    assert_eq!(shown["model_info"]["general.architecture"], "llama");
    assert_eq!(
        server.get("/api/version").ok()["version"],
        env!("CARGO_PKG_VERSION")
    );
    let vectors = server
        .post("/api/embed", &json!({"model": "tiny", "input": ["a", "b"]}))
        .ok();
    assert_eq!(vectors["embeddings"].as_array().unwrap().len(), 2);
    let reply = server.post("/api/show", &json!({"model": "none"}));
    assert_eq!(reply.status, 404);
    assert!(reply.json()["error"].as_str().unwrap().contains("none"));
}
