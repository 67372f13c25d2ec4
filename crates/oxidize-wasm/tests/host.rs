//! The engine as its worker drives it: files in memory, requests and events as JSON.

use oxidize_core::Spawner;
use oxidize_core::engine::{Engine, EngineConfig, Request};
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingParams;
use oxidize_wasm::{Code, Failure, Host, LoadOptions, Loader, RequestOptions};
use serde_json::{Value as Json, json};

const TINY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../fixtures/tiny/model.gguf"
);

fn load(bytes: &[u8], options: Json) -> Result<Host, Failure> {
    let mut loader = Loader::default();
    let buffer = loader.add_file("model.gguf", bytes.len() as u64)?;
    buffer.copy_from_slice(bytes);
    let options = LoadOptions::parse(&options.to_string())?;
    loader.finish(&options, 0, Spawner::none())
}

fn tiny(options: Json) -> Result<Host, Failure> {
    load(&std::fs::read(TINY).unwrap(), options)
}

fn submit(host: &mut Host, id: u32, request: Json) -> Result<(), Failure> {
    host.submit(id, RequestOptions::parse(&request.to_string())?)
}

/// Steps until nothing is left, and returns the events.
fn run(host: &mut Host) -> Vec<Json> {
    let mut events = Vec::new();
    loop {
        let mut step: Json = serde_json::from_str(&host.step().unwrap()).unwrap();
        events.append(step["events"].as_array_mut().unwrap());
        if step["working"] == false {
            return events;
        }
    }
}

fn tokens_of(events: &[Json], id: u32) -> Vec<u64> {
    let tokens = events
        .iter()
        .filter(|event| event["id"] == id && event["type"] == "token");
    tokens
        .map(|event| event["token"].as_u64().unwrap())
        .collect()
}

#[test]
fn requests_share_steps_and_answer_as_an_engine_with_a_thread() {
    let mut host = tiny(json!({})).unwrap();
    let request = |prompt: &str| json!({ "prompt": prompt, "temperature": 0, "maxTokens": 9, "ignoreEos": true });
    let prompts = ["Once upon", "a second one"];
    for (id, prompt) in (1..).zip(prompts) {
        submit(&mut host, id, request(prompt)).unwrap();
    }
    let events = run(&mut host);
    let engine = Engine::with_config(
        Model::load(TINY).unwrap(),
        &EngineConfig::default().n_threads(1),
    )
    .unwrap();
    for (id, prompt) in (1..).zip(prompts) {
        let request = Request::new(prompt)
            .sampling(SamplingParams::greedy())
            .max_tokens(9)
            .ignore_eos();
        let expected = engine
            .submit(request)
            .unwrap()
            .map(|token| u64::from(token.unwrap().id));
        assert_eq!(tokens_of(&events, id), expected.collect::<Vec<_>>());
        let end = events
            .iter()
            .find(|event| event["id"] == id && event["type"] == "end")
            .unwrap();
        assert_eq!(
            (&end["finishReason"], &end["generatedTokens"]),
            (&json!("length"), &json!(9))
        );
    }
}

#[test]
fn cancelled_requests_send_no_more_events() {
    let mut host = tiny(json!({})).unwrap();
    for id in [1, 2] {
        submit(
            &mut host,
            id,
            json!({ "prompt": "x", "maxTokens": 20, "ignoreEos": true }),
        )
        .unwrap();
    }
    host.step().unwrap();
    host.cancel(1);
    let events = run(&mut host);
    assert!(tokens_of(&events, 1).is_empty() && tokens_of(&events, 2).len() >= 18);
}

#[test]
fn invalid_input_has_codes() {
    let code = |result: Result<Host, Failure>| result.err().unwrap().code;
    assert_eq!(code(load(b"<!doctype html>", json!({}))), Code::NotAModel);
    let whole = std::fs::read(TINY).unwrap();
    assert_eq!(
        code(load(&whole[..whole.len() / 2], json!({}))),
        Code::BrokenModel
    );
    assert_eq!(
        code(tiny(json!({ "contextSize": 1_000_000_000 }))),
        Code::ContextLength
    );
    assert_eq!(code(tiny(json!({ "kvType": "q2" }))), Code::InvalidArgument);
    assert_eq!(
        code(tiny(json!({ "contxtSize": 1 }))),
        Code::InvalidArgument
    );
    assert_eq!(
        code(tiny(json!({ "memoryLimit": 1000 }))),
        Code::OutOfMemory
    );

    let mut host = tiny(json!({ "contextSize": 256 })).unwrap();
    let mut code = |request: Json| submit(&mut host, 1, request).unwrap_err().code;
    for request in [
        json!({}),
        json!({ "prompt": "x", "tokens": [1] }),
        json!({ "prompt": "x", "temprature": 1 }),
        json!({ "prompt": "x", "temperature": -1 }),
        json!({ "prompt": "x", "regex": "a", "choice": ["a"] }),
        json!({ "prompt": "x", "choice": [] }),
        json!({ "prompt": "x", "grammar": "root ::= (" }),
        json!({ "prompt": "x", "logitBias": { "one": 1 } }),
        json!({ "prompt": "x", "mirostat": 3 }),
        json!({ "prompt": "x", "samplers": ["magic"] }),
        json!({ "messages": [] }),
        json!({ "messages": [{ "role": "user", "content": "x" }], "toolChoice": "required" }),
    ] {
        assert_eq!(code(request.clone()), Code::InvalidArgument, "{request}");
    }
    // The engine refuses this one in its next step.
    submit(&mut host, 2, json!({ "prompt": "x ".repeat(2_000) })).unwrap();
    let events = run(&mut host);
    assert_eq!(events[0]["code"], "context-length", "{events:?}");
    assert_eq!(
        host.detokenize(&[1_000_000], false).unwrap_err().code,
        Code::InvalidArgument
    );
}
