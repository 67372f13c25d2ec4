//! `oxidize quantize` with calibration.

use std::path::{Path, PathBuf};

use oxidize_core::file::OpenOptions;
use oxidize_core::model::Model;
use oxidize_quantize::evaluate::chunk_size;
use oxidize_quantize::imatrix::{self, collect};
use oxidize_quantize::importance::Importance;
use oxidize_quantize::report::Report;
use oxidize_quantize::text::Text;

use super::super::command;
use super::{directory, fingerprint, importance, open, path, program, synthetic, tiny};

/// Runs `oxidize quantize` successfully and returns its messages.
fn quantized(args: &[&str]) -> String {
    let run = program(&[&["quantize"], args].concat());
    let messages = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{messages}");
    messages
}

fn rejected(args: &[&str]) -> String {
    let run = program(&[&["quantize"], args].concat());
    let messages = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success(), "{messages}");
    messages
}

/// Writes a text file.
fn text(dir: &Path) -> PathBuf {
    let path = dir.join("text.txt");
    let words = "Once upon a time a crab met a quick brown fox; 1, 2, 3. ";
    std::fs::write(&path, words.repeat(120)).unwrap();
    path
}

/// Collects an importance matrix.
fn collected(model: &Path, text: &Path) -> Importance {
    let model = Model::load_with(model, &OpenOptions::default()).unwrap();
    let options = imatrix::Options {
        n_ctx: chunk_size(&model, None),
        ..imatrix::Options::default()
    };
    let text = Text::load(text).unwrap();
    collect(&model, &text, &options, |_, _, _| Ok(())).unwrap()
}

/// Fraction of tensor bytes that differ between two files.
fn difference(a: &Path, b: &Path) -> f64 {
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

/// Directories have another order of rows, so sums may differ in the last bit.
#[test]
fn calibrate_equals_convert_imatrix_quantize() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    directory(dir.path(), |_, _| {});
    let text = text(dir.path());
    let calibrate = format!("--calibrate={}", path(&text));
    let (model_dir, once) = (place("model"), place("once.gguf"));
    let messages = quantized(&[
        path(&model_dir),
        path(&once),
        "Q4_0",
        &calibrate,
        "-c",
        "64",
        "-f",
        path(&text),
    ]);
    assert!(messages.contains("Q4_0"), "{messages}");

    let (whole, matrix, thrice) = (place("f32.gguf"), place("i.gguf"), place("thrice.gguf"));
    let convert = [
        "convert",
        path(&model_dir),
        "-o",
        path(&whole),
        "--type",
        "F32",
    ];
    assert!(program(&convert).status.success());
    collected(&whole, &text).save(&matrix).unwrap();
    let with_matrix = ["Q4_0", "--imatrix", path(&matrix)];
    quantized(&[&[path(&whole), path(&thrice)], &with_matrix[..]].concat());
    let share = difference(&once, &thrice);
    assert!(share < 0.005, "{share}");

    // A matrix collected from the directory gives the same result.
    let again = place("again.gguf");
    collected(&model_dir, &text).save(&matrix).unwrap();
    quantized(&[&[path(&model_dir), path(&again)], &with_matrix[..]].concat());
    let share = difference(&again, &thrice);
    assert!(share < 0.005, "{share}");
    // Without importance, the codes differ.
    quantized(&[path(&model_dir), path(&again), "Q4_0"]);
    let share = difference(&again, &thrice);
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
fn calibrate_adds_missing_sketches() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (model, text) = (place("model.gguf"), text(dir.path()));
    synthetic(&model, "F16", 2);
    let mut known = collected(&model, &text);
    let (full, plain, out) = (place("full.gguf"), place("plain.gguf"), place("out.gguf"));
    known.save(&full).unwrap();
    for entry in known.entries.values_mut() {
        entry.sketch = None;
    }
    known.save(&plain).unwrap();
    let calibrate = format!("--calibrate={}", path(&text));
    let make = |matrix: &Path, more: &[&str]| {
        let args = [path(&model), path(&out), "Q3_K", "--imatrix", path(matrix)];
        let messages = quantized(&[&args[..], more].concat());
        (fingerprint(&out), messages)
    };
    let (whole, messages) = make(&full, &[]);
    assert!(!messages.contains("sketches"), "{messages}");
    let (less, messages) = make(&plain, &["--no-calibrate"]);
    assert!(
        messages.contains("sketches") && messages.contains("--calibrate"),
        "{messages}"
    );
    let (added, messages) = make(&plain, &[&calibrate]);
    assert!(!messages.contains("sketches"), "{messages}");
    assert!(whole == added && whole != less);

    // By default, the excerpt adds the sketches.
    let (by_itself, messages) = make(&plain, &[]);
    assert!(messages.contains("short excerpt"), "{messages}");
    assert!(by_itself != less);
    let dataset = open(&out)
        .metadata()
        .str("quantize.imatrix.dataset")
        .map(str::to_owned);
    assert_eq!(dataset.as_deref(), Some("text.txt, built-in text"));
    // No excerpt for types with many levels, nor for --dry-run.
    for more in [["Q8_0", "--pure"], ["Q3_K", "--dry-run"]] {
        let args = [path(&model), path(&out), "--imatrix", path(&plain)];
        let messages = quantized(&[&args[..2], &more, &args[2..]].concat());
        assert!(!messages.contains("short excerpt"), "{messages}");
    }
    let both = [
        path(&model),
        path(&out),
        "Q3_K",
        "--calibrate",
        "--no-calibrate",
    ];
    assert!(rejected(&both).contains("--no-calibrate"));
}

