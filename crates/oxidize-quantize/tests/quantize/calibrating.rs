//! From a directory to a small file in one command, which learns what matters on the way.

use std::path::{Path, PathBuf};
use std::process::Command;

use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;
use oxidize_quantize::evaluate::chunk_size;
use oxidize_quantize::imatrix::{self, collect};
use oxidize_quantize::importance::Importance;
use oxidize_quantize::report::Report;
use oxidize_quantize::text::Text;

use super::bad_input::{directory, path, program};
use super::{fingerprint, open, synthetic, tiny};

/// The program's messages, where it ends well.
fn quantized(args: &[&str]) -> String {
    let run = program(&[&["quantize"], args].concat());
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}");
    said
}

fn refused(args: &[&str]) -> String {
    let run = program(&[&["quantize"], args].concat());
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success(), "{said}");
    said
}

/// A text in a file.
fn text(dir: &Path) -> PathBuf {
    let path = dir.join("text.txt");
    let words = "Once upon a time a crab met a quick brown fox; 1, 2, 3. ";
    std::fs::write(&path, words.repeat(120)).unwrap();
    path
}

/// What a model learns from a text.
fn learned(model: &Path, text: &Path) -> Importance {
    let model = Model::load(model, &OpenOptions::default()).unwrap();
    let options = imatrix::Options {
        n_ctx: chunk_size(&model, None),
        ..imatrix::Options::default()
    };
    let text = Text::load(text).unwrap();
    collect(&model, &text, &options, |_, _, _| Ok(())).unwrap()
}

/// The share of bytes of their tensors in which two files differ.
fn apart(a: &Path, b: &Path) -> f64 {
    let (a, b) = (open(a), open(b));
    let (mut other, mut all) = (0, 0);
    for tensor in a.tensors() {
        let ours = a.data(tensor).unwrap();
        let theirs = b.data(b.tensor(&tensor.name).unwrap()).unwrap();
        assert_eq!(ours.len(), theirs.len(), "{}", tensor.name);
        other += ours
            .iter()
            .zip(theirs.iter())
            .filter(|(a, b)| a != b)
            .count();
        all += ours.len();
    }
    other as f64 / all as f64
}

/// Directories are run with their own order of rows, so that sums may differ in the last bit.
#[test]
fn one_command_does_what_three_do() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    directory(dir.path(), |_, _| {});
    let text = text(dir.path());
    let calibrate = format!("--calibrate={}", path(&text));
    let (folder, once) = (place("model"), place("once.gguf"));
    let said = quantized(&[
        path(&folder),
        path(&once),
        "Q4_0",
        &calibrate,
        "-c",
        "64",
        "-f",
        path(&text),
    ]);
    assert!(said.contains("Q4_0"), "{said}");

    let (whole, matrix, thrice) = (place("f32.gguf"), place("i.gguf"), place("thrice.gguf"));
    let convert = [
        "convert",
        path(&folder),
        "-o",
        path(&whole),
        "--type",
        "F32",
    ];
    assert!(program(&convert).status.success());
    learned(&whole, &text).save(&matrix).unwrap();
    let with_matrix = ["Q4_0", "--imatrix", path(&matrix)];
    quantized(&[&[path(&whole), path(&thrice)], &with_matrix[..]].concat());
    let share = apart(&once, &thrice);
    assert!(share < 0.005, "{share}");

    // The matrix of a directory is that of the file, and does for it.
    let again = place("again.gguf");
    learned(&folder, &text).save(&matrix).unwrap();
    quantized(&[&[path(&folder), path(&again)], &with_matrix[..]].concat());
    let share = apart(&again, &thrice);
    assert!(share < 0.005, "{share}");
    // Without it, other levels are chosen.
    quantized(&[path(&folder), path(&again), "Q4_0"]);
    let share = apart(&again, &thrice);
    assert!(share > 0.05, "{share}");

    let made = open(&once);
    let report = Report::of(&made).unwrap();
    assert_eq!(report.source, "model");
    let comparison = report.comparison.unwrap();
    assert!(comparison.mean_kl > 0.0 && comparison.mean_kl < 1.0);
    let key = |key: &str| made.metadata().str(key);
    assert_eq!(key("quantize.imatrix.dataset"), Some("text.txt"));
    assert_eq!(key("quantize.imatrix.file"), None);
}

