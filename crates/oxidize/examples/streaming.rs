//! Two answers at once from async code: `cargo run --release --example streaming -- MODEL`.
//!
//! A `TokenStream` is an iterator, has an async `recv`, and is a `futures` stream; dropping it cancels the request.

use oxidize::{Engine, Model, Request};

async fn answer(engine: Engine, question: &str) -> oxidize::Result<String> {
    let mut stream = engine.submit(Request::chat(question).max_tokens(48))?;
    let mut text = String::new();
    while let Some(token) = stream.recv().await {
        text.push_str(&token?.text);
        eprint!(".");
    }
    Ok(text)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: streaming MODEL")?;
    let engine = Engine::new(Model::load(path)?)?;
    // Both requests share every step of the model.
    let (first, second) = tokio::join!(
        answer(engine.clone(), "What is a compiler?"),
        answer(engine.clone(), "What is a linker?"),
    );
    println!("\n{}\n\n{}", first?, second?);
    Ok(())
}