/// A failure of the excerpt is not an error: a model that cannot be run is quantized without sketches.
#[test]
fn failed_excerpt_is_not_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (model, broken, matrix) = (place("model.gguf"), place("broken.gguf"), place("i.gguf"));
    synthetic(&model, "F16", 2);
    let mut known = collected(&model, &text(dir.path()));
    known
        .entries
        .values_mut()
        .for_each(|entry| entry.sketch = None);
    known.save(&matrix).unwrap();
    // The other architecture requires tensors that the file does not have.
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
    let messages = quantized(&args);
    assert!(
        messages.contains("broken.gguf") && messages.contains("quantizing without sketches"),
        "{messages}"
    );
    let alone = fingerprint(&out);
    quantized(&[&args[..], &["--no-calibrate"]].concat());
    assert_eq!(alone, fingerprint(&out));
}

#[test]
fn calibrate_uses_the_built_in_text() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (model, out) = (place("model.gguf"), place("out.gguf"));
    synthetic(&model, "F16", 2);
    let error = rejected(&[path(&model), path(&out), "IQ2_XS"]);
    assert!(error.contains("quantize --calibrate"), "{error}");
    let few = ["--calibrate", "--calibrate-chunks", "2"];
    quantized(&[&[path(&model), path(&out), "IQ2_XS"], &few[..]].concat());
    let made = open(&out);
    let dataset = made.metadata().str("quantize.imatrix.dataset");
    assert_eq!(dataset, Some("built-in text"));
    let chunks = made.metadata().u64("quantize.imatrix.chunks_count");
    assert_eq!(chunks, Some(2));

    // The built-in text is long enough for default chunks with any tokenizer.
    let bytes = Text::built_in().content.len();
    assert!(bytes / 6 > 2 * 512, "{bytes}");
}

/// Calibration takes long, so all other errors come first. The calibration text is too short to be used.
#[test]
fn errors_come_before_calibration() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let (model, out, short) = (place("model.gguf"), place("out.gguf"), place("short.txt"));
    synthetic(&model, "Q8_0", 2);
    std::fs::write(&short, "A few words.").unwrap();
    let calibrate = format!("--calibrate={}", path(&short));
    let expect = |args: &[&str], expected: &[&str]| {
        let error = rejected(&[args, &[&calibrate]].concat());
        let all = expected.iter().all(|part| error.contains(part));
        assert!(all, "{args:?}: {error}");
    };
    let (input, output) = (path(&model), path(&out));
    expect(&[input, output, "Q4_0"], &["--allow-requantize"]);
    let plain = [input, output, "Q4_0", "--allow-requantize"];
    let and = |more: &[&'static str]| [&plain[..], more].concat();
    expect(&and(&[]), &["short.txt: the text has"]);
    // The report text is checked before the calibration text.
    let report = place("report.txt");
    std::fs::write(&report, "Fewer words.").unwrap();
    expect(
        &[&plain[..], &["-f", path(&report)]].concat(),
        &["report.txt: the text has"],
    );
    let size = [input, output, "--allow-requantize", "--target-size", "1k"];
    expect(&size, &["target size too small"]);
    let nowhere = place("nowhere/out.gguf");
    expect(
        &[input, path(&nowhere), "Q4_0", "--allow-requantize"],
        &["nowhere", "No such file"],
    );
    expect(
        &[input, path(&report), "Q4_0"],
        &["report.txt", "not overwritten"],
    );
    let page = [&plain[..], &["--html", path(&short)]].concat();
    expect(&page, &["short.txt: the output is also the input"]);
    // Importance matrices of other models.
    let other = place("other.gguf");
    let mut known = importance(&tiny(), |_| 1.0);
    known.save(&other).unwrap();
    let matrix = [&plain[..], &["--imatrix", path(&other)]].concat();
    expect(&matrix, &["other.gguf", "inputs here"]);
    let (_, entry) = known.entries.pop_first().unwrap();
    known.entries = [("blk.99.x.weight".to_owned(), entry)].into();
    known.save(&other).unwrap();
    expect(&matrix, &["other.gguf", "which the model does not have"]);
    assert!(!out.exists());

    // --dry-run with a recipe needs no calibration.
    let plan = program(&[&["quantize"], &plain[..], &["--dry-run", &calibrate]].concat());
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.contains("Q8_0 -> Q4_0"), "{plan}");

    let missing = rejected(&[&plain[..], &["--calibrate=missing.txt"]].concat());
    assert!(missing.contains("missing.txt: No such file"), "{missing}");
    // The fourth positional argument is the number of threads, as in llama-quantize.
    let separate = [input, output, "Q4_0", "--calibrate", "words.txt"];
    let error = rejected(&separate);
    assert!(error.contains("--calibrate=words.txt"), "{error}");
    let many = rejected(&[&plain[..], &["99999"]].concat());
    assert!(
        many.contains("at most") && !many.contains("--calibrate"),
        "{many}"
    );
    let made = program(&[&["quantize"], &plain[..], &["2"]].concat());
    assert!(made.status.success() && out.exists());
    // --calibrate-chunks requires --calibrate.
    let error = rejected(&[&plain[..], &["--calibrate-chunks", "2"]].concat());
    assert!(error.contains("--calibrate"), "{error}");
}

