//! Perplexity of real models over WikiText-2 against llama.cpp's figures.

use super::command;
use std::path::PathBuf;

#[test]
#[ignore = "large: make test-models"]
fn smollm2_is_as_perplexed_as_in_llama_cpp() {
    check("SmolLM2-135M-Instruct.Q4_1", 21.3722);
}

#[test]
#[ignore = "large: make test-models"]
fn gemma3_is_as_perplexed_as_in_llama_cpp() {
    check("gemma-3-270m-q4_k_m", 15.5647);
}

#[test]
#[ignore = "large: make test-models"]
fn tinyllama_is_as_perplexed_as_in_llama_cpp() {
    check("tinyllama-1.1b-chat.IQ2_XXS", 13.4707);
}

#[test]
#[ignore = "large: make test-models"]
fn qwen2_is_as_perplexed_as_in_llama_cpp() {
    check("qwen2.5-coder-1.5b-instruct-q4_k_m", 12.9461);
}

/// Two chunks of 512 tokens, as llama.cpp was run: with BLAS, a cache of 32-bit floats and without
/// repacking, so that it rounds nothing that the file does not. So, nothing is rounded here, and ways
/// that round may only be a little off.
fn check(name: &str, theirs: f64) {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = set("OXIDIZE_TEST_CACHE").or_else(|| Some(set("HOME")?.join(".cache/oxidize")));
    let shared = set("OXIDIZE_SHARED")
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let model = cache
        .unwrap_or_default()
        .join(format!("models/{name}.gguf"));
    let text = shared.join("eval/wiki.test.raw");
    for path in [&model, &text] {
        if !path.exists() {
            eprintln!("SKIPPED: no {}", path.display());
            return;
        }
    }
    let (model, text) = (model.to_string_lossy(), text.to_string_lossy());
    let args = [
        "perplexity",
        "-m",
        &model,
        "-f",
        &text,
        "-c",
        "512",
        "--chunks",
        "2",
        "--json",
    ];
    let exact = ["--activations", "float", "-ctk", "f32", "-ctv", "f32"];
    let coarse = ["--activations", "coarse"];
    for (more, most) in [(&exact[..], 2e-5), (&[], 0.01), (&coarse, 0.02)] {
        let output = command(&[&args[..], more].concat()).output().unwrap();
        let report = super::outcome(output).json();
        let ours = report["perplexity"].as_f64().unwrap();
        println!("{name}: {ours:.4}, llama.cpp {theirs}");
        assert!(
            (ours / theirs - 1.0).abs() < most,
            "{ours}, llama.cpp {theirs}"
        );
    }
}
