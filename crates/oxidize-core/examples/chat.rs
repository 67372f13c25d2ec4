//! A conversation, one line of standard input a turn: `cargo run --release --example chat -- MODEL`.
//!
//! The whole conversation is sent every time; what the engine has seen of it is not computed again.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::chat::{ChatInput, ChatOptions, ChatTemplate, Message};
use oxidize_core::engine::{Engine, EngineConfig, Request};
use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::EncodeOptions;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: chat MODEL")?;
    let model = Model::load(path, &OpenOptions::default())?;
    let tokenizer = model.tokenizer()?;
    let config = EngineConfig::default();
    let engine = Engine::start(model.clone(), Arc::new(Cpu::default()), &config)?;
    // The model's own template, or one that many models know.
    let template = match model.chat_template()? {
        Some(template) => template,
        None => ChatTemplate::builtin("chatml", ChatOptions::default())?,
    };

    let mut messages = vec![Message::new("system", "You are brief.")];
    for line in std::io::stdin().lines() {
        messages.push(Message::new("user", line?));
        let prompt = template.render(&ChatInput {
            messages: &messages,
            add_generation_prompt: true,
            ..ChatInput::default()
        })?;
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let request = Request {
            tokens: tokenizer.encode(&prompt, options),
            sampling: model.sampling_defaults(),
            max_tokens: Some(200),
            ..Request::default()
        };
        let (text, finished) = engine.submit(request)?.collect_text()?;
        println!("{text}");
        eprintln!(
            "{} of {} prompt tokens were known",
            finished.cached_tokens, finished.prompt_tokens
        );
        messages.push(Message::new("assistant", text));
    }
    Ok(())
}
