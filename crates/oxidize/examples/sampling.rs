//! The same prompt with different samplers: `cargo run --release --example sampling -- MODEL [PROMPT]`.

use oxidize::{DryParams, Engine, MirostatMode, MirostatParams, Model, SamplingParams};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: sampling MODEL [PROMPT]")?;
    let prompt = arguments
        .next()
        .unwrap_or("The best thing about rain is".into());
    let engine = Engine::new(Model::load(path)?)?;

    // The settings that the model's authors recommend, with one seed for comparable answers.
    let recommended = SamplingParams {
        seed: Some(7),
        ..engine.model().sampling_defaults()
    };
    let variants = [
        ("greedy", SamplingParams::greedy()),
        ("recommended", recommended.clone()),
        (
            "min-p",
            SamplingParams {
                temperature: 1.2,
                top_k: 0,
                top_p: 1.0,
                min_p: 0.1,
                ..recommended.clone()
            },
        ),
        (
            "mirostat 2",
            SamplingParams {
                mirostat: MirostatParams {
                    mode: MirostatMode::V2,
                    ..MirostatParams::default()
                },
                ..recommended.clone()
            },
        ),
        (
            "dry",
            SamplingParams {
                dry: DryParams {
                    multiplier: 0.8,
                    ..DryParams::default()
                },
                ..recommended
            },
        ),
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
