//! Similarity of sentences: `cargo run --release --example embeddings -- MODEL [SENTENCE]...`.

use oxidize::embedding::EmbedderConfig;
use oxidize::{Embedder, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: embeddings MODEL [SENTENCE]...")?;
    let mut sentences: Vec<String> = arguments.collect();
    if sentences.is_empty() {
        let defaults = [
            "A cat sits outside.",
            "A kitten is in the garden.",
            "Stocks fell today.",
        ];
        sentences = defaults.map(String::from).to_vec();
    }

    let config = EmbedderConfig::default().normalize(true);
    let mut embedder = Embedder::with_config(&Model::load(path)?, &config)?;
    let vectors = embedder.embed(&sentences)?;
    for (sentence, vector) in sentences.iter().zip(&vectors) {
        let similarity: f32 = vectors[0].iter().zip(vector).map(|(a, b)| a * b).sum();
        println!("{similarity:6.3}  {sentence}");
    }
    Ok(())
}
