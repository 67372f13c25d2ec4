//! Many requests at once: `cargo run --release --example batch -- MODEL`.

use std::time::Instant;

use oxidize::{Engine, EngineConfig, Model, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: batch MODEL")?;
    let config = EngineConfig::default()
        .max_sequences(16)
        .cache_tokens(16 * 256);
    let engine = Engine::with_config(Model::load(path)?, &config)?;

    let start = Instant::now();
    // Submit everything before reading the first answer: requests that run together share every step.
    let streams = (1..=16)
        .map(|n| {
            engine.submit(
                Request::new(format!("{n} apples cost"))
                    .max_tokens(24)
                    .temperature(0.0),
            )
        })
        .collect::<oxidize::Result<Vec<_>>>()?;
    let mut generated = 0;
    for (n, stream) in (1..).zip(streams) {
        let (text, finished) = stream.collect_text()?;
        println!("{n} apples cost{}", text.lines().next().unwrap_or_default());
        generated += finished.generated_tokens;
    }
    let rate = generated as f64 / start.elapsed().as_secs_f64();
    eprintln!("{generated} tokens, {rate:.1} per second");
    Ok(())
}
