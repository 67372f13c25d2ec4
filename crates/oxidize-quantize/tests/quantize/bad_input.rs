//! Bad input is a clear error; nothing is left under the final name, and the source is untouched.

use std::path::Path;
use std::process::{Command, Stdio};

use oxidize_core::gguf::{Value, Writer};
use oxidize_kernels::quant::TensorType;
use oxidize_quantize::convert::directory::{DirectoryOptions, SHARD_BYTES, to_directory};
use oxidize_quantize::encode::Workers;
use oxidize_quantize::importance::{Entry, Importance};
use oxidize_quantize::quantize::Options;
use oxidize_quantize::{Error, commands};

use super::{importance, quantized, synthetic, tiny, wishes};

/// Files in a folder, temporary ones too.
pub(crate) fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A model of one matrix.
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

#[test]
fn the_output_may_not_be_the_input() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::copy(tiny(), &path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = quantized(&path, &path, &wishes("Q8_0"), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::SameFile { .. }), "{error}");
    let link = dir.path().join("link.gguf");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let error = quantized(&path, &link, &wishes("Q8_0"), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::SameFile { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// All parts are open until the last is whole, and a shell may let a program open fewer than the system does.
#[test]
fn there_may_be_more_parts_than_files_that_a_shell_lets_open() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(&dir.path().join("in.gguf"), "Q8_0", 8);
    let script = "ulimit -Sn 40 && \"$0\" split in.gguf part --max-tensors 1 \
        && \"$0\" merge part-00001-of-*.gguf out.gguf && cmp in.gguf out.gguf";
    let done = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_oxidize-quantize")])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{error}");
    assert!(files(dir.path()).len() > 60);
}

/// Whatever is read, and whatever name the output gets in the end.
#[test]
fn nothing_that_is_read_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (model, imatrix, text) = (place("m.gguf"), place("i.gguf"), place("t.txt"));
    std::fs::copy(tiny(), &model).unwrap();
    importance(&tiny(), |_| 1.0).save(imatrix.as_ref()).unwrap();
    std::fs::write(&text, "What is read stays.").unwrap();
    assert!(
        program(&["split", &model, &place("part"), "--max-tensors", "5"])
            .status
            .success()
    );
    let first = files(dir.path())
        .into_iter()
        .find(|name| name.starts_with("part-00001-of-"))
        .unwrap();
    let (first, out) = (place(&first), place("out.gguf"));
    let before: Vec<Vec<u8>> = files(dir.path())
        .iter()
        .map(|name| std::fs::read(dir.path().join(name)).unwrap())
        .collect();
    let cases: &[&[&str]] = &[
        &[
            "quantize",
            &first,
            &place("part.gguf"),
            "Q8_0",
            "--keep-split",
        ],
        &[
            "quantize",
            &first,
            &place("part"),
            "Q8_0",
            "--split-max-tensors",
            "5",
        ],
        &["quantize", &model, &imatrix, "Q8_0", "--imatrix", &imatrix],
        &["quantize", &model, &text, "Q8_0", "-f", &text],
        &["quantize", &model, &out, "Q8_0", "--html", &model],
        &["quantize", &model, &out, "Q8_0", "--html", &out],
        &[
            "quantize",
            &model,
            &out,
            "Q8_0",
            "--imatrix",
            &imatrix,
            "--html",
            &imatrix,
        ],
        &["quantize", &model, &model, "Q8_0", "--dry-run"],
        &["merge", &model, &imatrix, "--lora", &imatrix],
    ];
    for args in cases {
        let done = program(args);
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(
            error.contains("the output is also the input"),
            "{args:?}: {error}"
        );
        assert_eq!(done.status.code(), Some(1), "{args:?}");
    }
    let after: Vec<Vec<u8>> = files(dir.path())
        .iter()
        .map(|name| std::fs::read(dir.path().join(name)).unwrap())
        .collect();
    assert!(before == after, "{:?}", files(dir.path()));
}

/// Where the page cannot be is known before the work, which is then not done in vain.
#[test]
fn a_page_that_cannot_be_written_is_an_early_error() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let out = place("out.gguf");
    let model = tiny();
    let args = ["quantize", path(&model), &out, "Q8_0", "--html"];
    for page in [
        place("nowhere/page.html"),
        dir.path().to_str().unwrap().to_owned(),
    ] {
        let done = program(&[&args[..], &[&page]].concat());
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(error.contains(&page), "{error}");
        assert_eq!(done.status.code(), Some(1));
        assert!(files(dir.path()).is_empty());
    }
}

