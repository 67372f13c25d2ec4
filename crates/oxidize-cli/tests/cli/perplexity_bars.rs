//! Perplexity of real models over WikiText-2 against llama.cpp's figures.

use super::command;
use std::path::PathBuf;

#[test]
#[ignore = "large: make test-models"]
fn smollm2_is_as_perplexed_as_in_llama_cpp() {
    check("SmolLM2-135M-Instruct.Q4_1", 21.3722, (24, 26.438));
}

#[test]
#[ignore = "large: make test-models"]
fn gemma3_is_as_perplexed_as_in_llama_cpp() {
    check("gemma-3-270m-q4_k_m", 15.5647, (24, 17.114));
}

#[test]
#[ignore = "large: make test-models"]
fn tinyllama_is_as_perplexed_as_in_llama_cpp() {
    check("tinyllama-1.1b-chat.IQ2_XXS", 13.4707, (132, 16.4867));
}

#[test]
#[ignore = "large: make test-models"]
fn qwen2_is_as_perplexed_as_in_llama_cpp() {
    check("qwen2.5-coder-1.5b-instruct-q4_k_m", 12.9461, (8, 15.158));
}

/// Two chunks of 512 tokens, as llama.cpp was run: with BLAS, a cache of 32-bit floats and without
/// repacking, so that it rounds nothing that the file does not. So, nothing is rounded here, and as models are
/// usually run it may only be a little off. Then as many chunks as it takes for luck to even out, as llama.cpp runs by
/// default and `perplexity` does.
fn check(name: &str, exactly: f64, (chunks, rounded): (usize, f64)) {
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
        "--json",
    ];
    let float = ["--activations", "float", "-ctk", "f32", "-ctv", "f32"];
    for (more, chunks, theirs, most) in [
        (&float[..], 2, exactly, 2e-5),
        (&["--activations", "fine"], 2, exactly, 0.01),
        (&[], chunks, rounded, 0.002),
    ] {
        let chunks = chunks.to_string();
        let run = [&args[..], &["--chunks", &chunks], more].concat();
        let report = super::outcome(command(&run).output().unwrap()).json();
        let ours = report["perplexity"].as_f64().unwrap();
        println!("{name}, {chunks} chunks: {ours:.4}, llama.cpp {theirs}");
        assert!(
            (ours / theirs - 1.0).abs() < most,
            "{ours}, llama.cpp {theirs}"
        );
    }
}
