//! `oxidize inspect --json` of real files, compared with the gguf Python package.

use std::path::{Path, PathBuf};
use std::process::Command;

use oxidize_testing::{cache, cached, cached_files};
use serde_json::Value;

oxidize_testing::main!(tables_match_the_gguf_package);

/// SmolLM2 and the vocabulary files.
fn files() -> Vec<PathBuf> {
    let mut files = cached_files("vocab", "gguf");
    files.push(cached("models/SmolLM2-135M-Instruct.Q4_1.gguf"));
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

fn tables_match_the_gguf_package() {
    let python = cached("venv/bin/python");
    let files = files();
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
