//! The same prompt with different samplers: `cargo run --release --example sampling -- MODEL [PROMPT]`.

use oxidize::sampling::MirostatMode;
use oxidize::{Engine, Model, SamplingParams};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: sampling MODEL [PROMPT]")?;
    let prompt = arguments
        .next()
        .unwrap_or("The best thing about rain is".into());
    let engine = Engine::new(Model::load(path)?)?;

    // The settings that the model's authors recommend, with one seed for comparable answers.
    let recommended = |change: fn(&mut SamplingParams)| {
        let mut sampling = engine.model().sampling_defaults();
        sampling.seed = Some(7);
        change(&mut sampling);
        sampling
    };
    let variants = [
        ("greedy", SamplingParams::greedy()),
        ("recommended", recommended(|_| {})),
        (
            "min-p",
            recommended(|sampling| {
                sampling.temperature = 1.2;
                sampling.top_k = 0;
                sampling.top_p = 1.0;
                sampling.min_p = 0.1;
            }),
        ),
        (
            "mirostat 2",
            recommended(|sampling| sampling.mirostat.mode = MirostatMode::V2),
        ),
        ("dry", recommended(|sampling| sampling.dry.multiplier = 0.8)),
    ];
    for (name, sampling) in variants {
        let request = engine
            .request(prompt.as_str())
            .sampling(sampling)
            .max_tokens(32);
        println!("{name:12} {prompt}{}", engine.submit(request)?.text()?);
    }
    Ok(())
}
