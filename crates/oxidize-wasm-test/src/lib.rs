//! Answers of a model, by an engine that its host steps. `scripts/check-isa wasm` compiles it for WebAssembly and compares
//! the answers in Node with those of an engine on a thread of its own.

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod exports;

use oxidize_core::engine::{Engine, EngineConfig, EngineState, Request, Stepper, TokenStream};
use oxidize_core::error::Result;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::grammar::Grammar;
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingParams;
use std::task::Poll;

/// Greedy requests that run at the same time, the last ones with grammars.
pub fn requests() -> Vec<Request> {
    let greedy = |seed: u32, len: u32| {
        let token = |i: u32| 5 + (i * i * 31 + i * 7 + seed * 101) % 315;
        let tokens: Vec<u32> = (0..len).map(token).collect();
        Request {
            prompt: tokens.into(),
            sampling: Some(SamplingParams::greedy()),
            max_tokens: Some(24),
            ..Request::default()
        }
    };
    let plain = (0..4).map(|seed| greedy(seed, 3 + 20 * seed).ignore_eos());
    let schema = r##"{"type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"$ref": "#/$defs/digit"}}, "$defs": {"digit": {"enum": [1, 2, 3]}}}"##;
    let grammars = [
        Grammar::json_schema(schema).unwrap_or(Grammar::JsonObject),
        Grammar::Regex("[0-9]{4}-[0-9]{2}".into()),
        Grammar::choice(["yes", "no"]),
    ];
    let constrained = (10..).zip(grammars);
    let constrained = constrained.map(|(seed, grammar)| greedy(seed, 8).grammar(grammar));
    plain.chain(constrained).collect()
}

/// Loads a GGUF file that is in memory.
pub fn load(bytes: Vec<u8>) -> Result<Model> {
    Model::from_file(ModelFile::from_bytes(bytes, &OpenOptions::default())?)
}

/// Settings of the engine.
pub fn config() -> EngineConfig {
    EngineConfig::default().max_batch_tokens(32)
}

/// A line of an answer: its token ids, and its text in escaped form.
pub fn line(model: &Model, ids: &[u32]) -> Result<String> {
    let text = model.tokenizer()?.decode(ids);
    Ok(format!("{ids:?} {text:?}"))
}

/// A stepped engine that answers [`requests`].
pub struct Host {
    model: Model,
    stepper: Stepper,
    streams: Vec<TokenStream>,
    ids: Vec<Vec<u32>>,
}

impl Host {
    /// Submits the requests.
    pub fn new(model: Model) -> Result<Host> {
        let (engine, stepper) = Engine::stepped(model.clone(), &config())?;
        let streams = requests().into_iter().map(|request| engine.submit(request));
        let streams = streams.collect::<Result<Vec<_>>>()?;
        Ok(Host {
            model,
            stepper,
            ids: vec![Vec::new(); streams.len()],
            streams,
        })
    }

    /// Makes a step and reads its tokens; true while there is more to compute.
    pub fn step(&mut self) -> Result<bool> {
        let state = self.stepper.step_blocking()?;
        for (stream, ids) in self.streams.iter_mut().zip(&mut self.ids) {
            while let Poll::Ready(Some(token)) = stream.try_recv() {
                ids.push(token?.id);
            }
        }
        Ok(state == EngineState::Working)
    }

    /// The answers so far, a line each.
    pub fn answers(&self) -> Result<Vec<String>> {
        self.ids.iter().map(|ids| line(&self.model, ids)).collect()
    }

    /// True if every answer has taken time, as the clock of the host says.
    pub fn has_timings(&self) -> bool {
        self.streams.iter().all(|stream| {
            let completion = stream.completion();
            completion.is_some_and(|completion| !completion.timings.prompt.is_zero())
        })
    }
}
