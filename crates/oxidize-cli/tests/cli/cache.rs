//! Names of models in the cache.

use super::{Outcome, command, model, outcome};
use std::path::Path;

/// A cache with copies of the tiny model under these names.
fn cache(names: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let models = directory.path().join("models");
    std::fs::create_dir(&models).unwrap();
    for name in names {
        std::fs::copy(model(), models.join(name)).unwrap();
    }
    directory
}

fn oxidize(cache: &Path, args: &[&str]) -> Outcome {
    let output = command(args).env("OXIDIZE_TEST_CACHE", cache).output();
    outcome(output.unwrap())
}

/// The name that `--help` shows as the default, and names in every command.
#[test]
fn names_resolve_without_quantization_and_extension() {
    let cache = cache(&["SmolLM2-135M-Instruct.Q4_1.gguf"]);
    let oxidize = |args: &[&str]| oxidize(cache.path(), args);
    for name in [
        "SmolLM2-135M-Instruct",
        "smollm2-135m-instruct",
        "SmolLM2-135M-Instruct.Q4_1",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    ] {
        oxidize(&["run", name, "hi", "-n", "1"]).ok();
    }
    let name = "SmolLM2-135M-Instruct";
    assert!(oxidize(&["inspect", name]).ok().contains("GGUF"));
    oxidize(&["tokenize", "-m", name, "hi"]).ok();
    oxidize(&["bench", "-m", name, "-p", "4", "-n", "1", "-r", "1"]).ok();
    let out = cache.path().join("out.gguf");
    let out = out.to_str().unwrap();
    oxidize(&["quantize", name, out, "Q8_0", "--dry-run"]).ok();
    oxidize(&["merge", name, out]).ok();
    oxidize(&["run", name, "hi", "-n", "1", "-md", name]).ok();
    let default = oxidize(&["run", "-p", "hi", "-n", "1"]);
    assert!(default.stderr.contains("using "), "{}", default.stderr);
    default.ok();
}

#[test]
fn an_ambiguous_name_prefers_a_quantization_and_says_which() {
    let cache = cache(&["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf"]);
    let chosen = oxidize(cache.path(), &["run", "m", "hi", "-n", "1"]);
    let line = chosen.stderr.lines().next().unwrap_or_default().to_owned();
    chosen.ok();
    let (used, others) = line.split_once("also in the cache: ").unwrap();
    assert!(used.contains("m-Q4_K_M.gguf"), "{line}");
    assert!(others.contains("m-Q8_0.gguf") && others.contains("m-Q2_K.gguf"));
    let exact = oxidize(cache.path(), &["run", "m-Q8_0", "hi", "-n", "1"]);
    assert!(!exact.stderr.contains("also in"), "{}", exact.stderr);
}

#[test]
fn an_unknown_name_lists_similar_ones() {
    let cache = cache(&["SmolLM2-135M-Instruct.Q4_1.gguf", "zebra.gguf"]);
    let error = oxidize(cache.path(), &["run", "SmolLM-135M", "hi"]).error();
    let directory = cache.path().join("models");
    assert!(error.contains(directory.to_str().unwrap()), "{error}");
    assert!(error.contains("similar names: SmolLM2-135M-Instruct.Q4_1"));
    assert!(!error.contains("zebra"), "{error}");
}

#[test]
fn a_second_model_is_an_error_and_the_variable_a_default() {
    let cache = cache(&["a.gguf", "b.gguf"]);
    let error = oxidize(cache.path(), &["chat", "-m", "a", "b"]).error();
    assert!(error.contains("two models: -m a and b"), "{error}");
    let error = oxidize(cache.path(), &["run", "-m", "a", "b", "hi"]).error();
    assert!(error.contains("two models"), "{error}");
    let with_variable = |args: &[&str]| {
        let mut command = command(args);
        command.env("OXIDIZE_TEST_CACHE", cache.path());
        let output = command.env("OXIDIZE_MODEL", "no-such").output();
        outcome(output.unwrap())
    };
    with_variable(&["run", "b", "hi", "-n", "1"]).ok();
    with_variable(&["run", "b", "-p", "hi", "-n", "1"]).ok();
    assert!(with_variable(&["run", "hi"]).error().contains("no-such"));
}
