//! `oxidize tokenize`.

use super::{model, oxidize, oxidize_with};

#[test]
fn encode_and_decode_round_trip() {
    let model = model();
    for text in ["Hello, world!", "naïve 日本 🦀\n\ttabs", " leading"] {
        let report = oxidize(&["tokenize", "-m", &model, "--json", text]).json();
        let tokens: Vec<u32> = serde_json::from_value(report["tokens"].clone()).unwrap();
        assert_eq!(report["pieces"].as_array().unwrap().len(), tokens.len());
        assert_eq!(
            oxidize_with(&["tokenize", "-m", &model, "--json"], text).json(),
            report
        );
        let list: Vec<String> = tokens.iter().map(u32::to_string).collect();
        let back = oxidize(&["tokenize", "-m", &model, "--decode", &list.join(",")]).ok();
        assert_eq!(back, format!("{text}\n"));
    }
    let plain = oxidize(&["tokenize", "-m", &model, "Hi"]).ok();
    assert!(plain.lines().all(|line| line.contains('"')), "{plain}");
}

#[test]
fn no_parse_special_encodes_control_tokens_as_text() {
    let model = model();
    let count = |extra: &[&str]| {
        let args = [&["tokenize", "-m", &model, "--json", "<|im_start|>"], extra].concat();
        oxidize(&args).json()["tokens"].as_array().unwrap().len()
    };
    assert_eq!(count(&[]), 1);
    assert!(count(&["--no-parse-special"]) > 1);
    let shown = oxidize(&["tokenize", "-m", &model, "--decode", "3"]).ok();
    assert_eq!(shown, "<|im_start|>\n");
}

#[test]
fn token_out_of_range_is_named() {
    let error = oxidize(&["tokenize", "-m", &model(), "--decode", "5,320"]).error();
    assert!(
        error.contains("token 320") && error.contains("320 tokens"),
        "{error}"
    );
}

/// A tokenizer file without a model works; other files are an error.
#[test]
fn tokenizer_needs_no_model() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tokenizers/");
    for name in ["bpe.tokenizer.json", "spm.model"] {
        let path = format!("{fixtures}{name}");
        let report = oxidize(&["tokenize", "-m", &path, "--json", "Hello world"]).json();
        assert!(!report["tokens"].as_array().unwrap().is_empty(), "{name}");
    }
    let error = oxidize(&[
        "tokenize",
        "-m",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        "x",
    ]);
    let error = error.error();
    assert!(error.contains("not a known model format"), "{error}");
}
