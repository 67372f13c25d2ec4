//! Time to open a model, header only, with and without memory mapping.

use std::path::PathBuf;

use criterion::{Criterion, criterion_group, criterion_main};
use oxidize_core::file::{ModelFile, OpenOptions, Summary, TensorType};
use oxidize_core::gguf::{ArrayBuf, Value, WriteError, Writer};

/// File with realistic metadata: 150,000 tokens and merges, and the 339 tensors of 28 layers.
fn synthetic() -> Vec<u8> {
    let mut writer = Writer::new();
    let tokens = ArrayBuf::strings((0..150_000).map(|i| format!("token{i}")));
    let merges = ArrayBuf::strings((0..150_000).map(|i| format!("a{i} b{i}")));
    let types = ArrayBuf::i32s((0..150_000).map(|_| 1));
    writer
        .key("general.architecture", &Value::Str("llama"))
        .unwrap();
    writer
        .key("tokenizer.ggml.tokens", &Value::Array(tokens.as_array()))
        .unwrap();
    writer
        .key("tokenizer.ggml.merges", &Value::Array(merges.as_array()))
        .unwrap();
    writer
        .key("tokenizer.ggml.token_type", &Value::Array(types.as_array()))
        .unwrap();
    for i in 0..339 {
        writer
            .tensor(&format!("blk.{i}.weight"), TensorType::I8, &[32])
            .unwrap();
    }
    let mut file = Vec::new();
    writer
        .write(&mut file, |_, out| {
            Ok::<_, WriteError>(out.write_all(&[0; 32])?)
        })
        .unwrap();
    file
}

fn open(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("synthetic.gguf");
    std::fs::write(&path, synthetic()).unwrap();
    let mut models = vec![("150k tokens".to_owned(), path)];
    let cache = std::env::var_os("OXIDIZE_TEST_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/oxidize"),
        PathBuf::from,
    );
    for entry in std::fs::read_dir(cache.join("models"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        models.extend(name.ends_with(".gguf").then(|| (name, entry.path())));
    }

    let mut group = criterion.benchmark_group("open");
    for (name, path) in &models {
        for (how, mmap) in [("mapped", true), ("read", false)] {
            let options = OpenOptions {
                mmap,
                ..OpenOptions::default()
            };
            group.bench_function(format!("{name}/{how}"), |bencher| {
                bencher.iter(|| ModelFile::open(path, &options).unwrap());
            });
        }
        let model = ModelFile::open(path, &OpenOptions::default()).unwrap();
        group.bench_function(format!("{name}/summary"), |bencher| {
            bencher.iter(|| Summary::of(&model));
        });
    }
}

criterion_group!(benches, open);
criterion_main!(benches);
