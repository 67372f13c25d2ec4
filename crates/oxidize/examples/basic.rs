//! Continues a text: `cargo run --release --example basic -- MODEL [PROMPT]`.

use oxidize::{Engine, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: basic MODEL [PROMPT]")?;
    let prompt = arguments.next().unwrap_or("Once upon a time".into());

    // A GGUF file or a directory of safetensors. The weights stay in the file.
    let engine = Engine::new(Model::load(path)?)?;
    let request = engine.request(prompt.as_str()).max_tokens(64);
    let (text, finished) = engine.submit(request)?.collect_text()?;

    println!("{prompt}{text}");
    let seconds = finished.timings.generation.as_secs_f64();
    eprintln!("{} tokens in {seconds:.2} s", finished.generated_tokens);
    Ok(())
}