#[test]
fn a_text_adds_what_a_matrix_does_not_say() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (model, text) = (place("model.gguf"), text(dir.path()));
    synthetic(&model, "F16", 2);
    let mut known = learned(&model, &text);
    let (full, plain, out) = (place("full.gguf"), place("plain.gguf"), place("out.gguf"));
    known.save(&full).unwrap();
    for entry in known.entries.values_mut() {
        entry.sketch = None;
    }
    known.save(&plain).unwrap();
    let calibrate = format!("--calibrate={}", path(&text));
    let make = |matrix: &Path, more: &[&str]| {
        let args = [path(&model), path(&out), "Q3_K", "--imatrix", path(matrix)];
        let said = quantized(&[&args[..], more].concat());
        (fingerprint(&out), said)
    };
    let (whole, said) = make(&full, &[]);
    assert!(!said.contains("vary together"), "{said}");
    let (less, said) = make(&plain, &["--no-calibrate"]);
    assert!(
        said.contains("vary together") && said.contains("--calibrate"),
        "{said}"
    );
    let (added, said) = make(&plain, &[&calibrate]);
    assert!(!said.contains("vary together"), "{said}");
    assert!(whole == added && whole != less);

    // Unasked, the model reads a little.
    let (by_itself, said) = make(&plain, &[]);
    assert!(said.contains("reads a few sentences"), "{said}");
    assert!(by_itself != less);
    let dataset = open(&out)
        .metadata()
        .str("quantize.imatrix.dataset")
        .map(str::to_owned);
    assert_eq!(dataset.as_deref(), Some("text.txt, built-in text"));
    // Not where levels are many, and not for a plan.
    for more in [["Q8_0", "--pure"], ["Q3_K", "--dry-run"]] {
        let args = [path(&model), path(&out), "--imatrix", path(&plain)];
        let said = quantized(&[&args[..2], &more, &args[2..]].concat());
        assert!(!said.contains("reads a few sentences"), "{said}");
    }
    let both = [
        path(&model),
        path(&out),
        "Q3_K",
        "--calibrate",
        "--no-calibrate",
    ];
    assert!(refused(&both).contains("--no-calibrate"));
}

/// What nobody has asked for is no reason to fail: a model that cannot be run is quantised all the same.
#[test]
fn a_model_that_cannot_read_is_quantised() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (model, broken, matrix) = (place("model.gguf"), place("broken.gguf"), place("i.gguf"));
    synthetic(&model, "F16", 2);
    let mut known = learned(&model, &text(dir.path()));
    known
        .entries
        .values_mut()
        .for_each(|entry| entry.sketch = None);
    known.save(&matrix).unwrap();
    // Of another architecture, it would need tensors that it does not have.
    let bytes = std::fs::read(&model).unwrap();
    let name = b"llama";
    let at = bytes
        .windows(name.len())
        .position(|part| part == name)
        .unwrap();
    let mut other = bytes.clone();
    other[at..at + name.len()].copy_from_slice(b"qwen3");
    std::fs::write(&broken, other).unwrap();
    let out = place("out.gguf");
    let args = [
        path(&broken),
        path(&out),
        "Q4_0",
        "--imatrix",
        path(&matrix),
    ];
    let said = quantized(&args);
    assert!(
        said.contains("broken.gguf") && said.contains("nothing was read"),
        "{said}"
    );
    let alone = fingerprint(&out);
    quantized(&[&args[..], &["--no-calibrate"]].concat());
    assert_eq!(alone, fingerprint(&out));
}

/// Weights that are given back after their turn are read again as they were, and an excerpt is one chunk.
#[test]
fn reading_one_weight_after_the_other_is_reading() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    synthetic(&model, "F16", 2);
    let text = Text::load(&text(dir.path())).unwrap();
    let read = |one_by_one: bool, excerpt: bool| {
        let options = OpenOptions {
            huge_pages: false,
            ..OpenOptions::default()
        };
        let model = Model::load(&model, &options).unwrap();
        let options = imatrix::Options {
            n_ctx: 40,
            chunks: (!excerpt).then_some(3),
            excerpt,
            one_by_one,
            ..imatrix::Options::default()
        };
        collect(&model, &text, &options, |_, _, _| Ok(())).unwrap()
    };
    assert_eq!(read(true, false), read(false, false));
    let little = read(true, true);
    assert_eq!((little.chunks, little.chunk_size), (1, 40));
    for (name, entry) in &little.entries {
        assert_eq!(entry.counts, [40.0], "{name}");
    }
}

