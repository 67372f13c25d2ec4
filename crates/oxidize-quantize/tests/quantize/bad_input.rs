//! Invalid input gives a clear error; no output is left and the source is unchanged.

use std::path::Path;
use std::process::{Command, Stdio};

use oxidize_core::gguf::{Value, Writer};
use oxidize_kernels::quant::TensorType;
use oxidize_quantize::Error;
use oxidize_quantize::importance::{Entry, Importance};
use oxidize_quantize::quantize::Options;
use oxidize_testing::skip;

use super::{importance, params, quantized, synthetic, tiny};

/// Names of the files in a directory, including temporary ones.
fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Writes a model with one matrix.
fn one_matrix(path: &Path, columns: u64, floats: &[f32]) {
    let mut writer = Writer::new();
    writer
        .key("general.architecture", &Value::Str("llama"))
        .unwrap();
    let rows = floats.len() as u64 / columns;
    writer
        .tensor("blk.0.ffn_up.weight", TensorType::F32, &[columns, rows])
        .unwrap();
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |_, out| {
            let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
            out.write_all(&bytes)?;
            Ok::<_, Box<dyn std::error::Error>>(())
        })
        .unwrap();
    std::fs::write(path, bytes).unwrap();
}

pub(crate) fn input_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::copy(tiny(), &path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = quantized(&path, &path, &params("Q8_0"), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::SameFile { .. }), "{error}");
    let link = dir.path().join("link.gguf");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let error = quantized(&path, &link, &params("Q8_0"), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::SameFile { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

pub(crate) fn weights_outside_the_range_of_a_type_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    let mut floats: Vec<f32> = (0..512).map(|i| (i as f32).sin()).collect();
    floats[300] = -1e5;
    one_matrix(&input, 256, &floats);
    let error = quantized(&input, &output, &params("F16"), &Options::default()).unwrap_err();
    let message = error.to_string();
    for part in [
        "in.gguf",
        "blk.0.ffn_up.weight",
        "element 300",
        "-100000",
        "F16",
    ] {
        assert!(message.contains(part), "{message}");
    }
    quantized(&input, &output, &params("BF16"), &Options::default()).unwrap();
    quantized(&input, &output, &params("Q8_0"), &Options::default()).unwrap();
    // An infinite scale would make the whole block infinite.
    floats[300] = 1e30;
    one_matrix(&input, 256, &floats);
    for recipe in [
        "Q8_0", "Q4_0", "Q4_1", "Q5_1", "Q4_K", "Q6_K", "IQ4_NL", "INT8", "TQ2_0",
    ] {
        let made = quantized(&input, &output, &params(recipe), &Options::default());
        let error = made.expect_err(recipe).to_string();
        assert!(error.contains("element 300"), "{recipe}: {error}");
    }
}

/// INT8 is stored as Q8_0 with a key for the whole file.
pub(crate) fn int8_and_q8_0_in_one_file_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F32", 4);
    for (recipe, pattern) in [("Q8_0", "attn_q=INT8"), ("INT8", "ffn=Q8_0")] {
        let mut params = params(recipe);
        params.pattern(pattern).unwrap();
        let error = quantized(&input, &output, &params, &Options::default()).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("INT8") && message.contains("Q8_0"),
            "{message}"
        );
    }
    // Parts keep the type.
    let mut params = params("INT8");
    params.embedding = Some(TensorType::F16);
    let options = Options {
        parts: oxidize_quantize::output::Parts::MaxTensors(1),
        ..Options::default()
    };
    let files = quantized(&input, &output, &params, &options).unwrap();
    let made = super::open(&files[0]);
    assert!(
        made.tensors()
            .iter()
            .any(|tensor| tensor.ty == TensorType::INT8)
    );
    assert!(
        made.tensors()
            .iter()
            .all(|tensor| tensor.ty != TensorType::Q8_0)
    );
}

pub(crate) fn types_of_activations_are_rejected() {
    for ty in ["Q8_1", "Q8_K", "I32", "Q9_9"] {
        let error = params("Q8_0").pattern(&format!("ffn={ty}")).unwrap_err();
        assert!(error.to_string().contains(ty), "{error}");
    }
}

pub(crate) fn requantization_requires_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let (small, smaller) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
    quantized(&tiny(), &small, &params("Q8_0"), &Options::default()).unwrap();
    let error = quantized(&small, &smaller, &params("Q4_0"), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("already Q8_0"), "{error}");
    assert_eq!(files(dir.path()), ["a.gguf"]);
    let options = Options {
        allow_requantize: true,
        ..Options::default()
    };
    quantized(&small, &smaller, &params("Q4_0"), &options).unwrap();
}

