//! Golden GGUF files as Hugging Face directories: our own loader finds the same model in them, and
//! converting them again gives the same file.

use std::path::Path;

use oxidize_core::arch::{Arch, Hparams};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::tokenizer::{EncodeOptions, Tokenizer};
use oxidize_kernels::quant::TensorType;
use oxidize_quantize::convert::convert;
use oxidize_quantize::convert::directory::{DirectoryOptions, SHARD_BYTES, to_directory};
use oxidize_quantize::encode::Workers;
use oxidize_quantize::quantize::Options;
use serde_json::Value;

use super::golden::{MEAN_OTHERWISE, floats, folders, input};
use super::run::{distance, outputs};
use super::{tiny, wishes};

const OPTIONS: DirectoryOptions<'static> = DirectoryOptions {
    ty: TensorType::F32,
    shard_bytes: SHARD_BYTES,
    workers: Workers {
        threads: 1,
        measure: false,
        stop: None,
    },
};

/// Models that a directory cannot hold, with part of the reason that is given.
const REFUSED: &[(&str, &str)] = &[];

/// Tensors of directories that a GGUF file does not keep, or not with all digits.
const LOST: &[(&str, &str, Loss)] = &[
    // A logarithm of what GGUF keeps.
    ("*", "A_log", Loss::Digits),
    // GGUF has the factors of the configuration in the weights.
    ("falcon-h1", "", Loss::Values),
    // Nobody's, without a classifier.
    ("*", "pooler.dense", Loss::Gone),
    // Rows for positions that do not exist.
    ("*", "position_embeddings", Loss::Values),
    // Of the first layer, which has no earlier one to look back to.
    ("rwkv7", "blocks.0.attention.v", Loss::Gone),
    // One by one, or in one tensor: either is a model of this family.
    ("qwen3vl-moe-text", ".experts.", Loss::Gone),
];

/// What becomes of a tensor on the way to GGUF and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// It is not there any more.
    Gone,
    /// Its last digits.
    Digits,
    /// It has another part's values: factors moved into it.
    Values,
}

#[test]
fn golden_files_become_directories_and_files_again() {
    let (mut checked, mut problems) = (0, Vec::new());
    for folder in folders() {
        let path = folder.join("model.gguf");
        if !path.exists() {
            continue;
        }
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let reason = REFUSED.iter().find(|(refused, _)| *refused == name);
        match (round_trip(&path), reason) {
            (Ok(()), None) => checked += 1,
            (Ok(()), Some(_)) => problems.push(format!("{name}: is listed as refused")),
            (Err(error), Some((_, reason))) if error.contains(reason) => {}
            (Err(error), _) => problems.push(format!("{name}: {error}")),
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(checked >= 40 || folders().is_empty(), "{checked} models");
}

/// To a directory and back; what differs.
fn round_trip(path: &Path) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let (folder, again) = (dir.path().join("model"), dir.path().join("again.gguf"));
    let file = ModelFile::open(path, &OpenOptions::default()).map_err(|e| e.to_string())?;
    if Arch::detect(&file).is_err() {
        return Ok(());
    }
    to_directory(&file, &folder, &OPTIONS, |_, _, _| {}).map_err(|e| e.to_string())?;
    let tokens = input(path.parent().unwrap());
    let name = path.parent().unwrap().file_name().unwrap();
    let means_otherwise = MEAN_OTHERWISE.iter().any(|model| name == *model);
    if let (Some(theirs), false) = (outputs(path, &tokens), means_otherwise) {
        let ours = outputs(&folder, &tokens).unwrap_or_default();
        let distance = distance(&theirs, &ours);
        if distance.is_nan() || distance > 1e-4 {
            return Err(format!("logits are {distance:.1e} apart"));
        }
    }
    let directory = ModelFile::open(&folder, &OpenOptions::default()).map_err(|e| e.to_string())?;
    // A table of positions has as many rows as the configuration says, or nobody can load it.
    if file.tensor("position_embd.weight").is_some() {
        let golden = path.with_file_name("config.json");
        let golden: Option<Value> = std::fs::read(golden)
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
        &wishes("F32"),
        &Options::default(),
        |_| {},
    )
    .map_err(|e| e.to_string())?;
    let made = ModelFile::open(&again, &OpenOptions::default()).unwrap();
    for tensor in file.tensors() {
        let Some(ours) = made.tensor(&tensor.name) else {
            return Err(format!("{} is lost", tensor.name));
        };
        if ours.dims() != tensor.dims() {
            return Err(format!("{} has another shape", tensor.name));
        }
        let (a, b) = (floats(&file, &tensor.name), floats(&made, &tensor.name));
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-6 + 1e-5 * a.abs();
        if a.iter().zip(&b).any(far) {
            return Err(format!("{} has other elements", tensor.name));
        }
    }
    Ok(())
}

#[test]
fn golden_directories_come_back_as_they_were() {
    let (mut checked, mut problems) = (0, Vec::new());
    for folder in folders() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let path = folder.join("model.safetensors");
        if !path.exists() || REFUSED.iter().any(|(refused, _)| *refused == name) {
            continue;
        }
        let file = ModelFile::open(&path, &OpenOptions::default()).unwrap();
        if Arch::detect(&file).is_err() {
            continue;
        }
        checked += 1;
        match there_and_back(&file) {
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
    assert!(checked >= 100 || folders().is_empty(), "{checked} models");
}

/// A directory to a file and back; the tensors that are not what they were.
fn there_and_back(file: &ModelFile) -> Result<Vec<(String, Loss, String)>, String> {
    let dir = tempfile::tempdir().unwrap();
    let (gguf, folder) = (dir.path().join("model.gguf"), dir.path().join("model"));
    convert(file, &gguf, &wishes("F32"), &Options::default(), |_| {}).map_err(|e| e.to_string())?;
    let made = ModelFile::open(&gguf, &OpenOptions::default()).map_err(|e| e.to_string())?;
    to_directory(&made, &folder, &OPTIONS, |_, _, _| {}).map_err(|e| e.to_string())?;
    let again = ModelFile::open(&folder, &OpenOptions::default()).map_err(|e| e.to_string())?;
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
            differs(Loss::Values, "has other elements");
        } else if a.iter().zip(&b).any(|(a, b)| a.to_bits() != b.to_bits()) {
            differs(Loss::Digits, "has other last digits");
        }
    }
    for tensor in again.tensors() {
        if file.tensor(&tensor.name).is_none() {
            differences.push((tensor.name.clone(), Loss::Gone, "is new".into()));
        }
    }
    Ok(differences)
}