#[test]
fn there_is_a_text_for_those_who_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (model, out) = (place("model.gguf"), place("out.gguf"));
    synthetic(&model, "F16", 2);
    let error = refused(&[path(&model), path(&out), "IQ2_XS"]);
    assert!(error.contains("quantize --calibrate"), "{error}");
    let few = ["--calibrate", "--calibrate-chunks", "2"];
    quantized(&[&[path(&model), path(&out), "IQ2_XS"], &few[..]].concat());
    let made = open(&out);
    let dataset = made.metadata().str("quantize.imatrix.dataset");
    assert_eq!(dataset, Some("built-in text"));
    let chunks = made.metadata().u64("quantize.imatrix.chunks_count");
    assert_eq!(chunks, Some(2));

    // It is long enough for chunks of the usual length, whatever the tokenizer.
    let bytes = Text::built_in().content.len();
    assert!(bytes / 6 > 2 * 512, "{bytes}");
}

/// Reading takes long: whatever is refused is refused before. This text is too short to be read.
#[test]
fn refusals_come_before_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (model, out, short) = (place("model.gguf"), place("out.gguf"), place("short.txt"));
    synthetic(&model, "Q8_0", 2);
    std::fs::write(&short, "A few words.").unwrap();
    let calibrate = format!("--calibrate={}", path(&short));
    let expect = |args: &[&str], expected: &[&str]| {
        let error = refused(&[args, &[&calibrate]].concat());
        let all = expected.iter().all(|part| error.contains(part));
        assert!(all, "{args:?}: {error}");
    };
    let (input, output) = (path(&model), path(&out));
    expect(&[input, output, "Q4_0"], &["--allow-requantize"]);
    let plain = [input, output, "Q4_0", "--allow-requantize"];
    let and = |more: &[&'static str]| [&plain[..], more].concat();
    expect(&and(&[]), &["short.txt: the text is"]);
    // Of both texts, that of the report is looked at first.
    let report = place("report.txt");
    std::fs::write(&report, "Fewer words.").unwrap();
    expect(
        &[&plain[..], &["-f", path(&report)]].concat(),
        &["report.txt: the text is"],
    );
    let size = [input, output, "--allow-requantize", "--target-size", "1k"];
    expect(&size, &["too few"]);
    let nowhere = place("nowhere/out.gguf");
    expect(
        &[input, path(&nowhere), "Q4_0", "--allow-requantize"],
        &["nowhere", "No such file"],
    );
    expect(
        &[input, path(&report), "Q4_0"],
        &["report.txt", "not written over"],
    );
    let page = [&plain[..], &["--html", path(&short)]].concat();
    expect(&page, &["short.txt: the output is also the input"]);
    // Matrices of other models.
    let other = place("other.gguf");
    let mut known = super::importance(&tiny(), |_| 1.0);
    known.save(&other).unwrap();
    let matrix = [&plain[..], &["--imatrix", path(&other)]].concat();
    expect(&matrix, &["other.gguf", "inputs here"]);
    let (_, entry) = known.entries.pop_first().unwrap();
    known.entries = [("blk.99.x.weight".to_owned(), entry)].into();
    known.save(&other).unwrap();
    expect(&matrix, &["other.gguf", "which the model does not have"]);
    assert!(!out.exists());

    // Of a named mix, the plan is known without it.
    let plan = program(&[&["quantize"], &plain[..], &["--dry-run", &calibrate]].concat());
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.contains("Q8_0 -> Q4_0"), "{plan}");

    let missing = refused(&[&plain[..], &["--calibrate=missing.txt"]].concat());
    assert!(missing.contains("missing.txt: No such file"), "{missing}");
    // The fourth word is a number of threads, as llama-quantize has it.
    let apart = [input, output, "Q4_0", "--calibrate", "words.txt"];
    let error = refused(&apart);
    assert!(error.contains("--calibrate=words.txt"), "{error}");
    let many = refused(&[&plain[..], &["99999"]].concat());
    assert!(
        many.contains("at most") && !many.contains("--calibrate"),
        "{many}"
    );
    let made = program(&[&["quantize"], &plain[..], &["2"]].concat());
    assert!(made.status.success() && out.exists());
    // Without a text to read, how much of it means nothing.
    let error = refused(&[&plain[..], &["--calibrate-chunks", "2"]].concat());
    assert!(error.contains("--calibrate"), "{error}");
}

