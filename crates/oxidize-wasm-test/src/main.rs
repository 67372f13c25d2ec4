//! Prints the answers of an engine on a thread of its own: oxidize-wasm-test MODEL.gguf

use oxidize_core::Error;
use oxidize_core::engine::{Engine, Token};
use oxidize_wasm_test::{config, line, load, requests};
use std::process::ExitCode;

fn answers(path: &str) -> Result<Vec<String>, Error> {
    let model = load(std::fs::read(path).map_err(|error| Error::Io {
        path: path.into(),
        error,
    })?)?;
    let engine = Engine::with_config(model, &config())?;
    let streams = requests().into_iter().map(|request| engine.submit(request));
    let streams = streams.collect::<Result<Vec<_>, _>>()?;
    let answers = streams.into_iter().map(|stream| {
        let tokens: Vec<Token> = stream.collect::<Result<_, _>>()?;
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        line(engine.model(), &ids)
    });
    answers.collect()
}

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: oxidize-wasm-test MODEL.gguf");
        return ExitCode::from(2);
    };
    match answers(&path) {
        Ok(answers) => {
            answers.iter().for_each(|answer| println!("{answer}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