pub(crate) fn nan_and_infinity_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    for (at, value) in [
        (0, f32::NAN),
        (700, f32::INFINITY),
        (1023, f32::NEG_INFINITY),
    ] {
        let mut floats = vec![0.5; 1024];
        floats[at] = value;
        one_matrix(&input, 256, &floats);
        for ty in ["Q4_K", "Q8_0", "IQ3_S", "F16"] {
            let error = quantized(&input, &output, &params(ty), &Options::default()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("element {at} ")), "{ty}: {text}");
            assert!(text.contains("blk.0.ffn_up.weight"), "{text}");
        }
        assert_eq!(files(dir.path()), ["in.gguf"]);
    }
}

pub(crate) fn rows_of_partial_blocks_are_rejected_without_a_recipe() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    one_matrix(&input, 48, &[0.25; 480]);
    // A recipe falls back to a type that fits.
    quantized(&input, &output, &params("Q4_K_M"), &Options::default()).unwrap();
    let file = super::open(&output);
    assert_eq!(file.tensors()[0].ty, TensorType::F16);
    std::fs::remove_file(&output).unwrap();
    let file = super::open(&input);
    let tensors = oxidize_quantize::quantize::tensors_of(&file);
    let plan = oxidize_quantize::plan::Plan {
        types: vec![TensorType::Q4_K],
        fallbacks: 0,
    };
    let job =
        oxidize_quantize::quantize::QuantJob::of_gguf(&file, tensors, plan, ("Q4_K", 15), None);
    let options = Options::default();
    let made = oxidize_quantize::quantize::quantize(&file, job, &output, &options, |_| {});
    let text = made.unwrap_err().to_string();
    assert!(
        text.contains("rows of 48") && text.contains("Q4_K"),
        "{text}"
    );
    assert_eq!(files(dir.path()), ["in.gguf"]);
}

pub(crate) fn truncated_source_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    let whole = std::fs::read(tiny()).unwrap();
    for share in [3, 10, 50, 99] {
        std::fs::write(&input, &whole[..whole.len() * share / 100]).unwrap();
        let opened = oxidize_core::file::ModelFile::open(&input, &Default::default());
        assert!(opened.is_err(), "{share} %");
    }
    // The file is truncated after it was opened.
    std::fs::write(&input, &whole).unwrap();
    let file = super::open(&input);
    std::fs::write(&input, &whole[..whole.len() / 2]).unwrap();
    let tensors = oxidize_quantize::quantize::tensors_of(&file);
    let info = oxidize_quantize::plan::model_info(&file, false);
    let params = params("Q8_0");
    let plan = oxidize_quantize::plan::Plan::new(&tensors, &params, &info);
    let job =
        oxidize_quantize::quantize::QuantJob::of_gguf(&file, tensors, plan, ("Q8_0", 7), None);
    let options = Options::default();
    let made = oxidize_quantize::quantize::quantize(&file, job, &output, &options, |_| {});
    assert!(made.unwrap_err().to_string().contains("in.gguf"));
    assert_eq!(files(dir.path()), ["in.gguf"]);
}

pub(crate) fn importance_of_another_model_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F16", 1);
    let refuse = |importance: &Importance| {
        let options = Options {
            importance: Some(importance),
            ..Options::default()
        };
        let made = quantized(&input, &output, &params("Q4_K_M"), &options);
        made.unwrap_err().to_string()
    };
    let mut other = importance(&tiny(), |_| 1.0);
    assert!(
        refuse(&other).contains("of another model"),
        "{}",
        refuse(&other)
    );
    other.entries = other
        .entries
        .into_iter()
        .map(|(name, entry)| (format!("other.{name}"), entry))
        .collect();
    assert!(
        refuse(&other).contains("does not have"),
        "{}",
        refuse(&other)
    );
    // A model file is not an importance matrix.
    let error = Importance::load(&input).unwrap_err();
    assert!(
        error.to_string().contains("not an importance matrix"),
        "{error}"
    );
    assert_eq!(files(dir.path()), ["in.gguf"]);
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Needs permission to mount a tmpfs.
pub(crate) fn full_disk_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs", path(&disk)])
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        skip("a tmpfs cannot be mounted without permission");
    }
    let made = quantized(
        &tiny(),
        &disk.join("out.gguf"),
        &params("F32"),
        &Options::default(),
    );
    let mut large = importance(&tiny(), |_| 1.0);
    let name = "blk.0.large.weight".to_owned();
    large.entries.insert(
        name,
        Entry {
            sums: vec![1.0; 1 << 20],
            counts: vec![1.0],
            sketch: None,
        },
    );
    let saved = large.save(&disk.join("imatrix.gguf"));
    let left = files(&disk);
    let unmounted = Command::new("umount").arg(&disk).status().unwrap();
    assert!(unmounted.success());
    let text = made.unwrap_err().to_string();
    assert!(
        text.contains("out.gguf") && text.contains("space"),
        "{text}"
    );
    let text = saved.unwrap_err().to_string();
    assert!(
        text.contains("imatrix.gguf") && text.contains("space"),
        "{text}"
    );
    assert_eq!(left, Vec::<String>::new());
}
