//! A conversation, one line of standard input per turn: `cargo run --release --example chat -- MODEL`.
//!
//! The whole conversation is sent every time; the prefix cache keeps what earlier turns computed.

use std::io::Write;

use oxidize::{Conversation, Engine, Message, Model, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: chat MODEL")?;
    let engine = Engine::new(Model::load(path)?)?;

    let mut conversation = Conversation::new().system("You are brief.");
    for line in std::io::stdin().lines() {
        conversation = conversation.user(line?);
        let mut answer = String::new();
        let request = Request::chat(conversation.clone()).max_tokens(256);
        let mut stream = engine.submit(request)?;
        for token in &mut stream {
            let text = token?.text;
            print!("{text}");
            std::io::stdout().flush()?;
            answer.push_str(&text);
        }
        println!();
        if let Some(finished) = stream.completion() {
            let (cached, prompt) = (finished.cached_tokens, finished.prompt_tokens);
            eprintln!("{cached} of {prompt} prompt tokens were cached");
        }
        conversation = conversation.push(Message::new("assistant", answer));
    }
    Ok(())
}
