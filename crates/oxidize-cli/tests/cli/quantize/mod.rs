//! `oxidize convert`, `quantize`, `split` and `merge`.

mod bad_input;
mod calibrate;
mod convert;
mod interrupt;

use std::path::{Path, PathBuf};
use std::process::Output;

use oxidize_core::file::{ModelFile, OpenOptions, TensorType};
use oxidize_core::recipe::QuantRecipe;
use oxidize_core::synth::{Shape, Synthesis};
use oxidize_quantize::convert::directory::{DirectoryOptions, SHARD_BYTES, to_directory};
use oxidize_quantize::importance::{Entry, Importance};
use oxidize_quantize::quantize::tensors_of;
use oxidize_quantize::workers::Workers;

use super::{command, fixture};

fn tiny() -> PathBuf {
    fixture("model.gguf")
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs the program to its end.
fn program(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Opens a file without mapping it, as `quantize` does.
fn open(path: &Path) -> ModelFile {
    let options = OpenOptions {
        mmap: false,
        ..OpenOptions::default()
    };
    ModelFile::open(path, &options).unwrap()
}

/// Names of the files in a directory, including temporary ones.
fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Writes a model with random weights whose rows are multiples of every block size.
fn synthetic(path: &Path, recipe: &str, layers: usize) {
    let shape = Shape {
        n_layers: layers,
        n_vocab: 512,
        ..Shape::named("tiny").unwrap()
    };
    let synthesis = Synthesis {
        shape,
        recipe: QuantRecipe::named(recipe).unwrap(),
        seed: 1,
    };
    synthesis.save(path, |_, _| {}).unwrap();
}

/// An importance matrix with the same sums for every matrix of a model.
fn importance(path: &Path, of_column: impl Fn(usize) -> f32) -> Importance {
    let mut importance = Importance::default();
    for tensor in tensors_of(&open(path)) {
        if tensor.shape.len() == 2 && tensor.name.starts_with("blk.") {
            let entry = Entry {
                sums: (0..tensor.columns() as usize).map(&of_column).collect(),
                counts: vec![1.0],
                sketch: None,
            };
            importance.entries.insert(tensor.name.clone(), entry);
        }
    }
    importance
}

/// FNV-1a hash of all tensors, in order of their names.
fn fingerprint(path: &Path) -> u64 {
    let file = open(path);
    let mut tensors: Vec<_> = file.tensors().iter().collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for tensor in tensors {
        for byte in file.data(tensor).unwrap().iter() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

/// Writes the tiny model as the directory `model` in `dir`, with changed weights.
fn directory(dir: &Path, change: impl Fn(&str, &mut Vec<f32>)) {
    let model = dir.join("model");
    let options = DirectoryOptions {
        ty: TensorType::F32,
        shard_bytes: SHARD_BYTES,
        workers: Workers::default(),
    };
    to_directory(&open(&tiny()), &model, &options, |_, _, _| {}).unwrap();
    // The safetensors header has the offset of each tensor.
    let path = model.join("model.safetensors");
    let file = open(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    for tensor in file.tensors() {
        let range = tensor.offset as usize..(tensor.offset + tensor.bytes) as usize;
        let floats = bytes[range.clone()].as_chunks::<4>().0.iter();
        let mut floats: Vec<f32> = floats.map(|bytes| f32::from_le_bytes(*bytes)).collect();
        change(&tensor.name, &mut floats);
        let changed: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        bytes[range].copy_from_slice(&changed);
    }
    std::fs::write(&path, bytes).unwrap();
}
