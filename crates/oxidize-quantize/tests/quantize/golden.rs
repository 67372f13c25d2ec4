//! Converting the golden directories gives the golden GGUF files: the same tensors, the same keys.

use std::path::{Path, PathBuf};

use oxidize_core::arch::Arch;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::Value;
use oxidize_core::mix::Mix;
use oxidize_quantize::convert::convert;
use oxidize_quantize::encode::Workers;
use oxidize_quantize::importance::{Entry, Importance};
use oxidize_quantize::in_memory::quantized;
use oxidize_quantize::plan::Wishes;
use oxidize_quantize::quantize::Options;

use super::run::{Entries, distance, run};

/// Where the golden models are, if they are here.
fn shared() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let set = std::env::var_os("OXIDIZE_SHARED").map(PathBuf::from);
    let path = set.unwrap_or(beside);
    if path.join("golden").is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: no golden models at {}", path.display());
    None
}

/// Models that GGUF readers take for something else than what was trained, because the format has no
/// word for it: the same tensors, other logits.
pub(crate) const MEAN_OTHERWISE: &[&str] = &[
    // A ReLU.
    "bitnet-relu2",
    // What a group of experts counts for.
    "deepseek-v2-grouped",
    // The threshold of sparse activations.
    "gemma3n",
    "gemma3n-lcsem",
    // YaRN's ramp between whole pairs.
    "gpt-oss-notrunc",
    // A base that grows past the trained context.
    "llama-dynamic-ntk",
    // How fast attention sharpens.
    "llama4-chunked",
    // Groups that are normalised together.
    "mamba2-groups",
    // Norms and router.
    "phimoe",
    "phimoe-lcsem",
];

/// What a golden file has otherwise, and why: model, tensor or key, or their beginning.
const DIFFERENT: &[(&str, &str)] = &[
    // The pooler, without which the classifier's scores are not those that were trained.
    ("bert-cls", "cls.weight"),
    ("bert-cls", "cls.bias"),
    // The width of a head that is nowhere used.
    ("kimi-linear", "kimi-linear.attention.value_length"),
    // Layers that guess further tokens, of which it has no tensors.
    ("mimo-v2-flash", "mimo2.block_count"),
    ("mimo-v2-flash", "mimo2.attention.head_count_kv"),
    // Not in the directory: the converter knows the released models.
    ("nemotron-h", "tokenizer.ggml.add_bos_token"),
    // Without the mask, and every token after it one too early.
    ("xlm-roberta", "tokenizer.ggml.tokens"),
    ("xlm-roberta", "tokenizer.ggml.token_type"),
    ("xlm-roberta", "tokenizer.ggml.scores"),
];

/// Keys that describe the making of a file, or that stand for their default.
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
    // What goes between two texts.
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

#[test]
fn golden_directories_become_golden_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let wishes = Wishes::new(Mix::named("F32").unwrap());
    let (mut checked, mut problems) = (0, Vec::new());
    for folder in folders() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        if !folder.join("model.safetensors").exists() {
            continue;
        }
        let options = OpenOptions::default();
        let file = ModelFile::open(folder.join("model.safetensors"), &options).unwrap();
        if Arch::detect(&file).is_err() {
            continue;
        }
        if let Err(error) = convert(&file, &path, &wishes, &Options::default(), |_| {}) {
            problems.push(format!("{name}: {error}"));
            continue;
        }
        let tokens = input(&folder);
        let theirs = run(&folder, &tokens);
        if let (Some(theirs), false) = (theirs, MEAN_OTHERWISE.contains(&name.as_str())) {
            let ours = run(&path, &tokens).unwrap();
            let distance = distance(&theirs.0, &ours.0);
            if distance.is_nan() || distance > 1e-4 {
                problems.push(format!("{name}: {distance:.1e} from the directory"));
            }
            let problem = other_inputs(&theirs.1, &ours.1);
            problems.extend(problem.map(|problem| format!("{name}: {problem}")));
            // What was seen can be made use of, whatever the matrices are.
            let importance = Importance {
                entries: theirs.1,
                ..Importance::default()
            };
            let mix = Mix::named("Q4_0").unwrap();
            let workers = Workers::default();
            if let Err(error) = quantized(&file, mix, Some(&importance), &workers, |_| {}) {
                problems.push(format!("{name}: {error}"));
            }
        }
        checked += 1;
        if let Ok(expected) = ModelFile::open(folder.join("model.gguf"), &options) {
            let made = ModelFile::open(&path, &options).unwrap();
            let problem = differences(&name, &expected, &made);
            problems.extend(problem.map(|problem| format!("{name}: {problem}")));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(checked >= 100 || folders().is_empty(), "{checked} models");
}

/// The first matrix whose importance differs, where one was collected from a directory and the other from the
/// file that was made of it.
fn other_inputs(theirs: &Entries, ours: &Entries) -> Option<String> {
    for (name, entry) in ours {
        let Some(other) = theirs.get(name) else {
            return Some(format!("of {name} nothing is known"));
        };
        // Parts of a matrix may be shown one by one. Factors of all inputs, which files may have in their
        // weights, make nothing more important either.
        let is_seen = |entry: &Entry| entry.counts.iter().map(|n| *n > 0.0).collect::<Vec<_>>();
        if is_seen(other) != is_seen(entry) {
            return Some(format!("{name} has other inputs"));
        }
        let shares = |entry: &Entry| -> Vec<f32> {
            let most = entry
                .sums
                .iter()
                .fold(f32::MIN_POSITIVE, |most, x| most.max(*x));
            entry.sums.iter().map(|sum| sum / most).collect()
        };
        let (theirs, ours) = (shares(other), shares(entry));
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-3;
        if theirs.len() != ours.len() || theirs.iter().zip(&ours).any(far) {
            return Some(format!("{name} has other importance"));
        }
    }
    None
}

/// The golden models.
pub(crate) fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let Some(shared) = shared() else {
        return folders;
    };
    for set in ["golden", "golden-extra"] {
        let Ok(entries) = std::fs::read_dir(shared.join(set)) else {
            continue;
        };
        folders.extend(entries.map(|entry| entry.unwrap().path()));
    }
    folders.sort();
    folders
}

/// The first input that a golden model was given.
pub(crate) fn input(folder: &Path) -> Vec<u32> {
    let file = ModelFile::open(folder.join("ref.safetensors"), &OpenOptions::default()).unwrap();
    let data = file.data(file.tensor("tokens_0").unwrap()).unwrap();
    let words = data.as_chunks::<4>().0.iter();
    words.map(|word| u32::from_le_bytes(*word)).collect()
}

/// The first thing that differs.
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
            return Some(format!("{}: other elements", tensor.name));
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
            // A number for all layers, or the same for each.
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
