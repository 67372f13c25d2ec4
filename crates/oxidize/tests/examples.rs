//! The examples, run as a reader would run them: on the checked-in model, and on SmolLM2 where a real one is needed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

oxidize_testing::main!(
    basic,
    chat,
    streaming,
    batch,
    sampling,
    embeddings,
    structured_output,
    tools,
    lora,
);

/// The checked-in model: 82 thousand parameters and 256 tokens of context.
fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/model.gguf")
}

/// SmolLM2-135M-Instruct. The running test is skipped if it was not downloaded.
fn smollm2() -> PathBuf {
    oxidize_testing::cached("models/SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Runs an example and returns its standard output.
fn run(example: &str, arguments: &[&str], input: &str) -> String {
    // Beside the directory of this test's program: target/debug/examples.
    let test = std::env::current_exe().unwrap();
    let directory = test.parent().unwrap().parent().unwrap().join("examples");
    let program = directory.join(format!("{example}{}", std::env::consts::EXE_SUFFIX));
    let mut child = Command::new(&program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn basic() {
    let text = run("basic", &[tiny().to_str().unwrap(), "Hello"], "");
    assert!(text.starts_with("Hello"), "{text}");
}

fn chat() {
    let turns = "Who wrote Faust?\nWhen?\n";
    let text = run("chat", &[smollm2().to_str().unwrap()], turns);
    assert!(text.lines().count() >= 2, "{text}");
}

fn streaming() {
    let text = run("streaming", &[smollm2().to_str().unwrap()], "");
    let answers: Vec<&str> = text.trim().split("\n\n").collect();
    assert!(answers.len() >= 2, "{text}");
}

fn batch() {
    let text = run("batch", &[tiny().to_str().unwrap()], "");
    assert!(text.contains("16 apples cost"), "{text}");
}

fn sampling() {
    let text = run("sampling", &[tiny().to_str().unwrap(), "Rain"], "");
    for name in ["greedy", "recommended", "min-p", "mirostat 2", "dry"] {
        assert!(text.contains(name), "{name}: {text}");
    }
}

fn embeddings() {
    let arguments =
        [tiny().to_str().unwrap(), "a cat", "a cat", "something else"].map(String::from);
    let text = run("embeddings", &arguments.each_ref().map(String::as_str), "");
    let scores: Vec<f32> = text
        .lines()
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(scores[..2], [1.0, 1.0]);
    assert!(scores[2] < 0.999, "{text}");
}

fn structured_output() {
    let text = run("structured_output", &[smollm2().to_str().unwrap()], "");
    let confidence = ["(\"low\")", "(\"medium\")", "(\"high\")"];
    assert!(confidence.iter().any(|word| text.contains(word)), "{text}");
}

fn tools() {
    let text = run("tools", &[smollm2().to_str().unwrap()], "");
    assert!(!text.trim().is_empty());
}

fn lora() {
    let directory =
        std::env::temp_dir().join(format!("oxidize-example-lora-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    oxidize_testing::write_peft(&directory);
    let (model, adapter) = (tiny(), directory.clone());
    let arguments = [model.to_str().unwrap(), adapter.to_str().unwrap(), "Hello"];
    let text = run("lora", &arguments, "");
    std::fs::remove_dir_all(&directory).unwrap();
    let answers: Vec<&str> = text
        .lines()
        .map(|line| line.split_once(": ").unwrap().1)
        .collect();
    assert_eq!(answers.len(), 3);
    assert_ne!(answers[0], answers[2], "the adapter changes the answer");
}
