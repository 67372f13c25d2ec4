//! Perplexity of real models on WikiText-2, compared with llama.cpp.

use oxidize_testing::{beside, cached};
use serde_json::Value;
use std::process::Command;

oxidize_testing::main!(; large
    smollm2_perplexity_matches_llama_cpp,
    gemma3_perplexity_matches_llama_cpp,
    tinyllama_perplexity_matches_llama_cpp,
    qwen2_perplexity_matches_llama_cpp,
);

fn smollm2_perplexity_matches_llama_cpp() {
    check("SmolLM2-135M-Instruct.Q4_1", 21.3722, (24, 26.438));
}

fn gemma3_perplexity_matches_llama_cpp() {
    check("gemma-3-270m-q4_k_m", 15.5647, (24, 17.114));
}

fn tinyllama_perplexity_matches_llama_cpp() {
    check("tinyllama-1.1b-chat.IQ2_XXS", 13.4707, (132, 16.4867));
}

fn qwen2_perplexity_matches_llama_cpp() {
    check("qwen2.5-coder-1.5b-instruct-q4_k_m", 12.9461, (8, 15.158));
}

/// `exactly` is llama.cpp's perplexity of two chunks of 512 tokens with BLAS, an f32 cache and no repacking,
/// which quantizes no activations. It is compared with f32 activations, and loosely with block32. `rounded`
/// is llama.cpp's perplexity with default settings over more chunks, compared with the default of
/// `perplexity`.
fn check(name: &str, exactly: f64, (chunks, rounded): (usize, f64)) {
    let model = cached(format!("models/{name}.gguf"));
    let text = beside("eval/wiki.test.raw");
    let (model, text) = (model.to_string_lossy(), text.to_string_lossy());
    let args = [
        "perplexity",
        "-m",
        &model,
        "-f",
        &text,
        "-c",
        "512",
        "--json",
    ];
    let float = ["--activations", "f32", "-ctk", "f32", "-ctv", "f32"];
    for (more, chunks, theirs, most) in [
        (&float[..], 2, exactly, 2e-5),
        (&["--activations", "block32"], 2, exactly, 0.01),
        (&[], chunks, rounded, 0.002),
    ] {
        let chunks = chunks.to_string();
        let run = [&args[..], &["--chunks", &chunks], more].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_oxidize"))
            .args(run)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let ours = report["perplexity"].as_f64().unwrap();
        println!("{name}, {chunks} chunks: {ours:.4}, llama.cpp {theirs}");
        assert!(
            (ours / theirs - 1.0).abs() < most,
            "{ours}, llama.cpp {theirs}"
        );
    }
}
