//! Opens every golden model in both formats, mapped and read, and compares the two.

use oxidize_core::file::{Format, ModelFile, OpenOptions};
use oxidize_golden::Fixture;
use std::path::Path;

oxidize_testing::main!(
    mapped_and_read_files_are_equal,
    mapped_and_read_stored_files_are_equal,
);

fn mapped_and_read_files_are_equal() {
    for fixture in Fixture::all() {
        let golden = fixture.build();
        golden.gguf();
        assert_eq!(compare_files(golden.directory()), 2, "{}", fixture.name);
    }
}

fn mapped_and_read_stored_files_are_equal() {
    let directories = std::fs::read_dir(oxidize_testing::beside("golden")).unwrap();
    let compared: usize = directories
        .map(|entry| compare_files(&entry.unwrap().path()))
        .sum();
    assert!(compared > 0, "the golden directory has no models");
}

/// Compares the files of a directory and returns their number.
fn compare_files(directory: &Path) -> usize {
    let mut opened = 0;
    for name in ["model.gguf", "model.safetensors"] {
        let path = directory.join(name);
        if !path.exists() {
            continue;
        }
        let mapped = ModelFile::open(&path, &OpenOptions::default()).unwrap();
        let options = OpenOptions {
            mmap: false,
            ..OpenOptions::default()
        };
        let read = ModelFile::open(&path, &options).unwrap();
        assert!(!mapped.tensors().is_empty(), "{}", path.display());
        assert_eq!(mapped.tensors(), read.tensors(), "{}", path.display());
        assert!(
            mapped.metadata().iter().eq(read.metadata().iter()),
            "{}",
            path.display()
        );
        for tensor in mapped.tensors() {
            assert_eq!(mapped.tensor(&tensor.name), Some(tensor));
            let data = mapped.data(tensor).unwrap();
            assert_eq!(
                data.len() as u64,
                tensor.ty.bytes_for(tensor.elements()).unwrap()
            );
            assert_eq!(*data, *read.data(tensor).unwrap(), "{}", tensor.name);
        }
        match mapped.format() {
            Format::Gguf { version } => {
                assert_eq!(version, 3);
                assert!(mapped.metadata().str("general.architecture").is_some());
            }
            _ => {
                assert!(
                    mapped
                        .config()
                        .is_some_and(|config| config["model_type"].is_string())
                );
                let from_directory = ModelFile::open(directory, &OpenOptions::default());
                assert_eq!(from_directory.unwrap().tensors(), mapped.tensors());
            }
        }
        opened += 1;
    }
    opened
}