/// Files that are there and no models are not written over, nor is anything put among those of a directory
/// that could be taken for part of it.
#[test]
fn outputs_are_where_they_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    directory(dir.path(), |_, _| {});
    let (folder, notes) = (place("model"), place("notes.txt"));
    std::fs::write(&notes, "Do not lose this.").unwrap();
    let error = refused(&[path(&folder), path(&notes), "Q4_0"]);
    assert!(error.contains("notes.txt: it is there"), "{error}");
    let error = program(&["convert", path(&folder), "-o", path(&notes)]);
    assert!(!error.status.success());
    assert_eq!(std::fs::read(&notes).unwrap(), b"Do not lose this.");

    let inside = folder.join("model-00002-of-00002.safetensors");
    let error = refused(&[path(&folder), path(&inside), "Q4_0"]);
    assert!(error.contains("call it .gguf"), "{error}");
    let error = refused(&[
        path(&folder),
        path(&place("o.gguf")),
        "Q4_0",
        "--keep-split",
    ]);
    assert!(error.contains("--split-max-size"), "{error}");

    // From within, the model has a name all the same, where no page of it gives one.
    std::fs::remove_file(folder.join("README.md")).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_oxidize-quantize"))
        .args(["quantize", ".", "small.gguf", "Q4_0", "--report"])
        .current_dir(&folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
    assert!(said.contains("--calibrate"), "{said}");
    let made = open(&folder.join("small.gguf"));
    assert_eq!(Report::of(&made).unwrap().source, "model");
    assert_eq!(made.metadata().str("general.name"), Some("model"));
    // And can be made once more.
    quantized(&[path(&folder), path(&folder.join("small.gguf")), "Q5_0"]);

    // Links to the files, as in a hub's cache, are files of the folder that they are in.
    let links = place("links");
    std::fs::create_dir(&links).unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let file = entry.unwrap();
        std::os::unix::fs::symlink(file.path(), links.join(file.file_name())).unwrap();
    }
    let out = place("linked.gguf");
    quantized(&[path(&links), path(&out), "Q4_0"]);
    assert_eq!(open(&out).metadata().str("general.name"), Some("links"));
}

/// A size that is aimed at holds for what is made of a directory, whose vectors grow.
#[test]
fn directories_fit_a_size() {
    let dir = tempfile::tempdir().unwrap();
    let (source, folder) = (dir.path().join("source.gguf"), dir.path().join("model"));
    synthetic(&source, "F16", 2);
    let back = [
        "convert",
        path(&source),
        "-o",
        path(&folder),
        "--type",
        "BF16",
    ];
    let back = program(&back);
    assert!(
        back.status.success(),
        "{}",
        String::from_utf8_lossy(&back.stderr)
    );
    let out = dir.path().join("out.gguf");
    let size = std::fs::metadata(&source).unwrap().len() / 3;
    quantized(&[
        path(&folder),
        path(&out),
        "--target-size",
        &size.to_string(),
    ]);
    let made = std::fs::metadata(&out).unwrap().len();
    assert!(made <= size && made > size / 10 * 9, "{made} of {size}");
    let norm = open(&out).tensor("output_norm.weight").unwrap().ty;
    assert_eq!(norm, oxidize_kernels::quant::TensorType::F32);
    // A folder is not written into by the name of one of its files.
    let config = folder.join("config.json");
    let error = refused(&[path(&folder), path(&config), "Q4_0"]);
    assert!(error.contains("also the input"), "{error}");
}
