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

oxidize_testing::main!(
    adapters::merge_adds_the_adapter_to_the_weights,
    adapters::adapter_is_converted_to_gguf,
    bad_input::input_is_not_overwritten,
    bad_input::weights_outside_the_range_of_a_type_are_rejected,
    bad_input::int8_and_q8_0_in_one_file_are_rejected,
    bad_input::types_of_activations_are_rejected,
    bad_input::requantization_requires_the_option,
    bad_input::nan_and_infinity_are_named,
    bad_input::rows_of_partial_blocks_are_rejected_without_a_recipe,
    bad_input::truncated_source_is_rejected,
    bad_input::importance_of_another_model_is_rejected,
    bad_input::full_disk_is_a_clear_error,
    converting::golden_directories_leave_no_tensor_out,
    converting::stored_directories_leave_no_tensor_out,
    converting::name_and_license_round_trip,
    gguf_to_hf::golden_files_round_trip_through_directories,
    gguf_to_hf::stored_files_round_trip_through_directories,
    gguf_to_hf::golden_directories_round_trip_through_gguf,
    gguf_to_hf::stored_directories_round_trip_through_gguf,
    gguf_to_hf::embedding_projections_round_trip,
    gguf_to_hf::directory_has_shards_tokenizer_and_configuration,
    golden::golden_directories_convert_to_the_same_model,
    golden::stored_directories_convert_to_golden_files,
    measure::comparison_with_itself_is_zero,
    measure::requests_without_scored_tokens_are_rejected,
    measure::kl_divergence_grows_with_fewer_bits,
    measure::importance_sums_squared_inputs,
    measure::important_columns_have_smaller_errors,
    measure::report_is_stored_in_the_file,
    measure::int8_files_have_the_key,
    measure::long_steps_report_progress,
    measure::report_is_not_copied,
    measure::reports_support_parts_and_escaped_names,
    measure::target_size_respects_overrides,
    measure::target_size_is_used_up,
    measure::split_and_merge_round_trip,
    measure::quantization_in_memory_matches_the_file,
    measure::released_weights_give_the_same_importance,
    recipes::legacy_types_are_bit_identical_to_llama_cpp,
    recipes::every_recipe_chooses_the_types_of_llama_cpp,
    recipes::overrides_take_precedence_over_the_recipe,
    recipes::every_recipe_writes_a_model,
);

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
