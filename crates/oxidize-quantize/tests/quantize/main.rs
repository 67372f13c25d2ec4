//! Files in, files out: what the quantiser makes, that it is what llama.cpp makes where that is
//! promised, and what becomes of bad input.

mod adapters;
mod back;
mod bad_input;
mod calibrating;
mod converting;
mod golden;
mod measure;
mod mixes;
mod run;
#[cfg(unix)]
mod stopped;

use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::mix::Mix;
use oxidize_core::synth::{Shape, Synthesis};
use oxidize_quantize::importance::Importance;
use oxidize_quantize::plan::{Plan, Wishes, traits_of};
use oxidize_quantize::quantize::{Options, quantize, recipe, tensors_of};

/// The checked-in model.
fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/model.gguf")
}

/// Opened as the program does it.
fn open(path: &Path) -> ModelFile {
    let options = OpenOptions {
        mmap: false,
        ..OpenOptions::default()
    };
    ModelFile::open(path, &options).unwrap()
}

/// A made-up model whose rows fill every block.
fn synthetic(path: &Path, mix: &str, layers: usize) {
    let shape = Shape {
        n_layers: layers,
        n_vocab: 512,
        ..Shape::named("tiny").unwrap()
    };
    let mix = Mix::named(mix).unwrap();
    let synthesis = Synthesis {
        shape,
        mix,
        seed: 1,
    };
    synthesis.save(path, |_, _| {}).unwrap();
}

/// Quantises `input` to `output`.
fn quantized(
    input: &Path,
    output: &Path,
    wishes: &Wishes,
    options: &Options<'_>,
) -> oxidize_quantize::Result<Vec<PathBuf>> {
    let file = open(input);
    let tensors = tensors_of(&file);
    let plan = Plan::new(
        &tensors,
        wishes,
        &traits_of(&file, options.importance.is_some()),
    );
    let mix = (wishes.mix.name, wishes.mix.file_type);
    let recipe = recipe(&file, tensors, plan, mix, options.importance);
    quantize(&file, recipe, output, options, |_| {}).map(|(_, files)| files)
}

fn wishes(mix: &str) -> Wishes {
    Wishes::new(Mix::named(mix).unwrap())
}

/// An importance matrix with the same numbers for every matrix of a model.
fn importance(path: &Path, of_column: impl Fn(usize) -> f32) -> Importance {
    let mut importance = Importance::default();
    for tensor in tensors_of(&open(path)) {
        if tensor.shape.len() == 2 && tensor.name.starts_with("blk.") {
            let sums = (0..tensor.columns() as usize).map(&of_column).collect();
            let counts = vec![1.0];
            let entry = oxidize_quantize::importance::Entry {
                sums,
                counts,
                sketch: None,
            };
            importance.entries.insert(tensor.name.clone(), entry);
        }
    }
    importance
}

/// FNV-1a over the bytes of all tensors, in order of their names.
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
