//! Golden GGUF files converted to Hugging Face directories load as the same model, and convert back to the
//! same file.

use std::path::Path;

use oxidize_core::arch::{Arch, Hparams};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};
use oxidize_kernels::quant::TensorType;
use oxidize_quantize::convert::convert;
use oxidize_quantize::convert::directory::{DirectoryOptions, SHARD_BYTES, to_directory};
use oxidize_quantize::quantize::Options;
use oxidize_quantize::workers::Workers;
use serde_json::Value;

use super::golden::{NOT_REPRESENTABLE, Subject, fixtures, floats, stored};
use super::run::{distance, outputs};
use super::{params, tiny};

const OPTIONS: DirectoryOptions<'static> = DirectoryOptions {
    ty: TensorType::F32,
    shard_bytes: SHARD_BYTES,
    workers: Workers {
        threads: 1,
        measure: false,
        stop: None,
    },
};

/// Models that cannot be converted to a directory, with a part of the error.
const REJECTED: &[(&str, &str)] = &[
    // Layers without attention have a form of their own in the configuration.
    ("deci", "its configuration cannot be expressed"),
];

/// Tensors of directories that a GGUF file does not contain, or not exactly.
const LOST: &[(&str, &str, Loss)] = &[
    // The logarithm of the stored value.
    ("*", "A_log", Loss::Digits),
    // GGUF folds the multipliers of the configuration into the weights.
    ("falcon-h1", "", Loss::Values),
    // Not used without a classifier.
    ("*", "pooler.dense", Loss::Gone),
    // Rows of unused positions.
    ("*", "position_embeddings", Loss::Values),
    // The first layer has no previous layer for the value residual.
    ("rwkv7", "blocks.0.attention.v", Loss::Gone),
    // Written with the names of the newer class.
    ("chatglm3", "", Loss::Gone),
    // Written without the prefix of the language model.
    ("qwen3vl-text", "", Loss::Gone),
    // Experts are stored separately or stacked; both are valid.
    ("qwen3vl-moe-text", ".experts.", Loss::Gone),
];

/// Change of a tensor by a round trip through GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// The tensor is missing.
    Gone,
    /// The last digits differ.
    Digits,
    /// The values differ, since factors were folded into them.
    Values,
}

pub(crate) fn golden_files_round_trip_through_directories() {
    let checked = check_files(fixtures());
    assert!(checked >= 130, "{checked} models");
}

pub(crate) fn stored_files_round_trip_through_directories() {
    let checked = check_files(stored());
    assert!(checked >= 40, "{checked} models");
}