#[test]
fn weights_that_a_type_cannot_say_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    let mut floats: Vec<f32> = (0..512).map(|i| (i as f32).sin()).collect();
    floats[300] = -1e5;
    one_matrix(&input, 256, &floats);
    let error = quantized(&input, &output, &wishes("F16"), &Options::default()).unwrap_err();
    let said = error.to_string();
    for part in [
        "in.gguf",
        "blk.0.ffn_up.weight",
        "element 300",
        "-100000",
        "F16",
    ] {
        assert!(said.contains(part), "{said}");
    }
    quantized(&input, &output, &wishes("BF16"), &Options::default()).unwrap();
    quantized(&input, &output, &wishes("Q8_0"), &Options::default()).unwrap();
    // A scale that is infinite would make a whole block so.
    floats[300] = 1e30;
    one_matrix(&input, 256, &floats);
    for mix in [
        "Q8_0", "Q4_0", "Q4_1", "Q5_1", "Q4_K", "Q6_K", "IQ4_NL", "INT8", "TQ2_0",
    ] {
        let made = quantized(&input, &output, &wishes(mix), &Options::default());
        let error = made.expect_err(mix).to_string();
        assert!(error.contains("element 300"), "{mix}: {error}");
    }
}

/// One mark of the file stands for all of its Q8_0.
#[test]
fn int8_and_q8_0_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F32", 4);
    for (mix, pattern) in [("Q8_0", "attn_q=INT8"), ("INT8", "ffn=Q8_0")] {
        let mut wishes = wishes(mix);
        wishes.pattern(pattern).unwrap();
        let error = quantized(&input, &output, &wishes, &Options::default()).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("INT8") && said.contains("Q8_0"), "{said}");
    }
    // In parts, all of them are INT8 again.
    let mut wishes = wishes("INT8");
    wishes.embedding = Some(TensorType::F16);
    let options = Options {
        parts: oxidize_quantize::output::Parts::MaxTensors(1),
        ..Options::default()
    };
    let files = quantized(&input, &output, &wishes, &options).unwrap();
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

#[test]
fn only_types_of_weights_can_be_asked_for() {
    for ty in ["Q8_1", "Q8_K", "I32", "Q9_9"] {
        let error = wishes("Q8_0").pattern(&format!("ffn={ty}")).unwrap_err();
        assert!(error.to_string().contains(ty), "{error}");
    }
}

#[test]
fn quantised_tensors_are_not_quantised_again_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let (small, smaller) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
    quantized(&tiny(), &small, &wishes("Q8_0"), &Options::default()).unwrap();
    let error = quantized(&small, &smaller, &wishes("Q4_0"), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("Q8_0 already"), "{error}");
    assert_eq!(files(dir.path()), ["a.gguf"]);
    let options = Options {
        allow_requantize: true,
        ..Options::default()
    };
    quantized(&small, &smaller, &wishes("Q4_0"), &options).unwrap();
}

#[test]
fn what_is_no_number_is_named() {
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
            let error = quantized(&input, &output, &wishes(ty), &Options::default()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("element {at} ")), "{ty}: {text}");
            assert!(text.contains("blk.0.ffn_up.weight"), "{text}");
        }
        assert_eq!(files(dir.path()), ["in.gguf"]);
    }
}

#[test]
fn rows_that_no_block_fills_are_refused_where_the_type_was_demanded() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    one_matrix(&input, 48, &[0.25; 480]);
    // A mix looks for a type that fits.
    quantized(&input, &output, &wishes("Q4_K_M"), &Options::default()).unwrap();
    let file = super::open(&output);
    assert_eq!(file.tensors()[0].ty, TensorType::F16);
    std::fs::remove_file(&output).unwrap();
    let file = super::open(&input);
    let tensors = oxidize_quantize::quantize::tensors_of(&file);
    let plan = oxidize_quantize::plan::Plan {
        types: vec![TensorType::Q4_K],
        fallbacks: 0,
    };
    let recipe = oxidize_quantize::quantize::recipe(&file, tensors, plan, ("Q4_K", 15), None);
    let options = Options::default();
    let made = oxidize_quantize::quantize::quantize(&file, recipe, &output, &options, |_| {});
    let text = made.unwrap_err().to_string();
    assert!(
        text.contains("rows of 48") && text.contains("Q4_K"),
        "{text}"
    );
    assert_eq!(files(dir.path()), ["in.gguf"]);
}

#[test]
fn a_source_that_ends_early_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    let whole = std::fs::read(tiny()).unwrap();
    for share in [3, 10, 50, 99] {
        std::fs::write(&input, &whole[..whole.len() * share / 100]).unwrap();
        let opened = oxidize_core::file::ModelFile::open(&input, &Default::default());
        assert!(opened.is_err(), "{share} %");
    }
    // It may also shrink while it is read.
    std::fs::write(&input, &whole).unwrap();
    let file = super::open(&input);
    std::fs::write(&input, &whole[..whole.len() / 2]).unwrap();
    let tensors = oxidize_quantize::quantize::tensors_of(&file);
    let traits = oxidize_quantize::plan::traits_of(&file, false);
    let wishes = wishes("Q8_0");
    let plan = oxidize_quantize::plan::Plan::new(&tensors, &wishes, &traits);
    let recipe = oxidize_quantize::quantize::recipe(&file, tensors, plan, ("Q8_0", 7), None);
    let options = Options::default();
    let made = oxidize_quantize::quantize::quantize(&file, recipe, &output, &options, |_| {});
    assert!(made.unwrap_err().to_string().contains("in.gguf"));
    assert_eq!(files(dir.path()), ["in.gguf"]);
}

