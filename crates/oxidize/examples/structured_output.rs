//! An answer that matches a JSON schema: `cargo run --release --example structured_output -- MODEL [QUESTION]`.

use oxidize::{Engine, Grammar, Model, Request};

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "answer": { "type": "string", "maxLength": 60 },
        "confidence": { "enum": ["low", "medium", "high"] }
    },
    "required": ["answer", "confidence"],
    "additionalProperties": false
}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: structured_output MODEL [QUESTION]")?;
    let question = arguments
        .next()
        .unwrap_or("What is the capital of France?".into());

    let engine = Engine::new(Model::load(path)?)?;
    let request = Request::chat(question)
        .grammar(Grammar::json_schema(SCHEMA)?)
        .max_tokens(128);
    let text = engine.submit(request)?.text()?;
    // The grammar guarantees that this parses.
    let answer: serde_json::Value = serde_json::from_str(&text)?;
    println!("{} ({})", answer["answer"], answer["confidence"]);
    Ok(())
}
