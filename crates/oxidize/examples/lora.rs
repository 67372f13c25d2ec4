//! One base model, with and without a LoRA adapter, in the same batch:
//! `cargo run --release --example lora -- MODEL ADAPTER [PROMPT]`.

use oxidize::{Adapter, Engine, Model, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: lora MODEL ADAPTER [PROMPT]";
    let (model, adapter) = (
        arguments.next().ok_or(usage)?,
        arguments.next().ok_or(usage)?,
    );
    let prompt = arguments.next().unwrap_or("Once upon a time".into());

    // A GGUF adapter or a PEFT directory.
    let adapter = Adapter::open(adapter, &OpenOptions::default())?;
    let model = Model::load(model)?.with_adapters(vec![(adapter, 1.0)])?;
    let engine = Engine::new(model)?;

    let scales = [0.0, 0.5, 1.0];
    let streams = scales
        .map(|scale| {
            let request = engine
                .request(prompt.as_str())
                .temperature(0.0)
                .max_tokens(24);
            engine.submit(request.adapters([scale]))
        })
        .into_iter()
        .collect::<oxidize::Result<Vec<_>>>()?;
    for (scale, stream) in scales.iter().zip(streams) {
        println!("scale {scale}: {:?}", stream.text()?);
    }
    Ok(())
}
