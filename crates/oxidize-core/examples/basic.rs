//! One prompt, one answer: `cargo run --release --example basic -- MODEL [PROMPT]`.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::engine::{Engine, EngineConfig, Request};
use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::EncodeOptions;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: basic MODEL [PROMPT]")?;
    let prompt = arguments.next().unwrap_or("Once upon a time".into());

    // A GGUF file or a directory of safetensors. The weights stay in the file.
    let model = Model::load(path, &OpenOptions::default())?;
    // The engine runs on a thread of its own, which ends with the last handle.
    let config = EngineConfig::default();
    let engine = Engine::start(model.clone(), Arc::new(Cpu::default()), &config)?;

    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let request = Request {
        tokens: model.tokenizer()?.encode(&prompt, options),
        sampling: model.sampling_defaults(),
        max_tokens: Some(64),
        ..Request::default()
    };
    let (text, finished) = engine.submit(request)?.collect_text()?;
    println!("{prompt}{text}");
    let seconds = finished.timings.generation.as_secs_f64();
    eprintln!("{} tokens in {seconds:.2} s", finished.generated_tokens);
    Ok(())
}
