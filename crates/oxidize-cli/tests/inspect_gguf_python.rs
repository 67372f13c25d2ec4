//! `oxidize inspect --json` of real files, compared with the gguf Python package.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn cache() -> PathBuf {
    std::env::var_os("OXIDIZE_TEST_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/oxidize"),
        PathBuf::from,
    )
}

/// SmolLM2 and the vocabulary files.
fn files() -> Vec<PathBuf> {
    let is_gguf = |path: &PathBuf| {
        path.extension()
            .is_some_and(|extension| extension == "gguf")
    };
    let list = |directory: &str| {
        let entries = std::fs::read_dir(cache().join(directory)).ok();
        entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(is_gguf)
    };
    let is_smollm = |path: &PathBuf| path.to_string_lossy().contains("SmolLM2");
    let mut files: Vec<_> = list("models")
        .filter(is_smollm)
        .chain(list("vocab"))
        .collect();
    files.sort();
    files
}

fn inspect(path: &Path, options: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_oxidize"))
        .arg("inspect")
        .arg("--json")
        .args(options)
        .arg(path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The tables of the gguf package for a file. Reading a vocabulary takes seconds, so the result is cached
/// until the file or the script changes.
fn python_table(python: &Path, path: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/gguf_tables.py");
    let cached = cache()
        .join("vectors/tables")
        .join(path.file_name().unwrap())
        .with_extension("json");
    let modified = |path: &Path| path.metadata().and_then(|info| info.modified()).ok();
    if modified(&cached) > modified(path).max(modified(&script)) {
        return serde_json::from_slice(&std::fs::read(cached).unwrap()).unwrap();
    }
    let output = Command::new(python).arg(script).arg(path).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::create_dir_all(cached.parent().unwrap()).unwrap();
    oxidize_core::io::save_atomically(&cached, |file| {
        std::io::Write::write_all(file, &output.stdout).map_err(oxidize_core::Error::io(&cached))
    })
    .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn tables_match_the_gguf_package() {
    let python = cache().join("venv/bin/python");
    let files = files();
    if files.is_empty() || !python.exists() {
        eprintln!(
            "SKIPPED: no models or no Python under {}; run `make setup`",
            cache().display()
        );
        return;
    }
    for path in &files {
        let theirs = python_table(&python, path);
        for options in [&[][..], &["--no-mmap"]] {
            let mut ours = inspect(path, options);
            let name = path.file_name().unwrap().to_string_lossy();
            assert_eq!(ours["format"], "gguf");
            assert_eq!(ours["version"], theirs["version"], "{name}");
            assert_eq!(ours["bytes"], path.metadata().unwrap().len());
            let (a, b) = (&ours["metadata"], &theirs["metadata"]);
            let keys = |metadata: &Value| {
                metadata
                    .as_object()
                    .unwrap()
                    .keys()
                    .cloned()
                    .collect::<Vec<_>>()
            };
            assert_eq!(keys(a), keys(b), "{name}");
            for key in keys(a) {
                assert_eq!(a[&key], b[&key], "{name}: {key}");
            }
            let tensors = ours["tensors"].as_array_mut().unwrap();
            let elements = |tensor: &Value| -> u64 {
                tensor["shape"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|dim| dim.as_u64().unwrap())
                    .product()
            };
            let parameters: u64 = tensors.iter().map(elements).sum();
            for tensor in tensors.iter_mut() {
                let file = tensor.as_object_mut().unwrap().remove("file").unwrap();
                assert_eq!(file, *name);
            }
            assert_eq!(*tensors, *theirs["tensors"].as_array().unwrap(), "{name}");
            assert_eq!(ours["parameters"], parameters);
        }
    }
}
