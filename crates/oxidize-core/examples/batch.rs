//! Several requests at once, which share every step of the model:
//! `cargo run --release --example batch -- MODEL [PROMPT…]`.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::engine::{Engine, EngineConfig, Request};
use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingParams;
use oxidize_core::tokenizer::EncodeOptions;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: batch MODEL [PROMPT…]")?;
    let mut prompts: Vec<String> = arguments.collect();
    if prompts.is_empty() {
        prompts = ["The sun", "Water boils", "In the year 1900", "Two plus two"]
            .map(String::from)
            .to_vec();
    }
    let model = Model::load(path, &OpenOptions::default())?;
    // Eight requests run side by side; more wait for their turn.
    let config = EngineConfig {
        max_sequences: 8,
        ..EngineConfig::default()
    };
    let engine = Engine::start(model.clone(), Arc::new(Cpu::default()), &config)?;

    let start = Instant::now();
    let mut streams = Vec::new();
    for prompt in &prompts {
        streams.push(engine.submit(Request {
            tokens: model.tokenizer()?.encode(prompt, EncodeOptions::default()),
            sampling: SamplingParams::greedy(),
            max_tokens: Some(32),
            ..Request::default()
        })?);
    }
    let mut n_tokens = 0;
    for (prompt, stream) in prompts.iter().zip(streams) {
        let (text, finished) = stream.collect_text()?;
        println!("{prompt}{}\n", text.replace('\n', " "));
        n_tokens += finished.generated_tokens;
    }
    let speed = n_tokens as f64 / start.elapsed().as_secs_f64();
    eprintln!("{n_tokens} tokens, {speed:.1} tokens/s together");
    Ok(())
}
