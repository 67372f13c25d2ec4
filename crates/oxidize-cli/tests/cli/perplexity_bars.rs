//! Perplexity of real models over WikiText-2 against llama.cpp's figures.

use super::command;
use std::path::PathBuf;

#[test]
#[ignore = "large: make test-models"]
fn smollm2_is_as_perplexed_as_in_llama_cpp() {
    within_half_a_percent("SmolLM2-135M-Instruct.Q4_1", 22.85);
}

#[test]
#[ignore = "large: make test-models"]
fn gemma3_is_as_perplexed_as_in_llama_cpp() {
    within_half_a_percent("gemma-3-270m-q4_k_m", 15.29);
}

/// Four chunks of 512 tokens, as llama.cpp was run.
fn within_half_a_percent(name: &str, theirs: f64) {
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
        "4",
        "--json",
    ];
    let output = command(&args).output().unwrap();
    let report = super::outcome(output).json();
    let ours = report["perplexity"].as_f64().unwrap();
    println!("{name}: {ours:.3}, llama.cpp {theirs}");
    assert!(
        (ours / theirs - 1.0).abs() < 0.005,
        "{ours}, llama.cpp {theirs}"
    );
}
