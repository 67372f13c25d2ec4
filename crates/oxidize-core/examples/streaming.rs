//! Tokens as they come, and an answer that is broken off:
//! `cargo run --release --example streaming -- MODEL [PROMPT]`.
//!
//! A `TokenStream` is an iterator, as here, and a `futures` stream for async code.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::engine::{Engine, EngineConfig, Event, Request};
use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingParams;
use oxidize_core::tokenizer::EncodeOptions;
use std::io::Write;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: streaming MODEL [PROMPT]")?;
    let prompt = arguments.next().unwrap_or("The best thing about".into());
    let model = Model::load(path, &OpenOptions::default())?;
    let config = EngineConfig::default();
    let engine = Engine::start(model.clone(), Arc::new(Cpu::default()), &config)?;
    let request = Request {
        tokens: model.tokenizer()?.encode(&prompt, EncodeOptions::default()),
        sampling: SamplingParams {
            temperature: 0.7,
            seed: Some(1),
            stop: vec!["\n\n".into()],
            ..SamplingParams::default()
        },
        ..Request::default()
    };

    print!("{prompt}");
    for (n, event) in engine.submit(request)?.enumerate() {
        match event? {
            // The text of a token is empty while a character or a stop string may be incomplete.
            Event::Token(token) => print!("{}", token.text),
            Event::Finished(finished) => println!("{} ({:?})", finished.text, finished.reason),
        }
        std::io::stdout().flush()?;
        if n == 100 {
            println!(" … enough");
            break; // Dropping the stream cancels the request and frees what it held.
        }
    }
    Ok(())
}
