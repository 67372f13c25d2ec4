//! Completions, tokenization, embeddings, and lists of models.

use super::*;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::embedding::{Embedder, EmbedderConfig};
use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;

#[test]
fn completions_continue_text_and_tokens() {
    let server = start(&[]);
    let tokens = server
        .post(
            "/tokenize",
            &json!({"content": "Hello there", "add_special": true}),
        )
        .ok();
    let asked = |prompt: Value| json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    let from_text = server
        .post("/v1/completions", &asked("Hello there".into()))
        .ok();
    let from_tokens = server
        .post("/v1/completions", &asked(tokens["tokens"].clone()))
        .ok();
    assert_eq!(from_text["object"], "text_completion");
    assert_eq!(from_text["choices"], from_tokens["choices"]);
    let both = server
        .post("/v1/completions", &asked(json!(["Hello there", "Goodbye"])))
        .ok();
    assert_eq!(both["choices"][0]["text"], from_text["choices"][0]["text"]);
    assert_eq!(both["choices"].as_array().unwrap().len(), 2);
    let mut echo = asked("Hello there".into());
    echo["echo"] = true.into();
    echo["logprobs"] = 2.into();
    let echoed = server.post("/v1/completions", &echo).ok();
    let text = echoed["choices"][0]["text"].as_str().unwrap();
    assert!(
        text.starts_with("Hello there")
            && text.ends_with(from_text["choices"][0]["text"].as_str().unwrap())
    );
    let n_prompt = tokens["tokens"].as_array().unwrap().len();
    let logprobs = &echoed["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(
            logprobs[list].as_array().unwrap().len(),
            n_prompt + 8,
            "{list}"
        );
    }
    let events = server.events("/v1/completions", &asked("Hello there".into()));
    let streamed: String = events
        .iter()
        .filter_map(|e| e["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(streamed, from_text["choices"][0]["text"].as_str().unwrap());
}

#[test]
fn native_completions_have_the_format_of_llama_server() {
    let server = start(&[]);
    let asked = json!({"prompt": "Hello", "n_predict": 6, "temperature": 0, "ignore_eos": true, "n_probs": 2, "return_tokens": true});
    let whole = server.post("/completion", &asked).ok();
    assert_eq!(
        (&whole["stop"], &whole["stop_type"]),
        (&json!(true), &json!("limit"))
    );
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(
        whole["completion_probabilities"].as_array().unwrap().len(),
        6
    );
    assert_eq!(whole["tokens_predicted"], 6);
    let events = server.events("/completion", &asked);
    let text: String = events
        .iter()
        .map(|event| event["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, whole["content"].as_str().unwrap());
    assert_eq!(events.last().unwrap()["stop"], true);
    // The tiny model has no fill-in-the-middle tokens.
    let error = server
        .post(
            "/infill",
            &json!({"input_prefix": "a", "input_suffix": "b"}),
        )
        .error(400);
    assert!(error.contains("fill-in-the-middle"));
}

#[test]
fn tokenization_round_trips() {
    let server = start(&[]);
    for text in ["Hello, world!", "  two  spaces", "naïve café ☕ 漢字", ""] {
        let tokens = server.post("/tokenize", &json!({ "content": text })).ok();
        let back = server
            .post("/detokenize", &json!({ "tokens": tokens["tokens"] }))
            .ok();
        assert_eq!(back["content"], text);
    }
    let pieces = server
        .post(
            "/tokenize",
            &json!({"content": "Hello", "with_pieces": true}),
        )
        .ok();
    assert!(pieces["tokens"][0]["piece"].is_string());
    assert!(
        server
            .post("/detokenize", &json!({"tokens": [99_999_999]}))
            .error(400)
            .contains("vocabulary")
    );
}

#[test]
fn embeddings_are_normalized_and_cut() {
    let server = start(&[]);
    let asked = json!({"input": ["a cat", "a dog", "a cat"]});
    let list = server.post("/v1/embeddings", &asked).ok();
    let vector = |index: usize| -> Vec<f64> {
        let numbers = list["data"][index]["embedding"].as_array().unwrap();
        numbers.iter().map(|x| x.as_f64().unwrap()).collect()
    };
    assert_eq!(vector(0).len(), 256);
    let length: f64 = vector(0).iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-4);
    let near = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
    assert!(near(vector(0), vector(2)) && !near(vector(0), vector(1)));

    let coded = server
        .post(
            "/v1/embeddings",
            &json!({"input": "a cat", "encoding_format": "base64"}),
        )
        .ok();
    let text = coded["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(text.len(), (256 * 4usize).div_ceil(3) * 4);
    let short = server
        .post(
            "/v1/embeddings",
            &json!({"input": "a cat", "dimensions": 8}),
        )
        .ok();
    assert_eq!(short["data"][0]["embedding"].as_array().unwrap().len(), 8);
    server
        .post(
            "/v1/embeddings",
            &json!({"input": "a cat", "dimensions": 10_000}),
        )
        .error(400);
    server
        .post("/v1/embeddings", &json!({"input": []}))
        .error(400);
}

/// A cross-encoder scores query and document together; it has neither embeddings nor text.
#[test]
fn cross_encoders_rerank_by_score() {
    let golden = oxidize_golden::build("bert-cls");
    let path = golden.directory();
    let documents = ["a dog", "the quick brown fox", "rust", "a cat and a dog"];
    let model = Model::load_with(path, &OpenOptions::default()).unwrap();
    let tokenizer = model.tokenizer().unwrap();
    let pairs = documents.map(|document| tokenizer.encode_pair("a cat", document, false));
    let config = EmbedderConfig::default();
    let mut embedder = Embedder::with_backend(&model, &Cpu::default(), &config).unwrap();
    let scores = embedder.embed_token_pairs(&pairs).unwrap();
    let score = |index: usize| f64::from(scores[index][0][0]);

    let server = start_with(&["--port", "0", path.to_str().unwrap()]);
    let asked = json!({"query": "a cat", "documents": documents});
    let ranks = server.post("/v1/rerank", &asked).ok();
    let results = ranks["results"].as_array().unwrap();
    let relevance = |result: &Value| result["relevance_score"].as_f64().unwrap();
    assert_eq!(results.len(), documents.len());
    for result in results {
        let index = result["index"].as_u64().unwrap() as usize;
        assert!((relevance(result) - score(index)).abs() < 1e-5, "{ranks}");
    }
    assert!(
        results
            .windows(2)
            .all(|pair| relevance(&pair[0]) >= relevance(&pair[1]))
    );
    let cut = json!({"query": "a cat", "documents": [documents[0], {"text": documents[3]}], "top_n": 1,
        "return_documents": true});
    let cut = server.post("/v1/rerank", &cut).ok();
    let best = if score(0) >= score(3) { 0 } else { 1 };
    assert_eq!(cut["results"].as_array().unwrap().len(), 1);
    assert_eq!(cut["results"][0]["index"], best);
    assert!(!cut["results"][0]["document"].is_null());
    let n_tokens: usize = pairs.iter().map(|pair| pair.tokens.len()).sum();
    assert_eq!(ranks["usage"]["prompt_tokens"], n_tokens);
    let error = server.post("/v1/embeddings", &json!({"input": "a cat"}));
    assert!(error.error(400).contains("classifier"));
    let error = server.post("/v1/completions", &json!({"prompt": "a cat"}));
    assert!((400..500).contains(&error.status), "{}", error.body);
}

#[test]
fn models_and_properties() {
    let server = start_with(&[
        "--port",
        "0",
        tiny().to_str().unwrap(),
        &format!("other={}", fixture()),
    ]);
    let list = server.get("/v1/models").ok();
    let ids: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["tiny", "other"]);
    assert_eq!(
        (&list["data"][0]["loaded"], &list["data"][1]["loaded"]),
        (&json!(true), &json!(false))
    );
    // The second model is loaded on first use.
    let answer = server
        .post(
            "/v1/completions",
            &json!({"model": "other", "prompt": "a", "max_tokens": 2}),
        )
        .ok();
    assert_eq!(answer["model"], "other");
    assert_eq!(server.get("/v1/models/other").ok()["loaded"], true);
    assert_eq!(server.get("/v1/models/none").status, 404);
    let props = server.get("/props").ok();
    assert_eq!(props["total_slots"], 16);
    assert!(
        props["chat_template"]
            .as_str()
            .unwrap()
            .contains("<|im_start|>")
    );
    assert_eq!(server.get("/props?model=none").status, 404);
    let slots = server.get("/slots").ok();
    assert!(
        slots
            .as_array()
            .unwrap()
            .iter()
            .all(|slot| slot["is_processing"] == false)
    );
    assert_eq!(server.get("/lora-adapters").ok(), json!([]));
    assert_eq!(server.post("/lora-adapters", &json!([])).ok(), json!([]));
    let unknown = json!([{"id": 0, "scale": 0.5}]);
    assert!(
        server
            .post("/lora-adapters", &unknown)
            .error(400)
            .contains("0 adapters")
    );
}