/// EmbeddingGemma as it is released: two projections behind the pooling, in folders of their own.
#[test]
fn projections_of_embeddings_go_there_and_back() {
    let golden = folders()
        .into_iter()
        .find(|f| f.ends_with("embeddinggemma"));
    let Some(golden) = golden else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (source, folder) = (dir.path().join("source"), dir.path().join("again"));
    copy(&golden, &source);
    let (width, inner) = (64, 96);
    let first: Vec<f32> = (0..width * inner).map(|i| (i as f32).sin()).collect();
    let second: Vec<f32> = (0..inner * width).map(|i| (i as f32).cos()).collect();
    write_projection(&source.join("2_Dense"), (inner, width), &first);
    write_projection(&source.join("3_Dense"), (width, inner), &second);

    let file = ModelFile::open(&source, &OpenOptions::default()).unwrap();
    let gguf = dir.path().join("model.gguf");
    convert(&file, &gguf, &wishes("F32"), &Options::default(), |_| {}).unwrap();
    let made = ModelFile::open(&gguf, &OpenOptions::default()).unwrap();
    assert_eq!(floats(&made, "dense_2.weight"), first);
    let key = "gemma-embedding.dense_3_feat_in";
    assert_eq!(made.metadata().u64(key), Some(inner as u64));

    // What the model gives out goes through both.
    let tokens = input(&golden);
    let plain = outputs(&golden, &tokens).unwrap();
    let expected = multiplied(&multiplied(&plain, &first, inner), &second, width);
    for path in [&source, &gguf] {
        let ours = outputs(path, &tokens).unwrap();
        assert!(distance(&expected, &ours) < 1e-4, "{}", path.display());
    }

    to_directory(&made, &folder, &OPTIONS, |_, _, _| {}).unwrap();
    for name in ["2_Dense", "3_Dense"] {
        let weights = |dir: &Path| {
            let path = dir.join(name).join("model.safetensors");
            let file = ModelFile::open(&path, &OpenOptions::default()).unwrap();
            (file.tensors()[0].dims(), floats(&file, "linear.weight"))
        };
        assert_eq!(weights(&folder), weights(&source), "{name}");
    }
    let modules = std::fs::read_to_string(folder.join("modules.json")).unwrap();
    assert!(modules.contains("1_Pooling") && modules.contains("3_Dense"));
    let again = outputs(&folder, &tokens).unwrap();
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

/// A matrix of `rows` by `columns` as sentence-transformers keep it.
fn write_projection(folder: &Path, (rows, columns): (usize, usize), floats: &[f32]) {
    std::fs::create_dir(folder).unwrap();
    let config = r#"{"activation_function": "torch.nn.modules.linear.Identity", "bias": false}"#;
    std::fs::write(folder.join("config.json"), config).unwrap();
    let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
    let entry = format!(
        r#"{{"linear.weight":{{"dtype":"F32","shape":[{rows},{columns}],"data_offsets":[0,{}]}}}}"#,
        bytes.len()
    );
    let mut file = (entry.len() as u64).to_le_bytes().to_vec();
    file.extend(entry.into_bytes());
    file.extend(bytes);
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
}

/// Each row of `x`, multiplied by a matrix of so many rows.
fn multiplied(x: &[f32], matrix: &[f32], rows: usize) -> Vec<f32> {
    let columns = matrix.len() / rows;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let row = |x: &[f32]| -> Vec<f32> { matrix.chunks(columns).map(|m| dot(x, m)).collect() };
    x.chunks(columns).flat_map(row).collect()
}

#[test]
fn a_directory_has_shards_a_tokenizer_and_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("model");
    let file = ModelFile::open(tiny(), &OpenOptions::default()).unwrap();
    let directory_options = DirectoryOptions {
        ty: TensorType::BF16,
        shard_bytes: 40_000,
        ..OPTIONS
    };
    let (files, missing) = to_directory(&file, &folder, &directory_options, |_, _, _| {}).unwrap();
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
    // The same text is the same tokens.
    let directory = ModelFile::open(&folder, &OpenOptions::default()).unwrap();
    let (theirs, ours) = (
        Tokenizer::from_file(&file).unwrap(),
        Tokenizer::from_file(&directory).unwrap(),
    );
    let text = "Once upon a time, there were 3 tokens. \u{1f980} Ça va?\n\n  <s>";
    let options = EncodeOptions::default();
    assert_eq!(theirs.encode(text, options), ours.encode(text, options));
    // What is there is not written over.
    let error = to_directory(&file, &folder, &directory_options, |_, _, _| {}).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
}
