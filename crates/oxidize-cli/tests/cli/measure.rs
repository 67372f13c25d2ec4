//! `oxidize bench`, `logits`, `perplexity`, `compare`, `eval` and `imatrix`.

use super::{fixture, model, oxidize, text_file};
use oxidize_core::file::{ModelFile, OpenOptions};
use std::path::Path;

#[test]
fn bench_prints_every_test_in_every_format() {
    let model = model();
    let args = [
        "bench", "-m", &model, "-p", "16", "-n", "4", "-d", "0,40", "-t", "2", "-r", "3",
    ];
    let report = oxidize(&[args.as_slice(), &["--json"]].concat()).json();
    let tests: Vec<&str> = report
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["test"].as_str().unwrap())
        .collect();
    assert_eq!(tests, ["pp16", "tg4", "pp16 @ d40", "tg4 @ d40"]);
    for m in report.as_array().unwrap() {
        assert_eq!(m["samples"].as_array().unwrap().len(), 3);
        assert!(m["tokens_per_second"].as_f64().unwrap() > 0.0);
        assert!(m["stddev"].as_f64().unwrap() >= 0.0);
        assert_eq!(
            (&m["threads"], &m["model"]),
            (&2.into(), &"model.gguf".into())
        );
        assert!(m["size"].as_u64().unwrap() > 100_000);
    }
    let lines = oxidize(&[args.as_slice(), &["-o", "jsonl"]].concat()).ok();
    assert_eq!(lines.lines().count(), 4);
    for line in lines.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    let csv = oxidize(&[args.as_slice(), &["-o", "csv"]].concat()).ok();
    let columns = |line: &str| line.split(',').count();
    assert_eq!(csv.lines().count(), 5);
    assert!(
        csv.lines()
            .all(|line| columns(line) == columns(csv.lines().next().unwrap()))
    );
    let table = oxidize(&args).ok();
    assert_eq!(table.lines().count(), 6);
    assert!(
        table.contains("±") && table.lines().all(|line| line.starts_with('|')),
        "{table}"
    );
    let error = oxidize(&["bench", "-m", &model, "-r", "0"]).error();
    assert!(error.contains("repetitions"), "{error}");
}

/// An input and its expected output of this kind, from the reference file beside a model.
fn reference(path: &Path, kind: &str, i: usize) -> (Vec<u32>, Vec<f32>) {
    let path = path.with_file_name("ref.safetensors");
    let file = ModelFile::open(path, &OpenOptions::default()).unwrap();
    let read = |kind: &str| {
        let tensor = file.tensor(&format!("{kind}_{i}")).unwrap();
        file.data(tensor).unwrap().as_chunks::<4>().0.to_vec()
    };
    let (tokens, values) = (read("tokens").into_iter(), read(kind).into_iter());
    let values = values.map(f32::from_le_bytes).collect();
    (tokens.map(u32::from_le_bytes).collect(), values)
}

/// The output of `oxidize logits` for these tokens, checked to have `rows` rows.
fn logits(model: &Path, tokens: &[u32], rows: usize, extra: &[&str]) -> Vec<f32> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logits.npy");
    let list: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let (model, list, out) = (
        model.to_str().unwrap(),
        list.join(","),
        path.to_string_lossy(),
    );
    let args = ["logits", "-m", model, "--tokens", &list, "-o", &out];
    oxidize(&[args.as_slice(), extra].concat()).ok();
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00"));
    let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let text = String::from_utf8_lossy(&bytes[10..header]);
    let floats = bytes[header..].as_chunks::<4>().0;
    let shape = format!("({rows},{},)", floats.len() / rows);
    assert!(
        header.is_multiple_of(64) && text.contains("<f4") && text.contains(&shape),
        "{text}"
    );
    floats.iter().copied().map(f32::from_le_bytes).collect()
}

fn assert_near(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let mean = want.iter().sum::<f32>() / want.len() as f32;
    let norm =
        |list: &mut dyn Iterator<Item = f32>| list.map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    let error = norm(&mut got.iter().zip(want).map(|(a, b)| a - b));
    let ratio = error / norm(&mut want.iter().map(|x| x - mean));
    assert!(ratio < 1e-4, "{what}: {ratio:e}");
}

