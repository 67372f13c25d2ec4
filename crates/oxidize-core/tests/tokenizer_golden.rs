//! Tokenizers against test vectors: those of llama.cpp's vocabularies (made with the reference
//! tokenizers) and those of the golden models.

use std::path::{Path, PathBuf};
use std::time::Duration;

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::tokenizer::{EncodeOptions, TokenId, Tokenizer, VocabSpec};
use oxidize_golden::Fixture;
use oxidize_testing::{beside, cached_files};
use serde::Deserialize;

oxidize_testing::main!(
    llama_cpp_vectors_match,
    vocabularies_round_trip_through_a_directory,
    reference_library_vectors_match,
    gguf_and_directory_agree,
    stored_gguf_and_directory_agree,
    runs_take_linear_time,
    runs_take_linear_time_with_real_vocabularies,
);

/// Parses special tokens, but adds none.
const PARSED: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

/// Small vocabularies of every kind.
const VOCABULARIES: [&str; 6] = [
    "bpe.tokenizer.json",
    "rob.tokenizer.json",
    "wpm.tokenizer.json",
    "spm.model",
    "ugm.model",
    "xlmr.model",
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tokenizers")
}

fn load(path: &Path) -> Tokenizer {
    Tokenizer::open(path).unwrap_or_else(|error| panic!("{error}"))
}

/// Texts and expected tokens beside a llama.cpp vocabulary.
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

fn llama_cpp_vectors_match() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for path in cached_files("vocab", "gguf") {
        let tokenizer = load(&path);
        for (text, expected) in vectors(&path).unwrap_or_default() {
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

/// Vocabularies that cannot be written as a directory: pre-tokenizers without a known regex, and
/// merges with explicit ranks.
const NO_DIRECTORY: &[&str] = &["deepseek-llm", "falcon", "gemma-4"];

/// A vocabulary written as a directory and read back yields the same tokens.
fn vocabularies_round_trip_through_a_directory() {
    let mut checked = 0;
    for path in cached_files("vocab", "gguf") {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let name = name.trim_start_matches("ggml-vocab-");
        let Some(vectors) = vectors(&path) else {
            continue;
        };
        let file = ModelFile::open(&path, &OpenOptions::default()).unwrap();
        let spec = VocabSpec::of_file(&file).unwrap();
        let files = match spec.directory_files(None) {
            Ok(files) => files,
            Err(error) => {
                assert!(NO_DIRECTORY.contains(&name), "{name}: {error}");
                continue;
            }
        };
        assert!(!NO_DIRECTORY.contains(&name), "{name}");
        let directory = tempfile::tempdir().unwrap();
        for (file, bytes) in files {
            std::fs::write(directory.path().join(file), bytes).unwrap();
        }
        let tokenizer = load(directory.path());
        for (text, expected) in vectors {
            let tokens = tokenizer.encode(&text, EncodeOptions::PLAIN);
            assert_eq!(tokens, expected, "{name}: {text:?}");
            checked += 1;
        }
    }
    assert!(checked > 400, "only {checked} vectors");
}

#[derive(Deserialize)]
struct Vector {
    text: String,
    ids: Vec<TokenId>,
    ids_no_special: Option<Vec<TokenId>>,
}

/// Small tokenizers of every kind, with vectors from `tokenizers` and `sentencepiece`.
fn reference_library_vectors_match() {
    let directory = fixtures();
    for file in VOCABULARIES {
        let (name, _) = file.split_once('.').unwrap();
        let tokenizer = load(&directory.join(file));
        let vectors = std::fs::read(directory.join(format!("{name}.vectors.json"))).unwrap();
        let vectors: Vec<Vector> = serde_json::from_slice(&vectors).unwrap();
        assert!(!vectors.is_empty());
        for Vector {
            text,
            ids,
            ids_no_special,
        } in vectors
        {
            match ids_no_special {
                Some(plain) => {
                    assert_eq!(tokenizer.encode(&text, PARSED), plain, "{name}: {text:?}");
                    let all = tokenizer.encode(&text, EncodeOptions::default());
                    assert_eq!(all, ids, "{name}: {text:?}");
                }
                // SentencePiece neither parses nor adds special tokens.
                None => {
                    let tokens = tokenizer.encode(&text, EncodeOptions::PLAIN);
                    assert_eq!(tokens, ids, "{name}: {text:?}");
                }
            }
        }
    }
}

/// Texts that tokenizers of different kinds split differently.
const TEXTS: [&str; 7] = [
    "Hello world!",
    " leading space",
    "  two  spaces\tand\n\nlines \n",
    "naïve café — “quotes” …",
    "你好，世界 привет 12345",
    "don't I'LL 🚀 x",
    "",
];

/// The GGUF file that was converted from a golden directory gives the same tokens.
fn gguf_and_directory_agree() {
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for fixture in Fixture::all() {
        if !fixture.tokenizer.is_empty() {
            let golden = fixture.build();
            wrong.extend(differences(golden.directory(), &golden.gguf()));
            compared += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 100, "only {compared} models compared");
}

/// The same for files by llama.cpp's converter.
fn stored_gguf_and_directory_agree() {
    let entries = std::fs::read_dir(beside("golden")).unwrap();
    let mut directories: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("model.gguf").is_file())
        // The converter writes `add_space_prefix = false` for every Gemma; the `tokenizer.model` of
        // these golden models says otherwise.
        .filter(|path| !path.to_string_lossy().contains("gemma"))
        // Some directories have weights only.
        .filter(|path| Tokenizer::open(path).is_ok())
        .collect();
    directories.sort();
    let gguf = |path: &PathBuf| path.join("model.gguf");
    let wrong = directories
        .iter()
        .flat_map(|path| differences(path, &gguf(path)));
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        directories.len() > 20,
        "only {} models compared",
        directories.len()
    );
}

/// Texts to which the tokenizers of a directory and a GGUF file give different tokens.
fn differences(directory: &Path, gguf: &Path) -> Vec<String> {
    let (theirs, ours) = (load(directory), load(gguf));
    let mut wrong = Vec::new();
    for text in TEXTS {
        for options in [EncodeOptions::PLAIN, PARSED] {
            let (a, b) = (theirs.encode(text, options), ours.encode(text, options));
            if a != b {
                let model = directory.display();
                wrong.push(format!("{model}: {text:?} {options:?}\n  {a:?}\n  {b:?}"));
            }
        }
    }
    wrong
}

/// Repetition is the worst case of merging and splitting. A quadratic algorithm would take several minutes for one of
/// these texts; they take less than a second.
fn runs_take_linear_time() {
    let directory = fixtures();
    for name in VOCABULARIES {
        encode_runs(&directory.join(name));
    }
}

fn runs_take_linear_time_with_real_vocabularies() {
    for path in cached_files("vocab", "gguf") {
        encode_runs(&path);
    }
}

/// Encodes a million bytes of the same text, for several texts.
fn encode_runs(path: &Path) {
    for unit in ["a", " ", "漢", "\n", "e\u{301}", "\0", "<|"] {
        let tokenizer = load(path);
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let text = unit.repeat(1_000_000 / unit.len());
            // Nobody waits any longer if this took too long.
            let _ = done.send(tokenizer.encode(&text, EncodeOptions::PLAIN).len());
        });
        assert!(
            wait.recv_timeout(Duration::from_secs(120)).is_ok(),
            "{}: {unit:?} takes more than linear time",
            path.display()
        );
    }
}
