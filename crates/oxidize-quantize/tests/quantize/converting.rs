//! Conversion to GGUF: messages about golden directories, and preserved metadata.

use std::path::PathBuf;

use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{ArrayBuf, ValueBuf};
use oxidize_kernels::quant::TensorType;
use oxidize_quantize::convert::convert;
use oxidize_quantize::convert::directory::{DirectoryOptions, SHARD_BYTES, to_directory};
use oxidize_quantize::plan::{Plan, model_info};
use oxidize_quantize::quantize::{Options, QuantJob, quantize, tensors_of};
use oxidize_quantize::source::Source;
use oxidize_quantize::workers::Workers;

use super::golden::{Subject, fixtures, stored};
use super::{open, params, tiny};

/// All tensors of golden directories are converted, except for tensors of the first layer of RWKV 7.
pub(crate) fn golden_directories_leave_no_tensor_out() {
    check_notes(fixtures());
}

pub(crate) fn stored_directories_leave_no_tensor_out() {
    check_notes(stored());
}

fn check_notes(subjects: impl Iterator<Item = Subject>) {
    let mut problems = Vec::new();
    for Subject { golden, .. } in subjects {
        let Ok(file) = ModelFile::open(golden.weights(), &OpenOptions::default()) else {
            continue;
        };
        if oxidize_core::arch::Arch::detect(&file).is_err() || golden.name() == "rwkv7" {
            continue;
        }
        let source = Source::new(&file).unwrap();
        let notes = source
            .notes()
            .iter()
            .filter(|line| !line.contains("no tokenizer"));
        problems.extend(notes.map(|line| format!("{}: {line}", golden.name())));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

pub(crate) fn name_and_license_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let [named, model, again] = ["named.gguf", "model", "again.gguf"].map(place);
    let texts = [
        ("general.name", "A \"small\" model: no. 1"),
        ("general.license", "apache-2.0"),
        ("general.license.link", "https://example.com/LICENSE"),
        ("general.author", "Ada, Grace"),
        ("general.organization", "Analytical Engines"),
        (
            "general.base_model.0.repo_url",
            "https://huggingface.co/engines/base",
        ),
        ("general.base_model.0.name", "base"),
        ("general.base_model.0.organization", "engines"),
    ];
    let lists = [
        ("general.languages", ["no", "en"]),
        ("general.tags", ["a", "b"]),
    ];
    {
        let file = open(&tiny());
        let tensors = tensors_of(&file);
        let plan = Plan::new(&tensors, &params("F32"), &model_info(&file, false));
        let mut job = QuantJob::of_gguf(&file, tensors, plan, ("F32", 0), None);
        for (key, text) in texts {
            job.output.set(key, text.into());
        }
        for (key, list) in lists {
            job.output
                .set(key, ValueBuf::Array(ArrayBuf::strings(list)));
        }
        let count = ValueBuf::U32(1);
        job.output.set("general.base_model.count", count);
        quantize(&file, job, &named, &Options::default(), |_| {}).unwrap();
    }
    let options = DirectoryOptions {
        ty: TensorType::F32,
        shard_bytes: SHARD_BYTES,
        workers: Workers::default(),
    };
    let (files, _) = to_directory(&open(&named), &model, &options, |_, _, _| {}).unwrap();
    assert!(files.contains(&model.join("README.md")), "{files:?}");
    let source: PathBuf = model.clone();
    convert(
        &open(&source),
        &again,
        &params("F32"),
        &Options::default(),
        |_| {},
    )
    .unwrap();
    let made = open(&again);
    for (key, text) in texts {
        assert_eq!(made.metadata().str(key), Some(text), "{key}");
    }
    for (key, list) in lists {
        let ours = made.metadata().array(key).unwrap();
        let ours: Vec<String> = ours.strings().unwrap().map(String::from).collect();
        assert_eq!(ours, list, "{key}");
    }
}