/// Existing files other than GGUF are not overwritten, and no file is written to a directory that could be
/// taken for a part of its model.
#[test]
fn outputs_do_not_harm_other_files() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    directory(dir.path(), |_, _| {});
    let (model_dir, notes) = (place("model"), place("notes.txt"));
    std::fs::write(&notes, "Do not lose this.").unwrap();
    let error = rejected(&[path(&model_dir), path(&notes), "Q4_0"]);
    assert!(error.contains("notes.txt: the file exists"), "{error}");
    let error = program(&["convert", path(&model_dir), "-o", path(&notes)]);
    assert!(!error.status.success());
    assert_eq!(std::fs::read(&notes).unwrap(), b"Do not lose this.");

    let inside = model_dir.join("model-00002-of-00002.safetensors");
    let error = rejected(&[path(&model_dir), path(&inside), "Q4_0"]);
    assert!(error.contains("use the extension .gguf"), "{error}");
    let error = rejected(&[
        path(&model_dir),
        path(&place("o.gguf")),
        "Q4_0",
        "--keep-split",
    ]);
    assert!(error.contains("--split-max-size"), "{error}");

    // Without a README, the name is that of the directory, also for the path `.`.
    std::fs::remove_file(model_dir.join("README.md")).unwrap();
    let run = command(&["quantize", ".", "small.gguf", "Q4_0", "--report"])
        .current_dir(&model_dir)
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{messages}");
    assert!(messages.contains("--calibrate"), "{messages}");
    let made = open(&model_dir.join("small.gguf"));
    assert_eq!(Report::of(&made).unwrap().source, "model");
    assert_eq!(made.metadata().str("general.name"), Some("model"));
    // The output can be overwritten by another run.
    quantized(&[
        path(&model_dir),
        path(&model_dir.join("small.gguf")),
        "Q5_0",
    ]);

    // Linked files, as in the Hugging Face cache, belong to the directory of the links.
    let links = place("links");
    std::fs::create_dir(&links).unwrap();
    for entry in std::fs::read_dir(&model_dir).unwrap() {
        let file = entry.unwrap();
        std::os::unix::fs::symlink(file.path(), links.join(file.file_name())).unwrap();
    }
    let out = place("linked.gguf");
    quantized(&[path(&links), path(&out), "Q4_0"]);
    assert_eq!(open(&out).metadata().str("general.name"), Some("links"));
}

/// A target size includes vectors, which are converted from BF16 to F32.
#[test]
fn target_size_applies_to_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (source, model_dir) = (dir.path().join("source.gguf"), dir.path().join("model"));
    synthetic(&source, "F16", 2);
    let back = [
        "convert",
        path(&source),
        "-o",
        path(&model_dir),
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
        path(&model_dir),
        path(&out),
        "--target-size",
        &size.to_string(),
    ]);
    let made = std::fs::metadata(&out).unwrap().len();
    assert!(made <= size && made > size / 10 * 9, "{made} of {size}");
    let norm = open(&out).tensor("output_norm.weight").unwrap().ty;
    assert_eq!(norm, oxidize_core::file::TensorType::F32);
    // A file of the source is not overwritten.
    let config = model_dir.join("config.json");
    let error = rejected(&[path(&model_dir), path(&config), "Q4_0"]);
    assert!(error.contains("also the input"), "{error}");
}