#[test]
fn the_importance_of_another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F16", 1);
    let refuse = |importance: &Importance| {
        let options = Options {
            importance: Some(importance),
            ..Options::default()
        };
        let made = quantized(&input, &output, &wishes("Q4_K_M"), &options);
        made.unwrap_err().to_string()
    };
    let mut other = importance(&tiny(), |_| 1.0);
    assert!(
        refuse(&other).contains("not of this model"),
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
    // A model is no importance matrix.
    let error = Importance::load(&input).unwrap_err();
    assert!(
        error.to_string().contains("no importance matrix"),
        "{error}"
    );
    assert_eq!(files(dir.path()), ["in.gguf"]);
}

#[test]
fn few_bits_want_importance() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F16", 1);
    let run = program(&["quantize", path(&input), path(&output), "IQ2_XS"]);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(
        !run.status.success() && text.contains("importance matrix"),
        "{text}"
    );
    assert_eq!(files(dir.path()), ["in.gguf"]);
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn program(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_oxidize-quantize"))
        .args(args)
        .output()
        .unwrap()
}

/// A full disk, where this test may make one.
#[test]
fn a_full_disk_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs", path(&disk)])
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: a small disk cannot be mounted here");
        return;
    }
    let made = quantized(
        &tiny(),
        &disk.join("out.gguf"),
        &wishes("F32"),
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

/// The checked-in model as a directory, with its weights changed.
pub(crate) fn directory(dir: &Path, change: impl Fn(&str, &mut Vec<f32>)) {
    let folder = dir.join("model");
    let file = super::open(&tiny());
    let options = DirectoryOptions {
        ty: TensorType::F32,
        shard_bytes: SHARD_BYTES,
        workers: Workers::default(),
    };
    to_directory(&file, &folder, &options, |_, _, _| {}).unwrap();
    // The header says where each tensor is.
    let path = folder.join("model.safetensors");
    let directory = super::open(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    for tensor in directory.tensors() {
        let range = tensor.offset as usize..(tensor.offset + tensor.bytes) as usize;
        let floats = bytes[range.clone()].as_chunks::<4>().0.iter();
        let mut floats: Vec<f32> = floats.map(|bytes| f32::from_le_bytes(*bytes)).collect();
        change(&tensor.name, &mut floats);
        let changed: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        bytes[range].copy_from_slice(&changed);
    }
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_bad_directory_is_not_converted() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    directory(dir.path(), |_, _| {});
    let convert = || {
        let run = program(&[
            "convert",
            path(&folder),
            "-o",
            path(&output),
            "--type",
            "F16",
        ]);
        (
            run.status.success(),
            String::from_utf8_lossy(&run.stderr).into_owned(),
        )
    };
    let (ok, text) = convert();
    assert!(ok, "{text}");
    std::fs::remove_file(&output).unwrap();
    // The weights end early.
    let weights = folder.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    let (ok, text) = convert();
    assert!(!ok && text.contains("model.safetensors"), "{text}");
    // The output is also the input.
    std::fs::write(&weights, &whole).unwrap();
    let run = program(&["convert", path(&folder), "-o", path(&weights)]);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(text.contains("also the input"), "{text}");
    assert_eq!(std::fs::read(&weights).unwrap(), whole);
    // A configuration that does not fit the weights.
    let config = folder.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let wider = text.replace("\"intermediate_size\": ", "\"intermediate_size\": 1");
    assert_ne!(text, wider);
    std::fs::write(&config, wider).unwrap();
    let (ok, text) = convert();
    assert!(!ok && text.contains("blk.0.ffn_"), "{text}");
    assert_eq!(files(dir.path()), ["model"]);
}

#[test]
fn a_directory_with_what_is_no_number_is_not_converted() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, output) = (dir.path().join("model"), dir.path().join("out.gguf"));
    directory(dir.path(), |name, floats| {
        if name.ends_with("layers.0.mlp.down_proj.weight") {
            floats[77] = f32::NAN;
        }
    });
    let run = program(&["convert", path(&folder), "-o", path(&output)]);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    let expected = "tensor `blk.0.ffn_down.weight`, in the source `model.layers.0.mlp.down_proj.weight`: element 77 is NaN";
    assert!(!run.status.success() && text.contains(expected), "{text}");
    assert_eq!(files(dir.path()), ["model"]);
}

#[test]
fn sizes_are_checked() {
    assert!(commands::byte_size("4GB").is_ok());
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.gguf");
    let tiny = tiny();
    let run = program(&[
        "quantize",
        path(&tiny),
        path(&output),
        "--target-size",
        "1kB",
    ]);
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success() && text.contains("too few"), "{text}");

    let size = std::fs::metadata(&tiny).unwrap().len() * 2 / 3;
    let asked = size.to_string();
    let run = program(&[
        "quantize",
        path(&tiny),
        path(&output),
        "--target-size",
        &asked,
    ]);
    assert!(run.status.success(), "{run:?}");
    let made = std::fs::metadata(&output).unwrap().len();
    assert!(made <= size, "{made} of {size}");
}