/// Converts GGUF files to directories and back, and returns their number.
fn check_files(subjects: impl Iterator<Item = Subject>) -> usize {
    let (mut checked, mut problems) = (0, Vec::new());
    for subject in subjects {
        let name = subject.golden.name().to_owned();
        if !subject.golden.gguf().exists() {
            continue;
        }
        let reason = REJECTED.iter().find(|(rejected, _)| *rejected == name);
        match (round_trip(&subject), reason) {
            (Ok(()), None) => checked += 1,
            (Ok(()), Some(_)) => problems.push(format!("{name}: is listed as rejected")),
            (Err(error), Some((_, reason))) if error.contains(reason) => {}
            (Err(error), _) => problems.push(format!("{name}: {error}")),
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    checked
}

/// Converts a file to a directory and back and returns a difference as an error.
fn round_trip(Subject { golden, tokens }: &Subject) -> Result<(), String> {
    let path = &golden.gguf();
    let dir = tempfile::tempdir().unwrap();
    let (output, again) = (dir.path().join("model"), dir.path().join("again.gguf"));
    let file = ModelFile::open(path, &OpenOptions::default()).map_err(|e| e.to_string())?;
    if Arch::detect(&file).is_err() {
        return Ok(());
    }
    to_directory(&file, &output, &OPTIONS, |_, _, _| {}).map_err(|e| e.to_string())?;
    let not_representable = NOT_REPRESENTABLE.contains(&golden.name());
    if let (Some(theirs), false) = (outputs(path, tokens), not_representable) {
        let ours = outputs(&output, tokens).unwrap_or_default();
        let distance = distance(&theirs, &ours);
        if distance.is_nan() || distance > 1e-4 {
            return Err(format!("logits are {distance:.1e} apart"));
        }
    }
    let directory = ModelFile::open(&output, &OpenOptions::default()).map_err(|e| e.to_string())?;
    // Loaders require that the position table has max_position_embeddings rows.
    if file.tensor("position_embd.weight").is_some() {
        let golden: Option<Value> = std::fs::read(path.with_file_name("config.json"))
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok());
        let rows = |config: &Value| config.get("max_position_embeddings").cloned();
        let rows = (
            golden.as_ref().and_then(rows),
            directory.config().and_then(rows),
        );
        if let (Some(theirs), Some(ours)) = rows
            && theirs != ours
        {
            return Err(format!("{ours} positions, not {theirs}"));
        }
        let context = |file: &ModelFile| {
            let arch = Arch::detect(file).unwrap();
            Hparams::read(file, arch).unwrap().n_ctx_train
        };
        if context(&directory) != context(&file) {
            return Err(format!("a context of {}", context(&directory)));
        }
    }
    convert(
        &directory,
        &again,
        &params("F32"),
        &Options::default(),
        |_| {},
    )
    .map_err(|e| e.to_string())?;
    let made = ModelFile::open(&again, &OpenOptions::default()).unwrap();
    for tensor in file.tensors() {
        let Some(ours) = made.tensor(&tensor.name) else {
            return Err(format!("{} is missing", tensor.name));
        };
        if ours.dims() != tensor.dims() {
            return Err(format!("{} has a different shape", tensor.name));
        }
        let (a, b) = (floats(&file, &tensor.name), floats(&made, &tensor.name));
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-6 + 1e-5 * a.abs();
        if a.iter().zip(&b).any(far) {
            return Err(format!("{} has different elements", tensor.name));
        }
    }
    Ok(())
}

pub(crate) fn golden_directories_round_trip_through_gguf() {
    let checked = check_directories(fixtures());
    assert!(checked >= 130, "{checked} models");
}

pub(crate) fn stored_directories_round_trip_through_gguf() {
    let checked = check_directories(stored());
    assert!(checked >= 100, "{checked} models");
}

/// Converts directories to GGUF files and back, and returns their number.
fn check_directories(subjects: impl Iterator<Item = Subject>) -> usize {
    let (mut checked, mut problems) = (0, Vec::new());
    for Subject { golden, .. } in subjects {
        let name = golden.name().to_owned();
        let path = golden.weights();
        if !path.exists() || REJECTED.iter().any(|(rejected, _)| *rejected == name) {
            continue;
        }
        let file = ModelFile::open(&path, &OpenOptions::default()).unwrap();
        if Arch::detect(&file).is_err() {
            continue;
        }
        checked += 1;
        match directory_round_trip(&file) {
            Err(error) => problems.push(format!("{name}: {error}")),
            Ok(differences) => {
                for (tensor, loss, what) in differences {
                    let known = LOST.iter().any(|(model, part, known)| {
                        (*model == name || *model == "*") && tensor.contains(part) && *known == loss
                    });
                    if !known {
                        problems.push(format!("{name}: {tensor} {what}"));
                    }
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    checked
}

/// Converts a directory to a file and back and returns the tensors that differ.
fn directory_round_trip(file: &ModelFile) -> Result<Vec<(String, Loss, String)>, String> {
    let dir = tempfile::tempdir().unwrap();
    let (gguf, output) = (dir.path().join("model.gguf"), dir.path().join("model"));
    convert(file, &gguf, &params("F32"), &Options::default(), |_| {}).map_err(|e| e.to_string())?;
    let made = ModelFile::open(&gguf, &OpenOptions::default()).map_err(|e| e.to_string())?;
    to_directory(&made, &output, &OPTIONS, |_, _, _| {}).map_err(|e| e.to_string())?;
    let again = ModelFile::open(&output, &OpenOptions::default()).map_err(|e| e.to_string())?;
    let mut differences = Vec::new();
    for tensor in file.tensors() {
        let mut differs = |loss, what: &str| {
            differences.push((tensor.name.clone(), loss, what.to_owned()));
        };
        let Some(ours) = again.tensor(&tensor.name) else {
            differs(Loss::Gone, "is gone");
            continue;
        };
        if ours.dims() != tensor.dims() {
            let what = format!("is {:?}, not {:?}", ours.dims(), tensor.dims());
            differs(Loss::Values, &what);
            continue;
        }
        let (a, b) = (floats(file, &tensor.name), floats(&again, &tensor.name));
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-6 + 1e-5 * a.abs();
        if a.iter().zip(&b).any(far) {
            differs(Loss::Values, "has different elements");
        } else if a.iter().zip(&b).any(|(a, b)| a.to_bits() != b.to_bits()) {
            differs(Loss::Digits, "has different last digits");
        }
    }
    for tensor in again.tensors() {
        if file.tensor(&tensor.name).is_none() {
            differences.push((tensor.name.clone(), Loss::Gone, "is new".into()));
        }
    }
    Ok(differences)
}

/// EmbeddingGemma as released, with two projections after the pooling in their own directories.
pub(crate) fn embedding_projections_round_trip() {
    let fixture = oxidize_golden::Fixture::load("embeddinggemma");
    let golden = fixture.build();
    let dir = tempfile::tempdir().unwrap();
    let (source, output) = (dir.path().join("source"), dir.path().join("again"));
    copy(golden.directory(), &source);
    let (width, inner) = (64, 96);
    let first: Vec<f32> = (0..width * inner).map(|i| (i as f32).sin()).collect();
    let second: Vec<f32> = (0..inner * width).map(|i| (i as f32).cos()).collect();
    write_projection(&source.join("2_Dense"), (inner, width), &first);
    write_projection(&source.join("3_Dense"), (width, inner), &second);

    let file = ModelFile::open(&source, &OpenOptions::default()).unwrap();
    let gguf = dir.path().join("model.gguf");
    convert(&file, &gguf, &params("F32"), &Options::default(), |_| {}).unwrap();
    let made = ModelFile::open(&gguf, &OpenOptions::default()).unwrap();
    assert_eq!(floats(&made, "dense_2.weight"), first);
    let key = "gemma-embedding.dense_3_feat_in";
    assert_eq!(made.metadata().u64(key), Some(inner as u64));

    // The output passes through both projections.
    let tokens = fixture.cases[0].tokens.clone();
    let plain = outputs(golden.directory(), &tokens).unwrap();
    let expected = multiplied(&multiplied(&plain, &first, inner), &second, width);
    for path in [&source, &gguf] {
        let ours = outputs(path, &tokens).unwrap();
        assert!(distance(&expected, &ours) < 1e-4, "{}", path.display());
    }

    to_directory(&made, &output, &OPTIONS, |_, _, _| {}).unwrap();
    for name in ["2_Dense", "3_Dense"] {
        let weights = |dir: &Path| {
            let path = dir.join(name).join("model.safetensors");
            let file = ModelFile::open(&path, &OpenOptions::default()).unwrap();
            (file.tensors()[0].dims(), floats(&file, "linear.weight"))
        };
        assert_eq!(weights(&output), weights(&source), "{name}");
    }
    let modules = std::fs::read_to_string(output.join("modules.json")).unwrap();
    assert!(modules.contains("1_Pooling") && modules.contains("3_Dense"));
    let again = outputs(&output, &tokens).unwrap();
    assert!(distance(&expected, &again) < 1e-4);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Writes a `rows` × `columns` projection in the format of sentence-transformers.
fn write_projection(dir: &Path, (rows, columns): (usize, usize), floats: &[f32]) {
    std::fs::create_dir(dir).unwrap();
    let config = r#"{"activation_function": "torch.nn.modules.linear.Identity", "bias": false}"#;
    std::fs::write(dir.join("config.json"), config).unwrap();
    let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
    let entry = format!(
        r#"{{"linear.weight":{{"dtype":"F32","shape":[{rows},{columns}],"data_offsets":[0,{}]}}}}"#,
        bytes.len()
    );
    let mut file = (entry.len() as u64).to_le_bytes().to_vec();
    file.extend(entry.into_bytes());
    file.extend(bytes);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
}

/// Multiplies each row of `x` by a matrix with `rows` rows.
fn multiplied(x: &[f32], matrix: &[f32], rows: usize) -> Vec<f32> {
    let columns = matrix.len() / rows;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let row = |x: &[f32]| -> Vec<f32> { matrix.chunks(columns).map(|m| dot(x, m)).collect() };
    x.chunks(columns).flat_map(row).collect()
}

pub(crate) fn directory_has_shards_tokenizer_and_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("model");
    let file = ModelFile::open(tiny(), &OpenOptions::default()).unwrap();
    let directory_options = DirectoryOptions {
        ty: TensorType::BF16,
        shard_bytes: 40_000,
        ..OPTIONS
    };
    let (files, missing) = to_directory(&file, &output, &directory_options, |_, _, _| {}).unwrap();
    assert!(missing.is_empty(), "{missing:?}");
    let names: Vec<_> = files
        .iter()
        .map(|file| file.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert!(names[0].starts_with("model-00001-of-"), "{names:?}");
    for name in ["model.safetensors.index.json", "tokenizer_config.json"] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }
    assert_eq!(names.last().unwrap(), "config.json");
    // Both tokenizers give the same tokens.
    let directory = ModelFile::open(&output, &OpenOptions::default()).unwrap();
    let (theirs, ours) = (
        Tokenizer::from_file(&file).unwrap(),
        Tokenizer::from_file(&directory).unwrap(),
    );
    let text = "Once upon a time, there were 3 tokens. \u{1f980} Ça va?\n\n  <s>";
    let options = EncodeOptions::default();
    assert_eq!(theirs.encode(text, options), ours.encode(text, options));
    // An existing directory is not overwritten.
    let error = to_directory(&file, &output, &directory_options, |_, _, _| {}).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
}
