//! Converting a golden directory gives the same model, and the tensors and keys of its GGUF file.

use std::path::{Path, PathBuf};

use oxidize_core::arch::Arch;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::Value;
use oxidize_core::recipe::QuantRecipe;
use oxidize_golden::{Fixture, Golden};
use oxidize_quantize::convert::convert;
use oxidize_quantize::importance::{Entry, Importance};
use oxidize_quantize::in_memory::quantized;
use oxidize_quantize::plan::QuantizeParams;
use oxidize_quantize::quantize::Options;
use oxidize_quantize::workers::Workers;
use oxidize_testing::beside;

use super::run::{Entries, distance, run};

/// A golden model, with an input.
pub(crate) struct Subject {
    pub(crate) golden: Golden,
    pub(crate) tokens: Vec<u32>,
}

/// Golden models of the repository.
pub(crate) fn fixtures() -> impl Iterator<Item = Subject> {
    Fixture::all().into_iter().map(|fixture| Subject {
        golden: fixture.build(),
        tokens: fixture.cases[0].tokens.clone(),
    })
}

/// Golden models beside the checkout, with GGUF files by llama.cpp's converter. The running test is skipped if they are
/// missing.
pub(crate) fn stored() -> impl Iterator<Item = Subject> {
    let sets = ["golden", "golden-extra"].map(beside);
    let entries = sets.into_iter().map(|set| std::fs::read_dir(set).unwrap());
    let paths = entries.flatten().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.join("ref.safetensors").exists())
        .collect();
    paths.sort();
    paths.into_iter().map(|path| Subject {
        tokens: input(&path),
        golden: Golden::stored(path),
    })
}

/// Models with a property that GGUF cannot represent: the tensors are equal, the logits are not.
pub(crate) const NOT_REPRESENTABLE: &[&str] = &[
    // Squared ReLU.
    "bitnet-relu2",
    // The score of an expert group.
    "deepseek-v2-grouped",
    // The threshold of sparse activations.
    "gemma3n",
    "gemma3n-gguf",
    "gemma3n-lcsem",
    // YaRN without truncation of the correction range.
    "gpt-oss-notrunc",
    // RoPE base that grows beyond the trained context.
    "llama-dynamic-ntk",
    // The parameters of attention temperature tuning.
    "llama4-chunked",
    // The groups of the normalization.
    "mamba2-groups",
    // Norms and routing.
    "phimoe",
    "phimoe-gguf",
    "phimoe-lcsem",
];

/// Expected differences from a golden file: model, and tensor or key.
const DIFFERENT: &[(&str, &str)] = &[
    // The pooler, which the golden file lacks although the trained scores need it.
    ("bert-cls", "cls.weight"),
    ("bert-cls", "cls.bias"),
    // A head size that is not used.
    ("kimi-linear", "kimi-linear.attention.value_length"),
    // Multi-token prediction layers, whose tensors the file does not have.
    ("mimo-v2-flash", "mimo2.block_count"),
    ("mimo-v2-flash", "mimo2.attention.head_count_kv"),
    // Not in the directory: llama.cpp's converter knows the released models.
    ("nemotron-h", "tokenizer.ggml.add_bos_token"),
    // The golden file lacks the mask token, which shifts all later tokens.
    ("xlm-roberta", "tokenizer.ggml.tokens"),
    ("xlm-roberta", "tokenizer.ggml.token_type"),
    ("xlm-roberta", "tokenizer.ggml.scores"),
];

/// Keys that describe the provenance of a file, or that equal their default.
const UNIMPORTANT: &[&str] = &[
    "general.name",
    "general.basename",
    "general.version",
    "general.finetune",
    "general.size_label",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.seperator_token_id",
    // The separator between two texts.
    "tokenizer.ggml.add_sep_token",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "context_length",
    "tensor_data_layout",
    "nextn_predict_layers",
    "feed_forward_length",
    "n_deepstack_layers",
];

pub(crate) fn golden_directories_convert_to_the_same_model() {
    let checked = check_conversion(fixtures());
    assert!(checked >= 130, "{checked} models");
}

pub(crate) fn stored_directories_convert_to_golden_files() {
    let checked = check_conversion(stored());
    assert!(checked >= 100, "{checked} models");
}

