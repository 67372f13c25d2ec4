//! Embeddings of real models, compared with those of sentence-transformers and llama.cpp.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::embedding::{Embedder, EmbedderConfig};
use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;
use oxidize_core::tokenizer::EncodeOptions;
use oxidize_testing::cached;
use std::path::Path;

oxidize_testing::main!(; large minilm, nomic);

/// Loads a model of the test cache, which `scripts/setup --models` fills.
fn load(name: &str) -> Model {
    let path = cached(Path::new("models").join(name));
    Model::load_with(path, &OpenOptions::default()).unwrap()
}

fn embed(model: &Model, texts: &[&str], normalize: bool) -> Vec<Vec<f32>> {
    let tokenizer = model.tokenizer().unwrap();
    let encode = |text: &&str| tokenizer.encode(text, EncodeOptions::default());
    let texts: Vec<Vec<u32>> = texts.iter().map(encode).collect();
    let config = EmbedderConfig {
        normalize,
        ..EmbedderConfig::default()
    };
    let mut embedder = Embedder::with_backend(model, &Cpu::default(), &config).unwrap();
    let embeddings = embedder.embed_tokens(&texts).unwrap();
    embeddings.into_iter().flatten().collect()
}

/// Compares with NumPy in double precision and the `tokenizers` package. The model's directory declares mean
/// pooling and normalization.
fn minilm() {
    let model = load("all-MiniLM-L6-v2");
    let texts = [
        "This is a test sentence.",
        "How do I bake a cake? Unbelievable naïveté!",
    ];
    let expected: [[f32; 6]; 2] = [
        [
            0.08429644,
            0.05795368,
            0.00449337,
            0.1058211,
            0.00708341,
            -0.01784466,
        ],
        [
            0.08172203,
            0.03819199,
            -0.0064828,
            -0.00187798,
            -0.03140071,
            -0.00236892,
        ],
    ];
    for (vector, expected) in embed(&model, &texts, false).iter().zip(expected) {
        assert_eq!(vector.len(), 384);
        for (ours, theirs) in vector.iter().zip(expected) {
            assert!((ours - theirs).abs() < 2e-6, "{ours} {theirs}");
        }
    }
}

/// Compares with llama.cpp on the same file, which rounds keys, values and activations to half precision.
fn nomic() {
    let model = load("nomic-embed-text-v1.5.f16.gguf");
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/embeddings/nomic-embed-text-v1.5.json"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let reference: serde_json::Value = serde_json::from_str(&text).unwrap();
    for entry in reference["embeddings"].as_array().unwrap() {
        let theirs = entry["r"]["data"][0]["embedding"].as_array().unwrap();
        let ours = embed(&model, &[entry["text"].as_str().unwrap()], true).remove(0);
        assert_eq!(ours.len(), theirs.len());
        let pairs = ours.iter().zip(theirs);
        let cosine: f64 = pairs
            .map(|(a, b)| f64::from(*a) * b.as_f64().unwrap())
            .sum();
        assert!(cosine > 0.999_99, "{cosine}");
    }
}
