//! Tokenizers against the vectors of other implementations: those of llama.cpp's vocabularies
//! (made with the reference tokenizers), and those made for the golden models.

use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::tokenizer::{DecodeOptions, EncodeOptions, TokenId, Tokenizer};

fn load(path: &Path) -> Tokenizer {
    let file =
        ModelFile::open(path, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    Tokenizer::from_file(&file).unwrap_or_else(|error| panic!("{error}"))
}

fn cache(folder: &str) -> PathBuf {
    let root = std::env::var_os("OXIDIZE_TEST_CACHE")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/oxidize")
        });
    root.join(folder)
}

/// The texts and tokens beside a vocabulary of llama.cpp.
fn vectors(vocabulary: &Path) -> Option<Vec<(String, Vec<TokenId>)>> {
    let beside = |extension: &str| {
        std::fs::read_to_string(format!("{}{extension}", vocabulary.display())).ok()
    };
    let (texts, tokens) = (beside(".inp")?, beside(".out")?);
    let texts = texts
        .strip_suffix("\n__ggml_vocab_test__\n")
        .unwrap_or(&texts);
    let texts = texts.split("\n__ggml_vocab_test__\n");
    let tokens = tokens.lines().map(|line| {
        line.split_whitespace()
            .map(|id| id.parse().expect("a token"))
            .collect()
    });
    Some(texts.map(String::from).zip(tokens).collect())
}

#[test]
fn llama_cpp_vectors() {
    let folder = cache("vocab");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "gguf")
        })
        .collect();
    files.sort();
    if files.is_empty() {
        eprintln!("SKIPPED: no vocabularies in {}", folder.display());
        return;
    }
    let mut wrong = Vec::new();
    let mut checked = 0;
    for path in &files {
        let tokenizer = load(path);
        for (text, expected) in vectors(path).unwrap_or_default() {
            let tokens = tokenizer.encode(&text, EncodeOptions::PLAIN);
            checked += 1;
            if tokens != expected {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                wrong.push(format!("{name}: {text:?}\n  {tokens:?}\n  {expected:?}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {checked} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(checked > 600, "only {checked} vectors");
}