/// Compares directories with the files converted from them and, if they have one, with their GGUF file. Returns
/// their number.
fn check_conversion(subjects: impl Iterator<Item = Subject>) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let params = QuantizeParams::new(QuantRecipe::named("F32").unwrap());
    let (mut checked, mut problems) = (0, Vec::new());
    for Subject { golden, tokens } in subjects {
        let (name, directory) = (golden.name().to_owned(), golden.directory());
        if !golden.weights().exists() {
            continue;
        }
        let options = OpenOptions::default();
        let file = ModelFile::open(golden.weights(), &options).unwrap();
        if Arch::detect(&file).is_err() {
            continue;
        }
        if let Err(error) = convert(&file, &path, &params, &Options::default(), |_| {}) {
            problems.push(format!("{name}: {error}"));
            continue;
        }
        let theirs = run(directory, &tokens);
        if let (Some(theirs), false) = (theirs, NOT_REPRESENTABLE.contains(&name.as_str())) {
            let ours = run(&path, &tokens).unwrap();
            let distance = distance(&theirs.0, &ours.0);
            if distance.is_nan() || distance > 1e-4 {
                problems.push(format!("{name}: {distance:.1e} from the directory"));
            }
            let problem = other_inputs(&theirs.1, &ours.1);
            problems.extend(problem.map(|problem| format!("{name}: {problem}")));
            // The importance matrix can be used for quantization, whatever the matrices are.
            let importance = Importance {
                entries: theirs.1,
                ..Importance::default()
            };
            let recipe = QuantRecipe::named("Q4_0").unwrap();
            let workers = Workers::default();
            if let Err(error) = quantized(&file, recipe, Some(&importance), &workers, |_| {}) {
                problems.push(format!("{name}: {error}"));
            }
        }
        checked += 1;
        if let Ok(expected) = ModelFile::open(directory.join("model.gguf"), &options) {
            let made = ModelFile::open(&path, &options).unwrap();
            let problem = differences(&name, &expected, &made);
            problems.extend(problem.map(|problem| format!("{name}: {problem}")));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    checked
}

/// The first matrix whose importance differs between a directory and the GGUF file converted from it.
fn other_inputs(theirs: &Entries, ours: &Entries) -> Option<String> {
    for (name, entry) in ours {
        let Some(other) = theirs.get(name) else {
            return Some(format!("{name} has no entry"));
        };
        // Counts may differ, since parts of a matrix may be observed one by one. Sums are compared relative
        // to their maximum, since factors of all inputs may be folded into the weights.
        let has_inputs = |entry: &Entry| entry.counts.iter().map(|n| *n > 0.0).collect::<Vec<_>>();
        if has_inputs(other) != has_inputs(entry) {
            return Some(format!("{name} has different inputs"));
        }
        let relative = |entry: &Entry| -> Vec<f32> {
            let most = entry
                .sums
                .iter()
                .fold(f32::MIN_POSITIVE, |most, x| most.max(*x));
            entry.sums.iter().map(|sum| sum / most).collect()
        };
        let (theirs, ours) = (relative(other), relative(entry));
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-3;
        if theirs.len() != ours.len() || theirs.iter().zip(&ours).any(far) {
            return Some(format!("{name} has different importance"));
        }
    }
    None
}

/// The first reference input of a stored model.
fn input(directory: &Path) -> Vec<u32> {
    let file = ModelFile::open(directory.join("ref.safetensors"), &OpenOptions::default()).unwrap();
    let data = file.data(file.tensor("tokens_0").unwrap()).unwrap();
    let ids = data.as_chunks::<4>().0.iter();
    ids.map(|id| u32::from_le_bytes(*id)).collect()
}

/// The first difference between an expected file and a converted one.
fn differences(name: &str, expected: &ModelFile, made: &ModelFile) -> Option<String> {
    let differs = |what: &str| DIFFERENT.contains(&(name, what));
    for tensor in expected.tensors() {
        let Some(ours) = made.tensor(&tensor.name) else {
            return Some(format!("{} is missing", tensor.name));
        };
        if ours.dims() != tensor.dims() {
            return Some(format!(
                "{}: {:?}, not {:?}",
                tensor.name,
                ours.dims(),
                tensor.dims()
            ));
        }
        let (a, b) = (floats(expected, &tensor.name), floats(made, &tensor.name));
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-6 + 1e-5 * a.abs();
        if a.iter().zip(&b).any(far) {
            return Some(format!("{}: different elements", tensor.name));
        }
    }
    if let Some(extra) = made
        .tensors()
        .iter()
        .find(|t| expected.tensor(&t.name).is_none() && !differs(&t.name))
    {
        return Some(format!("{} is not in the golden file", extra.name));
    }
    for (key, value) in expected.metadata().iter() {
        let short = key.split_once('.').map_or(key, |(_, rest)| rest);
        if UNIMPORTANT.contains(&key) || UNIMPORTANT.contains(&short) || differs(key) {
            continue;
        }
        match made.metadata().get(key) {
            None => return Some(format!("key {key} is missing: {value:?}")),
            Some(ours) if !same(value, ours) => {
                return Some(format!("key {key}: {ours:?}, not {value:?}"));
            }
            Some(_) => {}
        }
    }
    None
}

fn same(a: Value<'_>, b: Value<'_>) -> bool {
    match (a.as_f32(), b.as_f32()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-6 * a.abs(),
        _ => match (a.as_array(), b.as_array()) {
            (Some(a), Some(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
            }
            // One number for all layers equals an array of that number.
            (Some(list), None) | (None, Some(list)) => {
                let one = if a.as_array().is_some() { b } else { a };
                !list.is_empty() && list.iter().all(|value| same(value, one))
            }
            _ => a == b,
        },
    }
}

pub(crate) fn floats(file: &ModelFile, name: &str) -> Vec<f32> {
    let mut floats = Vec::new();
    let info = file.tensor(name).unwrap();
    file.for_each_f32::<oxidize_core::Error>(info, |piece| {
        floats.extend_from_slice(piece);
        Ok(())
    })
    .unwrap();
    floats
}