#[test]
fn logits_match_pytorch() {
    let path = fixture("model.gguf");
    for i in 0..2 {
        let (tokens, want) = reference(&path, "logits", i);
        for extra in [&[][..], &["-b", "3"], &["--reference"]] {
            let exact = [&["-ctk", "f32", "-ctv", "f32"], extra].concat();
            let got = logits(&path, &tokens, tokens.len(), &exact);
            assert_near(&got, &want, &format!("input {i}, {extra:?}"));
        }
    }
    // Inputs longer than the trained context are allowed.
    logits(&path, &[7; 257], 257, &[]);
    let rejected = |extra: &[&str]| {
        let args = ["logits", "-m", &model(), "-o", "x.npy"];
        oxidize(&[args.as_slice(), extra].concat()).error()
    };
    let error = rejected(&["--tokens", "1,400"]);
    assert!(error.contains("token 400"), "{error}");
    let error = rejected(&["--tokens", "1", "--decoder-tokens", "2"]);
    assert!(error.contains("no encoder"), "{error}");
}

/// With f32 activations, logits match the reference backend; with quantized activations they are close.
#[test]
fn activations_are_quantized_as_requested() {
    let path = fixture("model.gguf");
    let (tokens, _) = reference(&path, "logits", 0);
    let run = |extra: &[&str]| {
        let quantized = ["--quantize", "Q8_0", "-ctk", "f32", "-ctv", "f32"];
        logits(&path, &tokens, tokens.len(), &[&quantized, extra].concat())
    };
    let exact = run(&["--reference"]);
    assert_near(&run(&["--activations", "f32"]), &exact, "f32");
    let block32 = run(&[]);
    let far = block32.iter().zip(&exact).map(|(a, b)| (a - b).abs());
    let far = far.fold(0.0, f32::max);
    assert!((1e-3..1.0).contains(&far), "{far}");
    // For weights in blocks of 32, block256 equals block32.
    assert_eq!(run(&["--activations", "block256"]), block32);
    // `compare` uses f32 activations by default.
    let (_dir, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let compared = |activations: &[&str]| {
        let model = model();
        let args = ["compare", &model, &model, "--quantize", "Q8_0", "-f", &text];
        let less = ["-c", "32", "--chunks", "2", "--json"];
        oxidize(&[&args[..], &less, activations].concat()).json()["mean_kl"].clone()
    };
    assert_eq!(compared(&[]), compared(&["--activations", "f32"]));
    assert_ne!(compared(&[]), compared(&["--activations", "block32"]));
    let wrong = ["logits", "--tokens", "1", "-o", "x", "--activations", "q8"];
    let rejected = oxidize(&wrong);
    let named = rejected.stderr.contains("block32, block256, f32");
    assert!(rejected.code == Some(2) && named, "{}", rejected.stderr);
}

#[test]
fn encoders_output_hidden_states_and_classifiers_scores() {
    let dir = fixture("").join("../encoders");
    for form in ["jina-bert-v2/model.gguf", "jina-bert-v2/model.safetensors"] {
        let path = dir.join(form);
        let (tokens, want) = reference(&path, "hidden", 2);
        // A bidirectional model computes the text in one pass for any batch size.
        let flags = ["-b", "7", "-ctk", "f32", "-ctv", "f32"];
        let got = logits(&path, &tokens, tokens.len(), &flags);
        assert_near(&got, &want, form);
    }
    let path = dir.join("bert-pair/model.safetensors");
    let (tokens, want) = reference(&path, "logits", 1);
    let exact = ["-ctk", "f32", "-ctv", "f32"];
    let got = logits(&path, &tokens, 1, &exact);
    assert!((got[0] - want[0]).abs() < 1e-4, "{got:?} {want:?}");
    let (tokens, want) = reference(&path, "hidden", 1);
    let flags = [exact.as_slice(), &["--hidden"]].concat();
    let got = logits(&path, &tokens, tokens.len(), &flags);
    assert_near(&got, &want, "hidden states of a classifier");
}

#[test]
fn bench_measures_quantization_at_load() {
    let model = model();
    let args = [
        "bench", "-m", &model, "-p", "8", "-n", "0", "-r", "1", "--json",
    ];
    let plain = oxidize(&args).json();
    let changed = oxidize(&[args.as_slice(), &["--quantize", "Q4_0"]].concat()).json();
    assert_eq!(plain[0]["model"], "model.gguf");
    assert_eq!(changed[0]["model"], "model.gguf");
    let size = |result: &serde_json::Value| result[0]["size"].as_u64().unwrap();
    assert!(size(&changed) < size(&plain), "{changed} {plain}");
}

/// Only prompts are measured for a model that generates no text.
#[test]
fn bench_of_an_encoder() {
    let path = fixture("").join("../encoders/jina-bert-v2/model.gguf");
    let path = path.to_str().unwrap();
    let args = ["bench", "-m", path, "-p", "16", "-r", "1"];
    let text = oxidize(&args).ok();
    assert!(text.contains("pp16") && !text.contains("tg"), "{text}");
    let error = oxidize(&["bench", "-m", path, "-p", "0"]).error();
    assert!(error.contains("do not generate text"), "{error}");
    let error = oxidize(&[args.as_slice(), &["-d", "8"]].concat()).error();
    assert!(error.contains("--n-depth must be 0"), "{error}");
}

/// The second half of each chunk is scored, with the first half as context.
#[test]
fn perplexity_matches_the_logits() {
    let (_dir, path) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let model = model();
    let n_ctx = 64;
    let args = [
        "perplexity",
        "-m",
        &model,
        "-f",
        &path,
        "-c",
        "64",
        "--chunks",
        "2",
    ];
    let report = oxidize(&[args.as_slice(), &["--json"]].concat()).json();
    assert_eq!(
        (&report["chunks"], &report["n_ctx"]),
        (&2.into(), &n_ctx.into())
    );
    assert_eq!(report["tokens"], 2 * (n_ctx / 2 - 1));
    assert_eq!(report["activations"], "block256");

    let text = std::fs::read_to_string(&path).unwrap();
    let tokens = oxidize(&["tokenize", "-m", &model, "--json", &text]).json();
    let tokens: Vec<u32> = serde_json::from_value(tokens["tokens"].clone()).unwrap();
    let (mut sum, mut n) = (0.0, 0);
    for chunk in tokens.chunks(n_ctx).take(2) {
        let rows = logits(&fixture("model.gguf"), chunk, chunk.len(), &[]);
        for at in n_ctx / 2..n_ctx - 1 {
            let row = &rows[at * 320..(at + 1) * 320];
            let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            sum += total.ln() - f64::from(row[chunk[at + 1] as usize]);
            n += 1;
        }
    }
    let expected = (sum / f64::from(n)).exp();
    let got = report["perplexity"].as_f64().unwrap();
    assert!((got / expected - 1.0).abs() < 1e-4, "{got} and {expected}");
    assert!(report["stderr"].as_f64().unwrap() > 0.0);
    let text = oxidize(&args).ok();
    assert!(text.contains("2 chunks of 64"), "{text}");

    let (_dir, path) = text_file("too short");
    let error = oxidize(&["perplexity", "-m", &model, "-f", &path, "-c", "64"]).error();
    assert!(error.contains("at least 128 are needed"), "{error}");
    let error = oxidize(&["perplexity", "-m", &model, "-f", "no/such.txt"]).error();
    assert!(error.contains("no/such.txt"), "{error}");
}

/// Flags that leave no token to score are errors, and nothing is written.
#[test]
fn requests_without_scored_tokens_are_rejected() {
    let (dir, path) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let model = model();
    let out = dir.path().join("out.gguf");
    let out = out.to_str().unwrap();
    let commands: [&[&str]; 3] = [
        &["perplexity", "-m", &model, "-f", &path],
        &["compare", &model, &model, "-f", &path],
        &["imatrix", "-m", &model, "-f", &path, "-o", out],
    ];
    for args in commands {
        for (flags, expected) in [
            (["--chunks", "0"], "--chunks 0: at least 1 is required"),
            (["-c", "1"], "-c 1: at least 3 is required"),
            (["-c", "2"], "-c 2: at least 3 is required"),
        ] {
            let error = oxidize(&[args, &flags].concat()).error();
            assert!(error.contains(expected), "{args:?}: {error}");
        }
        // Chunks are limited by the trained context, which is also the default for this model.
        let error = oxidize(&[args, &["-c", "257"]].concat()).error();
        assert!(error.contains("supports up to 256"), "{args:?}: {error}");
        oxidize(&[args, &["--chunks", "1"]].concat()).ok();
        let (_dir, short) = text_file("too short");
        let mut args = [args, &["-c", "64"]].concat();
        let at = args.iter().position(|arg| *arg == path).unwrap();
        args[at] = &short;
        let error = oxidize(&args).error();
        let named = format!("error: {short}: the text has");
        assert!(error.starts_with(&named), "{error}");
        let help = oxidize(&[args[0], "--help"]).ok();
        assert!(help.contains("[default: 512"), "{help}");
    }
    let question = r#"{"question": "2+3?", "choices": ["4", "5"], "answer": "B"}"#;
    let (_dir, questions) = text_file(question);
    let error = oxidize(&["eval", "-m", &model, "-f", &questions, "--questions", "0"]).error();
    assert!(
        error.contains("--questions 0: at least 1 is required"),
        "{error}"
    );
}

/// Models that do not predict the next token cannot be evaluated on a text.
#[test]
fn embedding_models_have_no_perplexity() {
    let (dir, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let question = r#"{"question": "2+3?", "choices": ["4", "5"], "answer": "B"}"#;
    let (_dir, questions) = text_file(question);
    let out = dir.path().join("out.gguf");
    let out = out.to_str().unwrap();
    let encoder = fixture("").join("../encoders/jina-bert-v2/model.gguf");
    let encoder = encoder.to_str().unwrap();
    let commands: [&[&str]; 4] = [
        &["perplexity", "-m", encoder, "-f", &text, "-c", "16"],
        &["compare", encoder, encoder, "-f", &text, "-c", "16"],
        &["eval", "-m", encoder, "-f", &questions],
        &["quantize", encoder, out, "Q8_0", "-f", &text, "-c", "16"],
    ];
    for args in commands {
        let error = oxidize(args).error();
        assert!(error.contains("predicts no next token"), "{error}");
    }
    assert!(!Path::new(out).exists());
}

/// --quantize applies to the compared model and not to the reference.
#[test]
fn compare_quantizes_the_second_model_only() {
    let (_dir, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let model = model();
    let args = ["compare", &model, &model, "-f", &text, "-c", "64", "--json"];
    assert_eq!(oxidize(&args).json()["mean_kl"], 0.0);
    let changed = oxidize(&[args.as_slice(), &["--quantize", "Q4_0"]].concat()).json();
    assert!(changed["mean_kl"].as_f64().unwrap() > 0.0, "{changed}");
    let help = oxidize(&["compare", "--help"]).ok();
    assert!(help.contains("apply to it only"), "{help}");
}

/// Quantization at load uses the importance matrix as `quantize` does.
#[test]
fn quantization_at_load_uses_importance() {
    let (dir, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let model = model();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (matrix, file) = (path("i.gguf"), path("q.gguf"));
    oxidize(&[
        "imatrix", "-m", &model, "-f", &text, "-c", "64", "-o", &matrix,
    ])
    .ok();
    oxidize(&[
        "quantize",
        &model,
        &file,
        "IQ3_XXS",
        "--imatrix",
        &matrix,
        "--allow-requantize",
    ])
    .ok();
    let divergence = |b: &str, more: &[&str]| {
        let args = ["compare", &model, b, "-f", &text, "-c", "64", "--json"];
        oxidize(&[args.as_slice(), more].concat())
    };
    let at_load = ["--quantize", "IQ3_XXS", "--imatrix", &matrix];
    let (written, kept) = (
        divergence(&file, &[]).json(),
        divergence(&model, &at_load).json(),
    );
    assert_eq!(written["mean_kl"], kept["mean_kl"]);
    let plain = divergence(&model, &at_load[..2]).json();
    assert_ne!(plain["mean_kl"], kept["mean_kl"]);
    let alone = divergence(&model, &at_load[2..]);
    let stderr = alone.stderr;
    assert!(
        alone.code == Some(2) && stderr.contains("--quantize"),
        "{stderr}"
    );
}

#[test]
fn questions_that_are_too_long_are_named() {
    let question = |text: &str| {
        format!(r#"{{"question": "{text}?", "choices": ["four", "five"], "answer": "B"}}"#)
    };
    let lines = format!("{}\n{}\n", question("2+3"), question(&"why ".repeat(40)));
    let (_dir, questions) = text_file(&lines);
    let model = model();
    let args = ["eval", "-m", &model, "-f", &questions];
    oxidize(&args).ok();
    let error = oxidize(&[args.as_slice(), &["-c", "64"]].concat()).error();
    let named = format!("error: {questions}: question 2: ");
    assert!(
        error.starts_with(&named) && error.contains("at most 64 fit (-c)"),
        "{error}"
    );
    let first = ["-c", "64", "--questions", "1", "--json"];
    let report = oxidize(&[args.as_slice(), &first].concat()).json();
    assert_eq!(report["questions"], 1);
    let error = oxidize(&[args.as_slice(), &["-c", "257"]].concat()).error();
    assert!(error.contains("supports up to 256"), "{error}");
    let gap = r#"{"sentence": "It is _", "option1": "a", "option2": "b", "answer": "1"}"#;
    let (_dir, questions) = text_file(gap);
    let error = oxidize(&["eval", "-m", &model, "-f", &questions]).error();
    assert!(
        error.contains("line 1: ") && error.contains("the gap"),
        "{error}"
    );
}

/// NaN weights give NaN logits, which must not be scored.
#[test]
fn eval_rejects_nan_logits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    broken_model(&path);
    let question = r#"{"question": "2+3?", "choices": ["4", "5"], "answer": "B"}"#;
    let (_dir, questions) = text_file(question);
    let error = oxidize(&["eval", "-m", path.to_str().unwrap(), "-f", &questions]).error();
    assert!(error.contains("logits are NaN or infinite"), "{error}");
    assert!(error.contains("blk.0.ffn_down.weight"), "{error}");
}

/// Writes the tiny model with a NaN in a matrix.
fn broken_model(path: &Path) {
    let file = ModelFile::open(fixture("model.gguf"), &OpenOptions::default()).unwrap();
    let tensor = file.tensor("blk.0.ffn_down.weight").unwrap();
    let at = usize::try_from(tensor.offset).unwrap();
    let mut bytes = std::fs::read(fixture("model.gguf")).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

/// Resuming requires the same model, text and chunk size.
#[test]
fn imatrix_resumes_the_same_run_only() {
    use oxidize_quantize::importance::Importance;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [text, other, half, whole] = ["text", "other", "half.gguf", "whole.gguf"].map(file);
    std::fs::write(&text, "Once upon a time there was a crab. ".repeat(40)).unwrap();
    std::fs::write(&other, "The sea was blue, and it was warm. ".repeat(40)).unwrap();
    let model = model();
    let collect = |text: &str, out: &str, flags: &[&str]| {
        let args = ["imatrix", "-m", &model, "-f", text, "-o", out];
        oxidize(&[args.as_slice(), flags].concat())
    };
    collect(&text, &whole, &["-c", "16", "--chunks", "5"]).ok();
    collect(&text, &half, &["-c", "16", "--chunks", "2"]).ok();
    let rejected = |text: &str, flags: &[&str], expected: &str| {
        let before = std::fs::read(&half).unwrap();
        let error = collect(text, &half, &[&["--resume"], flags].concat()).error();
        assert!(
            error.contains("half.gguf") && error.contains(expected),
            "{error}"
        );
        assert!(std::fs::read(&half).unwrap() == before, "{error}");
    };
    rejected(&other, &["-c", "16"], "\"text\", not \"other\"");
    rejected(&text, &["-c", "32"], "chunks of 16 tokens, not 32");
    rejected(&text, &["-c", "16", "--merge", &whole], "--merge");
    let read = |path: &str| Importance::load(Path::new(path)).unwrap();
    let change = |change: &dyn Fn(&mut Importance)| {
        let mut matrix = read(&half);
        change(&mut matrix);
        matrix.save(Path::new(&half)).unwrap();
    };
    let begun = read(&half);
    change(&|matrix| matrix.position.as_mut().unwrap().fingerprint ^= 1);
    rejected(&text, &["-c", "16"], "has changed since");
    begun.save(Path::new(&half)).unwrap();
    // A fine-tuned model has other weights under the same names.
    let tuned = file("tuned.gguf");
    let mut weights = std::fs::read(&model).unwrap();
    let there = ModelFile::open(&model, &OpenOptions::default()).unwrap();
    weights[there.tensor("blk.0.attn_q.weight").unwrap().offset as usize] ^= 1;
    std::fs::write(&tuned, weights).unwrap();
    let args = [
        "imatrix", "-m", &tuned, "-f", &text, "-o", &half, "-c", "16", "--resume",
    ];
    let error = oxidize(&args).error();
    assert!(error.contains("collected with another model"), "{error}");
    change(&|matrix| {
        let entry = matrix.entries["blk.0.attn_q.weight"].clone();
        matrix.entries.insert("blk.7.attn_q.weight".into(), entry);
    });
    rejected(&text, &["-c", "16"], "blk.7.attn_q.weight");
    begun.save(Path::new(&half)).unwrap();
    // Chunks of merged matrices do not count for the position in the text.
    let mut merged = begun;
    let added = file("added.gguf");
    collect(&other, &added, &["-c", "16", "--chunks", "3"]).ok();
    merged.merge(&read(&added)).unwrap();
    merged.save(Path::new(&half)).unwrap();
    collect(&text, &half, &["-c", "16", "--chunks", "5", "--resume"]).ok();
    let (half, mut whole) = (read(&half), read(&whole));
    whole.merge(&read(&added)).unwrap();
    assert_eq!((half.chunks, whole.chunks), (8, 8));
    assert_eq!(half.position, whole.position);
    for (name, entry) in &whole.entries {
        let found = &half.entries[name];
        assert_eq!(found.counts, entry.counts, "{name}");
        for (a, b) in found.sums.iter().zip(&entry.sums) {
            assert!((a - b).abs() <= 1e-4 * b.abs(), "{name}: {a} {b}");
        }
    }
}

/// Errors are reported before the text is processed, and inputs are not overwritten.
#[test]
fn imatrix_reports_errors_early() {
    use oxidize_quantize::importance::{Entry, Importance};
    let (dir, text) = text_file(&"Once upon a time there was a crab. ".repeat(400));
    let copy = dir.path().join("model.gguf");
    std::fs::copy(model(), &copy).unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let model = copy.to_str().unwrap().to_owned();
    let collect = |model: &str, out: &str, flags: &[&str]| {
        let args = ["imatrix", "-m", model, "-f", &text, "-o", out, "-c", "16"];
        oxidize(&[args.as_slice(), flags].concat())
    };
    let mut inputs = vec![model.clone(), text.clone()];
    #[cfg(unix)]
    {
        let [soft, hard] = ["soft", "hard"].map(file);
        std::os::unix::fs::symlink(&copy, &soft).unwrap();
        std::fs::hard_link(&text, &hard).unwrap();
        inputs.extend([soft, hard]);
    }
    for input in inputs {
        let error = collect(&model, &input, &[]).error();
        assert!(error.contains("also the input"), "{error}");
    }
    let began = |out: &str, expected: &str| {
        let outcome = collect(&model, out, &[]);
        assert!(!outcome.stderr.contains("chunks"), "{}", outcome.stderr);
        let error = outcome.error();
        assert!(error.contains(out) && error.contains(expected), "{error}");
    };
    began(&file("nodir/out.gguf"), "No such file");
    began(dir.path().to_str().unwrap(), "is a directory");

    let (out, other) = (file("out.gguf"), file("other.gguf"));
    let mut importance = Importance::default();
    let mut entry = Entry {
        sums: vec![1.0; 8],
        counts: vec![1.0],
        sketch: None,
    };
    let name = "blk.0.attn_q.weight".to_owned();
    importance.entries.insert(name.clone(), entry.clone());
    importance.save(Path::new(&other)).unwrap();
    let outcome = collect(&model, &out, &["--merge", &other]);
    assert!(!outcome.stderr.contains("chunks"), "{}", outcome.stderr);
    let error = outcome.error();
    assert!(error.contains(&other) && error.contains(&model), "{error}");
    assert!(error.contains("8 inputs here, 64 in"), "{error}");
    entry.sums = vec![1.0; 64];
    importance.entries.insert(name, entry);
    importance.save(Path::new(&other)).unwrap();
    // A merged matrix without a sketch leaves the sketch of the new chunks.
    collect(&model, &out, &["--merge", &other, "--chunks", "2"]).ok();
    let sum = Importance::load(Path::new(&out)).unwrap();
    let entry = &sum.entries["blk.0.attn_q.weight"];
    let sketched = entry.sketch.as_ref().map(|sketch| sketch.count);
    assert_eq!((entry.counts[0], sketched), (33.0, Some(32)));
    std::fs::remove_file(&out).unwrap();

    let broken = file("broken.gguf");
    broken_model(Path::new(&broken));
    let error = collect(&broken, &out, &["--save-every", "1"]).error();
    assert!(error.contains("NaN or infinite"), "{error}");
    assert!(!Path::new(&out).exists());
}

/// All subcommands limit the number of threads.
#[test]
fn too_many_threads_are_rejected() {
    let (_dir, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let model = model();
    let measure = ["-f", &text, "-c", "16", "--chunks", "1"];
    let commands: [&[&str]; 6] = [
        &[&["perplexity", "-m", &model], measure.as_slice()].concat(),
        &[&["compare", &model, &model], measure.as_slice()].concat(),
        &["run", "-m", &model, "-p", "a", "-n", "1"],
        &["bench", "-m", &model, "-p", "8", "-n", "0", "-r", "1"],
        &["bench", "--bandwidth"],
        &["quantize", &model, "nowhere/out.gguf", "Q8_0"],
    ];
    for args in commands {
        let rejected = oxidize(&[args, &["-t", "100000"]].concat());
        assert_eq!(rejected.code, Some(2), "{args:?}: {}", rejected.stderr);
        assert!(
            rejected.stderr.contains("at most 1024"),
            "{}",
            rejected.stderr
        );
    }
    oxidize(&[commands[0], &["-t", "64"]].concat()).ok();
    let rejected = oxidize(&["serve", "-m", &model, "--port", "0", "-t", "100000"]).error();
    assert!(rejected.contains("at most 1024"), "{rejected}");
}

/// Whatever ends `imatrix`, the output is a complete file. A stopped run leaves no other file; temporary
/// files of a killed run are removed by the next one.
#[cfg(unix)]
#[test]
fn interrupted_imatrix_leaves_a_complete_file() {
    use oxidize_quantize::importance::Importance;
    let dir = tempfile::tempdir().unwrap();
    let (text, out) = (dir.path().join("text"), dir.path().join("out.gguf"));
    std::fs::write(&text, "Once upon a time there was a crab. ".repeat(20_000)).unwrap();
    let (text, output) = (text.to_str().unwrap(), out.to_str().unwrap());
    let model = model();
    let args = [
        "imatrix",
        "-m",
        &model,
        "-f",
        text,
        "-o",
        output,
        "-c",
        "16",
        "--save-every",
        "1",
    ];
    for (signal, status) in [("-KILL", None), ("-INT", Some(130)), ("-TERM", Some(143))] {
        if let Some(status) = status {
            super::do_not_ignore(status - 128);
        }
        let _ = std::fs::remove_file(&out);
        let mut child = super::command(&args)
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while !out.exists() {
            assert_eq!(child.try_wait().unwrap(), None, "ended before it wrote");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        let id = child.id().to_string();
        let sent = std::process::Command::new("kill")
            .args([signal, &id])
            .status();
        assert!(sent.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), status, "{signal}");
        assert!(Importance::load(&out).unwrap().chunks >= 1, "{signal}");
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert!(left == 2 || signal == "-KILL", "{signal}: {left} files");
    }
}
