//! Tests of conversion, quantization and evaluation on files, against llama.cpp's results where they are
//! equal.

mod adapters;
mod bad_input;
mod converting;
mod gguf_to_hf;
mod golden;
mod measure;
mod recipes;
mod run;

use std::path::{Path, PathBuf};

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::recipe::QuantRecipe;
use oxidize_core::synth::{Shape, Synthesis};
use oxidize_quantize::importance::Importance;
use oxidize_quantize::plan::{Plan, QuantizeParams, model_info};
use oxidize_quantize::quantize::{Options, QuantJob, quantize, tensors_of};

/// The tiny model of the repository.
fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/model.gguf")
}

/// Opens a file without mapping it, as `oxidize quantize` does.
fn open(path: &Path) -> ModelFile {
    let options = OpenOptions {
        mmap: false,
        ..OpenOptions::default()
    };
    ModelFile::open(path, &options).unwrap()
}

/// Writes a model with random weights whose rows are multiples of every block size.
fn synthetic(path: &Path, recipe: &str, layers: usize) {
    let shape = Shape {
        n_layers: layers,
        n_vocab: 512,
        ..Shape::named("tiny").unwrap()
    };
    let recipe = QuantRecipe::named(recipe).unwrap();
    let synthesis = Synthesis {
        shape,
        recipe,
        seed: 1,
    };
    synthesis.save(path, |_, _| {}).unwrap();
}

/// Quantizes `input` to `output`.
fn quantized(
    input: &Path,
    output: &Path,
    params: &QuantizeParams,
    options: &Options<'_>,
) -> oxidize_quantize::Result<Vec<PathBuf>> {
    let file = open(input);
    let tensors = tensors_of(&file);
    let plan = Plan::new(
        &tensors,
        params,
        &model_info(&file, options.importance.is_some()),
    );
    let recipe = (params.recipe.name, params.recipe.file_type);
    let job = QuantJob::of_gguf(&file, tensors, plan, recipe, options.importance);
    quantize(&file, job, output, options, |_| {}).map(|(_, files)| files)
}

fn params(recipe: &str) -> QuantizeParams {
    QuantizeParams::new(QuantRecipe::named(recipe).unwrap())
}

/// An importance matrix with the same sums for every matrix of a model.
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
