//! `oxidize bench`, `logits` and `perplexity`.

use super::{fixture, model, oxidize, text_file};
use oxidize_core::file::{ModelFile, OpenOptions};
use std::path::Path;

#[test]
fn bench_prints_every_test_in_every_form() {
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

/// An input and what the reference beside a model has of this kind for it.
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

/// What the program writes for these tokens, which has to have so many rows.
fn logits(model: &Path, tokens: &[u32], rows: usize, extra: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("logits.npy");
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
fn logits_are_pytorchs() {
    let path = fixture("model.gguf");
    for i in 0..2 {
        let (tokens, want) = reference(&path, "logits", i);
        for extra in [&[][..], &["-b", "3"], &["--reference"]] {
            let exact = [&["-ctk", "f32", "-ctv", "f32"], extra].concat();
            let got = logits(&path, &tokens, tokens.len(), &exact);
            assert_near(&got, &want, &format!("input {i}, {extra:?}"));
        }
    }
    // Beyond the context that it was trained on a model still computes something.
    logits(&path, &[7; 257], 257, &[]);
    let refused = |extra: &[&str]| {
        let args = ["logits", "-m", &model(), "-o", "x.npy"];
        oxidize(&[args.as_slice(), extra].concat()).error()
    };
    let error = refused(&["--tokens", "1,400"]);
    assert!(error.contains("token 400"), "{error}");
    let error = refused(&["--tokens", "1", "--decoder-tokens", "2"]);
    assert!(error.contains("no encoder"), "{error}");
}

/// Unrounded, quantised weights give what the reference computes of them; rounded, something near it.
#[test]
fn activations_are_rounded_as_asked() {
    let path = fixture("model.gguf");
    let (tokens, _) = reference(&path, "logits", 0);
    let run = |extra: &[&str]| {
        let quantized = ["--quantize", "Q8_0", "-ctk", "f32", "-ctv", "f32"];
        logits(&path, &tokens, tokens.len(), &[&quantized, extra].concat())
    };
    let exact = run(&["--reference"]);
    assert_near(&run(&["--activations", "float"]), &exact, "float");
    let fine = run(&[]);
    let far = fine.iter().zip(&exact).map(|(a, b)| (a - b).abs());
    let far = far.fold(0.0, f32::max);
    assert!((1e-3..1.0).contains(&far), "{far}");
    // Blocks of 32 are not rounded any coarser.
    assert_eq!(run(&["--activations", "coarse"]), fine);
    // What files have lost is compared without it.
    let (_folder, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let compared = |rounding: &[&str]| {
        let model = model();
        let args = ["compare", &model, &model, "--quantize", "Q8_0", "-f", &text];
        let less = ["-c", "32", "--chunks", "2", "--json"];
        oxidize(&[&args[..], &less, rounding].concat()).json()["mean_kl"].clone()
    };
    assert_eq!(compared(&[]), compared(&["--activations", "float"]));
    assert_ne!(compared(&[]), compared(&["--activations", "fine"]));
    let wrong = ["logits", "--tokens", "1", "-o", "x", "--activations", "q8"];
    let refused = oxidize(&wrong);
    let named = refused.stderr.contains("fine, coarse, float");
    assert!(refused.code == Some(2) && named, "{}", refused.stderr);
}

#[test]
fn encoders_give_hidden_states_and_classifiers_scores() {
    let folder = fixture("").join("../encoders");
    for form in ["jina-bert-v2/model.gguf", "jina-bert-v2/model.safetensors"] {
        let path = folder.join(form);
        let (tokens, want) = reference(&path, "hidden", 2);
        // However small the batches, a text is read whole.
        let flags = ["-b", "7", "-ctk", "f32", "-ctv", "f32"];
        let got = logits(&path, &tokens, tokens.len(), &flags);
        assert_near(&got, &want, form);
    }
    let path = folder.join("bert-pair/model.safetensors");
    let (tokens, want) = reference(&path, "logits", 1);
    let exact = ["-ctk", "f32", "-ctv", "f32"];
    let got = logits(&path, &tokens, 1, &exact);
    assert!((got[0] - want[0]).abs() < 1e-4, "{got:?} {want:?}");
    let (tokens, want) = reference(&path, "hidden", 1);
    let flags = [exact.as_slice(), &["--hidden"]].concat();
    let got = logits(&path, &tokens, tokens.len(), &flags);
    assert_near(&got, &want, "hidden states of a classifier");
}

/// Of a model that writes nothing only prompts are measured.
#[test]
fn bench_names_what_is_quantised_on_the_way_in() {
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

#[test]
fn bench_of_an_encoder() {
    let path = fixture("").join("../encoders/jina-bert-v2/model.gguf");
    let path = path.to_str().unwrap();
    let args = ["bench", "-m", path, "-p", "16", "-r", "1"];
    let text = oxidize(&args).ok();
    assert!(text.contains("pp16") && !text.contains("tg"), "{text}");
    let error = oxidize(&["bench", "-m", path, "-p", "0"]).error();
    assert!(error.contains("makes no text"), "{error}");
    let error = oxidize(&[args.as_slice(), &["-d", "8"]].concat()).error();
    assert!(error.contains("reads a text whole"), "{error}");
}

/// The second half of each chunk is scored, from logits that see the whole chunk.
#[test]
fn perplexity_is_what_the_logits_say() {
    let (_folder, path) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
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
    assert_eq!(report["activations"], "coarse");

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

    let (_folder, path) = text_file("too short");
    let error = oxidize(&["perplexity", "-m", &model, "-f", &path, "-c", "64"]).error();
    assert!(error.contains("at least 128 are needed"), "{error}");
    let error = oxidize(&["perplexity", "-m", &model, "-f", "no/such.txt"]).error();
    assert!(error.contains("no/such.txt"), "{error}");
}

/// Flags that leave nothing to measure are named, and nothing is written.
#[test]
fn measuring_nothing_is_refused() {
    let (folder, path) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let model = model();
    let out = folder.path().join("out.gguf");
    let out = out.to_str().unwrap();
    let verbs: [&[&str]; 3] = [
        &["perplexity", "-m", &model, "-f", &path],
        &["compare", &model, &model, "-f", &path],
        &["imatrix", "-m", &model, "-f", &path, "-o", out],
    ];
    for verb in verbs {
        for (flags, expected) in [
            (["--chunks", "0"], "--chunks 0: the least is 1"),
            (["-c", "1"], "-c 1: the least is 3"),
            (["-c", "2"], "-c 2: the least is 3"),
        ] {
            let error = oxidize(&[verb, &flags].concat()).error();
            assert!(error.contains(expected), "{verb:?}: {error}");
        }
        // No more than the model was trained on, and no less where nothing is asked for.
        let error = oxidize(&[verb, &["-c", "257"]].concat()).error();
        assert!(error.contains("context holds 256"), "{verb:?}: {error}");
        oxidize(&[verb, &["--chunks", "1"]].concat()).ok();
        let (_folder, short) = text_file("too short");
        let mut args = [verb, &["-c", "64"]].concat();
        let at = args.iter().position(|arg| *arg == path).unwrap();
        args[at] = &short;
        let error = oxidize(&args).error();
        let named = format!("error: {short}: the text is");
        assert!(error.starts_with(&named), "{error}");
        let help = oxidize(&[verb[0], "--help"]).ok();
        assert!(help.contains("[default: 512"), "{help}");
    }
    let question = r#"{"question": "2+3?", "choices": ["4", "5"], "answer": "B"}"#;
    let (_folder, questions) = text_file(question);
    let error = oxidize(&["choice", "-m", &model, "-f", &questions, "--questions", "0"]).error();
    assert!(error.contains("--questions 0: the least is 1"), "{error}");
}

/// Models whose predictions are not of a text's next token are refused by all that measures those.
#[test]
fn what_predicts_no_next_token_is_not_measured() {
    let (folder, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let question = r#"{"question": "2+3?", "choices": ["4", "5"], "answer": "B"}"#;
    let (_folder, questions) = text_file(question);
    let out = folder.path().join("out.gguf");
    let out = out.to_str().unwrap();
    let encoder = fixture("").join("../encoders/jina-bert-v2/model.gguf");
    let encoder = encoder.to_str().unwrap();
    let verbs: [&[&str]; 4] = [
        &["perplexity", "-m", encoder, "-f", &text, "-c", "16"],
        &["compare", encoder, encoder, "-f", &text, "-c", "16"],
        &["choice", "-m", encoder, "-f", &questions],
        &["quantize", encoder, out, "Q8_0", "-f", &text, "-c", "16"],
    ];
    for verb in verbs {
        let error = oxidize(verb).error();
        assert!(error.contains("predicts no next token"), "{error}");
    }
    assert!(!Path::new(out).exists());
}

/// The first model is what the second was: it stays as it is.
#[test]
fn compare_quantises_the_second_model_only() {
    let (_folder, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let model = model();
    let args = ["compare", &model, &model, "-f", &text, "-c", "64", "--json"];
    assert_eq!(oxidize(&args).json()["mean_kl"], 0.0);
    let changed = oxidize(&[args.as_slice(), &["--quantize", "Q4_0"]].concat()).json();
    assert!(changed["mean_kl"].as_f64().unwrap() > 0.0, "{changed}");
    let help = oxidize(&["compare", "--help"]).ok();
    assert!(help.contains("change it and not A"), "{help}");
}

/// A model that is quantised on the way in is the one that `quantize` writes.
#[test]
fn importance_counts_on_the_way_in() {
    let (folder, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let model = model();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
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
    let on_the_way = ["--quantize", "IQ3_XXS", "--imatrix", &matrix];
    let (written, kept) = (
        divergence(&file, &[]).json(),
        divergence(&model, &on_the_way).json(),
    );
    assert_eq!(written["mean_kl"], kept["mean_kl"]);
    let plain = divergence(&model, &on_the_way[..2]).json();
    assert_ne!(plain["mean_kl"], kept["mean_kl"]);
    let alone = divergence(&model, &on_the_way[2..]);
    let stderr = alone.stderr;
    assert!(
        alone.code == Some(2) && stderr.contains("--quantize"),
        "{stderr}"
    );
}

#[test]
fn questions_that_do_not_fit_are_named() {
    let question = |text: &str| {
        format!(r#"{{"question": "{text}?", "choices": ["four", "five"], "answer": "B"}}"#)
    };
    let lines = format!("{}\n{}\n", question("2+3"), question(&"why ".repeat(40)));
    let (_folder, questions) = text_file(&lines);
    let model = model();
    let args = ["choice", "-m", &model, "-f", &questions];
    oxidize(&args).ok();
    let error = oxidize(&[args.as_slice(), &["-c", "64"]].concat()).error();
    let named = format!("error: {questions}: question 2: ");
    assert!(
        error.starts_with(&named) && error.contains("64 fit (-c)"),
        "{error}"
    );
    let first = ["-c", "64", "--questions", "1", "--json"];
    let report = oxidize(&[args.as_slice(), &first].concat()).json();
    assert_eq!(report["questions"], 1);
    let error = oxidize(&[args.as_slice(), &["-c", "257"]].concat()).error();
    assert!(error.contains("context holds 256"), "{error}");
    let gap = r#"{"sentence": "It is _", "option1": "a", "option2": "b", "answer": "1"}"#;
    let (_folder, questions) = text_file(gap);
    let error = oxidize(&["choice", "-m", &model, "-f", &questions]).error();
    assert!(
        error.contains("line 1: ") && error.contains("the gap"),
        "{error}"
    );
}

/// Scores of a model with weights that are not numbers would look like any others.
#[test]
fn choice_refuses_what_is_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    broken_model(&path);
    let question = r#"{"question": "2+3?", "choices": ["4", "5"], "answer": "B"}"#;
    let (_folder, questions) = text_file(question);
    let error = oxidize(&["choice", "-m", path.to_str().unwrap(), "-f", &questions]).error();
    assert!(error.contains("the logits are not numbers"), "{error}");
    assert!(error.contains("blk.0.ffn_down.weight"), "{error}");
}

/// The checked-in model with a NaN in a matrix.
fn broken_model(path: &Path) {
    let file = ModelFile::open(fixture("model.gguf"), &OpenOptions::default()).unwrap();
    let tensor = file.tensor("blk.0.ffn_down.weight").unwrap();
    let at = usize::try_from(tensor.offset).unwrap();
    let mut bytes = std::fs::read(fixture("model.gguf")).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

/// Reading goes on only where the same model reads the same text in the same chunks.
#[test]
fn a_matrix_is_resumed_by_what_began_it() {
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
    let refused = |text: &str, flags: &[&str], expected: &str| {
        let before = std::fs::read(&half).unwrap();
        let error = collect(text, &half, &[&["--resume"], flags].concat()).error();
        assert!(
            error.contains("half.gguf") && error.contains(expected),
            "{error}"
        );
        assert!(std::fs::read(&half).unwrap() == before, "{error}");
    };
    refused(&other, &["-c", "16"], "\"text\", not of \"other\"");
    refused(&text, &["-c", "32"], "chunks are of 16 tokens, not of 32");
    refused(&text, &["-c", "16", "--merge", &whole], "--merge");
    let read = |path: &str| Importance::load(Path::new(path)).unwrap();
    let change = |change: &dyn Fn(&mut Importance)| {
        let mut matrix = read(&half);
        change(&mut matrix);
        matrix.save(Path::new(&half)).unwrap();
    };
    let begun = read(&half);
    change(&|matrix| matrix.reading.as_mut().unwrap().fingerprint ^= 1);
    refused(&text, &["-c", "16"], "has changed since");
    begun.save(Path::new(&half)).unwrap();
    // A model that was trained further has other weights under the same names.
    let tuned = file("tuned.gguf");
    let mut weights = std::fs::read(&model).unwrap();
    let there = ModelFile::open(&model, &OpenOptions::default()).unwrap();
    weights[there.tensor("blk.0.attn_q.weight").unwrap().offset as usize] ^= 1;
    std::fs::write(&tuned, weights).unwrap();
    let args = [
        "imatrix", "-m", &tuned, "-f", &text, "-o", &half, "-c", "16", "--resume",
    ];
    let error = oxidize(&args).error();
    assert!(error.contains("begun with another model"), "{error}");
    change(&|matrix| {
        let entry = matrix.entries["blk.0.attn_q.weight"].clone();
        matrix.entries.insert("blk.7.attn_q.weight".into(), entry);
    });
    refused(&text, &["-c", "16"], "blk.7.attn_q.weight");
    begun.save(Path::new(&half)).unwrap();
    // Chunks of what was added are not chunks of this text.
    let mut merged = begun;
    let added = file("added.gguf");
    collect(&other, &added, &["-c", "16", "--chunks", "3"]).ok();
    merged.merge(&read(&added)).unwrap();
    merged.save(Path::new(&half)).unwrap();
    collect(&text, &half, &["-c", "16", "--chunks", "5", "--resume"]).ok();
    let (half, mut whole) = (read(&half), read(&whole));
    whole.merge(&read(&added)).unwrap();
    assert_eq!((half.chunks, whole.chunks), (8, 8));
    assert_eq!(half.reading, whole.reading);
    for (name, entry) in &whole.entries {
        let found = &half.entries[name];
        assert_eq!(found.counts, entry.counts, "{name}");
        for (a, b) in found.sums.iter().zip(&entry.sums) {
            assert!((a - b).abs() <= 1e-4 * b.abs(), "{name}: {a} {b}");
        }
    }
}

/// What stands in the way of a matrix is found before the text is read, and no input is lost.
#[test]
fn imatrix_finds_out_first() {
    use oxidize_quantize::importance::{Entry, Importance};
    let (folder, text) = text_file(&"Once upon a time there was a crab. ".repeat(400));
    let copy = folder.path().join("model.gguf");
    std::fs::copy(model(), &copy).unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
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
    began(folder.path().to_str().unwrap(), "is a directory");

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
    // What one does not say, the other does, of its part.
    collect(&model, &out, &["--merge", &other, "--chunks", "2"]).ok();
    let sum = Importance::load(Path::new(&out)).unwrap();
    let entry = &sum.entries["blk.0.attn_q.weight"];
    let sketched = entry.sketch.as_ref().map(|sketch| sketch.count);
    assert_eq!((entry.counts[0], sketched), (33.0, Some(32)));
    std::fs::remove_file(&out).unwrap();

    let broken = file("broken.gguf");
    broken_model(Path::new(&broken));
    let error = collect(&broken, &out, &["--save-every", "1"]).error();
    assert!(error.contains("are not numbers"), "{error}");
    assert!(!Path::new(&out).exists());
}

/// More threads than a system starts are refused by all verbs, not tried.
#[test]
fn too_many_threads_are_refused() {
    let (_folder, text) = text_file(&"The quick brown fox jumps over the lazy dog. ".repeat(40));
    let model = model();
    let measure = ["-f", &text, "-c", "16", "--chunks", "1"];
    let verbs: [&[&str]; 6] = [
        &[&["perplexity", "-m", &model], measure.as_slice()].concat(),
        &[&["compare", &model, &model], measure.as_slice()].concat(),
        &["run", "-m", &model, "-p", "a", "-n", "1"],
        &["bench", "-m", &model, "-p", "8", "-n", "0", "-r", "1"],
        &["bench", "--bandwidth"],
        &["quantize", &model, "nowhere/out.gguf", "Q8_0"],
    ];
    for verb in verbs {
        let refused = oxidize(&[verb, &["-t", "100000"]].concat());
        assert_eq!(refused.code, Some(2), "{verb:?}: {}", refused.stderr);
        assert!(
            refused.stderr.contains("at most 1024"),
            "{}",
            refused.stderr
        );
    }
    oxidize(&[verbs[0], &["-t", "64"]].concat()).ok();
    let refused = oxidize(&["serve", "-m", &model, "--port", "0", "-t", "100000"]).error();
    assert!(refused.contains("at most 1024"), "{refused}");
}

/// Whatever ends `imatrix`, there is a whole file; asked to stop, it leaves nothing else. What a
/// killed one leaves where files cannot be without a name goes with the next run.
#[cfg(unix)]
#[test]
fn an_importance_matrix_is_whole_whatever_ends_the_run() {
    use oxidize_quantize::commands::is_ignored;
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
        if status.is_some_and(|status| is_ignored(status - 128)) {
            eprintln!("SKIPPED: whoever started the tests has them ignore {signal}");
            continue;
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
