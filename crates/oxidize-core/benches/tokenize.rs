//! Single-threaded encoding speed: the vocabularies of the test cache on the WikiText test set (or,
//! if it is missing, on this crate's documentation). `cargo bench -p oxidize-core --bench
//! tokenize`.

use std::path::{Path, PathBuf};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};

const VOCABULARIES: &[&str] = &[
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "llama-spm",
    "gemma-4",
    "bert-bge",
    "nomic-bert-moe",
];

fn encode(criterion: &mut Criterion) {
    let text = text();
    let mut group = criterion.benchmark_group("encode");
    group
        .sample_size(10)
        .throughput(Throughput::Bytes(text.len() as u64));
    for name in VOCABULARIES {
        let path = cache().join(format!("vocab/ggml-vocab-{name}.gguf"));
        let Some(tokenizer) = load(&path) else {
            eprintln!("SKIPPED: {} is missing", path.display());
            continue;
        };
        group.bench_function(*name, |bencher| {
            bencher.iter(|| tokenizer.encode(&text, EncodeOptions::PLAIN));
        });
    }
    group.finish();
}

/// Worst cases, which must run at 1 MB/s or more.
fn runs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("runs");
    for name in ["llama-bpe", "llama-spm", "gemma-4"] {
        let path = cache().join(format!("vocab/ggml-vocab-{name}.gguf"));
        let Some(tokenizer) = load(&path) else {
            continue;
        };
        for (what, unit) in [("letters", "a"), ("spaces", " "), ("cjk", "漢")] {
            let text = unit.repeat(1_000_000 / unit.len());
            group
                .sample_size(10)
                .throughput(Throughput::Bytes(text.len() as u64));
            group.bench_function(format!("{name}/{what}"), |bencher| {
                bencher.iter(|| tokenizer.encode(&text, EncodeOptions::PLAIN));
            });
        }
    }
    group.finish();
}

fn load(path: &Path) -> Option<Tokenizer> {
    let file = ModelFile::open(path, &OpenOptions::default()).ok()?;
    Tokenizer::from_file(&file).ok()
}

fn text() -> String {
    let shared = std::env::var_os("OXIDIZE_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    std::fs::read_to_string(shared.join("eval/wiki.test.raw"))
        .unwrap_or_else(|_| include_str!("../src/tokenizer/mod.rs").repeat(50))
}

fn cache() -> PathBuf {
    std::env::var_os("OXIDIZE_TEST_CACHE")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/oxidize")
        })
}

criterion_group!(benches, encode, runs);
criterion_main!(benches);
