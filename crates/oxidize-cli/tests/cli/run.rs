//! `oxidize run`.

use super::{model, oxidize, oxidize_with, text_file};

/// Flags for the eight most likely tokens.
const SHORT: [&str; 4] = ["-n", "8", "--temp", "0"];

fn run(args: &[&str]) -> super::Outcome {
    oxidize(&[&["run"], args, &SHORT].concat())
}

#[test]
fn prompt_from_argument_flag_file_and_stdin() {
    let model = model();
    let outcome = run(&[&model, "Hello there"]);
    assert!(outcome.stderr.contains("tok/s"), "{}", outcome.stderr);
    let answer = outcome.ok();
    assert!(answer.len() > 1 && answer.ends_with('\n'), "{answer:?}");
    assert_eq!(run(&[&model, "-p", "Hello there"]).ok(), answer);
    assert_eq!(run(&["-m", &model, "Hello there"]).ok(), answer);
    let (_dir, path) = text_file("Hello there");
    assert_eq!(run(&[&model, "-f", &path]).ok(), answer);
    let args = [&["run", &model], SHORT.as_slice()].concat();
    assert_eq!(oxidize_with(&args, "Hello there").ok(), answer);
    assert_ne!(run(&[&model, "Goodbye"]).ok(), answer);
}

#[test]
fn json_has_the_tokens_and_the_timings() {
    let model = model();
    let plain = run(&[&model, "Hello"]).ok();
    let report = run(&[&model, "Hello", "--json"]).json();
    let text = report["text"].as_str().unwrap();
    assert_eq!(text.trim_end_matches('\n'), plain.trim_end_matches('\n'));
    assert_eq!(report["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(report["finish_reason"], "length");
    // The chat template: <|im_start|> is token 3, <|im_end|> is 4.
    let prompt: Vec<u64> = serde_json::from_value(report["prompt_tokens"].clone()).unwrap();
    assert_eq!(prompt.iter().filter(|&&token| token == 3).count(), 2);
    assert_eq!(prompt.iter().filter(|&&token| token == 4).count(), 1);
    let timings = &report["timings"];
    assert_eq!(timings["prompt_n"].as_u64(), Some(prompt.len() as u64));
    assert_eq!(timings["predicted_n"].as_u64(), Some(8));
    for name in [
        "prompt_ms",
        "prompt_per_second",
        "predicted_ms",
        "predicted_per_second",
    ] {
        assert!(timings[name].as_f64().unwrap() > 0.0, "{name}: {timings}");
    }

    let raw = run(&[&model, "Hello", "--json", "--raw"]).json();
    let raw: Vec<u64> = serde_json::from_value(raw["prompt_tokens"].clone()).unwrap();
    assert!(raw.len() < prompt.len() && !raw.contains(&3), "{raw:?}");
    let system = run(&[&model, "Hello", "--json", "-sys", "Be kind."]).json();
    assert!(system["prompt_tokens"].as_array().unwrap().len() > prompt.len());
}

#[test]
fn seed_makes_a_run_reproducible() {
    let model = model();
    let ask = |seed: &str| {
        let args = [
            "run", &model, "Hello", "-n", "24", "--temp", "1.5", "-s", seed,
        ];
        oxidize(&args).ok()
    };
    assert_eq!(ask("5"), ask("5"));
    assert_ne!(ask("5"), ask("6"));
}

#[test]
fn stop_strings_and_end_of_text() {
    let model = model();
    let args = ["run", &model, "Hello", "--temp", "0", "--json", "-n", "24"];
    let whole = oxidize(&args).json();
    let text = whole["text"].as_str().unwrap();
    let stop: String = text.chars().skip(4).take(3).collect();
    let stopped = oxidize(&[args.as_slice(), &["-r", &stop]].concat()).json();
    assert_eq!(stopped["finish_reason"], "stop_string");
    assert_eq!(
        stopped["text"].as_str().unwrap(),
        text.split_once(&stop).unwrap().0
    );
    // A bias forces the end of text, which --ignore-eos ignores.
    let ended = oxidize(&[args.as_slice(), &["--logit-bias", "0=1000"]].concat()).json();
    assert_eq!(
        (&ended["finish_reason"], &ended["text"]),
        (&"stop".into(), &"".into())
    );
    let on =
        oxidize(&[args.as_slice(), &["--logit-bias", "0=1000", "--ignore-eos"]].concat()).json();
    assert_eq!(on["finish_reason"], "length");
}

#[test]
fn kv_cache_types() {
    let model = model();
    let exact = run(&[&model, "Hello", "-ctk", "f32", "-ctv", "f32"]).ok();
    assert_eq!(
        run(&[&model, "Hello", "-ctk", "f16", "-ctv", "f32"]).ok(),
        exact
    );
    let error = run(&[&model, "Hello", "-ctk", "q8_0"]).error();
    assert!(
        error.contains("heads of 16 elements") && error.contains("Q8_0"),
        "{error}"
    );
    let outcome = run(&[&model, "Hello", "-ctk", "q3_0"]);
    assert_eq!(outcome.code, Some(2));
    assert!(
        outcome
            .stderr
            .contains("supported types are f32, f16, q8_0, q4_0"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn errors_are_one_line() {
    let model = model();
    let error = run(&["no/such.gguf", "Hello"]).error();
    assert!(error.contains("no/such.gguf: no such file"), "{error}");
    let error = run(&["no-such-model", "Hello"]).error();
    assert!(error.contains("no-such-model"), "{error}");
    let error = oxidize(&["run"]).error();
    assert!(error.contains("prompt"), "{error}");
    let error = oxidize_with(&["run", "-p", "Hello"], "").error();
    assert!(error.contains("no model given"), "{error}");
    let error = run(&[&model, "-p", ""]).error();
    assert!(error.contains("the prompt is empty"), "{error}");
    let error = oxidize(&["run", &model, "Hello", "--temp", "-1"]).error();
    assert!(error.contains("temperature is -1"), "{error}");
    let error = oxidize(&["run", &model, "Hello", "--top-p", "2"]).error();
    assert!(error.contains("top_p is 2"), "{error}");
    let error = run(&[&model, "Hello", "-c", "8"]).error();
    assert!(error.contains("the limit is 8"), "{error}");
    let error = run(&[&model, "Hello", "-c", "100000"]).error();
    assert!(error.contains("100000") && error.contains("256"), "{error}");
    let (_dir, path) = text_file("This is not a model.");
    let error = run(&[&path, "Hello"]).error();
    assert!(error.contains("not a known model format"), "{error}");
    let error = run(&[&model, "-f", "no/such.txt"]).error();
    assert!(error.contains("no/such.txt"), "{error}");
    let error = run(&[&model, "Hello", "--chat-template", "no-such-template"]).error();
    assert!(error.contains("no-such-template"), "{error}");
    let error = run(&[&model, "Hello", "--chat-template", "{% for %}"]).error();
    assert!(error.contains("template"), "{error}");
}

#[test]
fn threads_and_batches_do_not_change_the_answer() {
    let model = model();
    let answer = run(&[&model, "Hello there, how are you?"]).ok();
    for (threads, batch) in [("1", "512"), ("3", "7"), ("2", "1")] {
        let other = run(&[
            &model,
            "Hello there, how are you?",
            "-t",
            threads,
            "-b",
            batch,
        ])
        .ok();
        assert_eq!(other, answer, "{threads} threads, batches of {batch}");
    }
    assert_eq!(
        run(&[&model, "Hello there, how are you?", "--no-mmap"]).ok(),
        answer
    );
}

/// Weights are not checked at load: NaN appears in the logits, and the error names the tensor.
#[test]
fn nan_weight_is_named() {
    use oxidize_core::file::{ModelFile, OpenOptions};
    let name = "blk.0.ffn_up.weight";
    let file = ModelFile::open(model(), &OpenOptions::default()).unwrap();
    let at = file.tensor(name).unwrap().offset as usize;
    let mut bytes = std::fs::read(model()).unwrap();
    bytes[at..at + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broken.gguf");
    std::fs::write(&path, bytes).unwrap();
    let error = run(&[&path.to_string_lossy(), "Hello"]).error();
    for part in ["broken.gguf", name, "NaN or infinite"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn constrained_output() {
    let model = model();
    let ask = |form: &[&str]| {
        let start = ["run", &model, "Hello", "--temp", "0", "-n", "60"];
        oxidize(&[&start, form].concat())
    };
    let answer = ask(&["--regex", "(yes|no)!"]).ok();
    assert!(["yes!\n", "no!\n"].contains(&answer.as_str()), "{answer:?}");
    let gbnf = "root ::= \"- \" [a-z]{3} \"\\n\"";
    let listed = ask(&["--grammar", gbnf]).ok();
    assert!(listed.len() == 6 && listed.starts_with("- "), "{listed:?}");
    let (_dir, path) = text_file(gbnf);
    assert_eq!(ask(&["--grammar-file", &path]).ok(), listed);
    let lark = "start: \"a\"~3 /[0-9]/";
    assert!(ask(&["--lark", lark]).ok().starts_with("aaa"));
    let schema = r#"{"type":"object","properties":{"n":{"enum":[1,22]}},"required":["n"],"additionalProperties":false}"#;
    let object = ask(&["-j", schema]).json();
    assert!(object["n"] == 1 || object["n"] == 22, "{object}");
    let (_dir, path) = text_file(schema);
    assert_eq!(ask(&["--json-schema-file", &path]).json(), object);
    assert!(ask(&["--json-object"]).ok().starts_with('{'));

    let error = ask(&["--json-schema", r#"{"not": {}}"#]).error();
    assert!(error.contains("`not` at # is not supported"), "{error}");
    let error = ask(&["--grammar", "root ::= ("]).error();
    assert!(error.contains("grammar, line 1"), "{error}");
    assert_eq!(ask(&["--regex", "a", "--json-object"]).code, Some(2));
}

#[test]
fn speculation_does_not_change_the_answer() {
    let model = model();
    let args = ["run", &model, "Hello", "-n", "40", "--json"];
    for sampling in [["--temp", "0"], ["--seed", "3"]] {
        let ask = |extra: &[&str]| oxidize(&[&args, &sampling[..], extra].concat()).json();
        let plain = ask(&[]);
        assert_eq!(plain["timings"]["draft_n"], 0);
        for extra in [
            &["-md", &model, "--draft-always", "--draft-p-min", "0"][..],
            &["--spec-type", "ngram", "--draft-max", "4", "--draft-always"],
            &["-md", &model],
        ] {
            let with = ask(extra);
            assert_eq!(with["tokens"], plain["tokens"], "{extra:?}");
            let timings = &with["timings"];
            let (drafted, accepted) = (&timings["draft_n"], &timings["draft_n_accepted"]);
            assert!(accepted.as_u64() <= drafted.as_u64(), "{timings}");
        }
        let itself = ask(&["-md", &model, "--draft-always", "--draft-p-min", "0"]);
        assert!(itself["timings"]["draft_n"].as_u64().unwrap() > 0);
    }
    let error = run(&[&model, "Hello", "--spec-type", "draft"]).error();
    assert!(error.contains("--model-draft"), "{error}");
    let error = run(&[&model, "Hello", "--spec-type", "ngram", "--draft-max", "0"]).error();
    assert!(error.contains("max_tokens"), "{error}");
}

#[test]
fn beams_find_the_most_likely_answer() {
    let model = model();
    let args = ["run", &model, "Hello", "-n", "12", "--temp", "0", "--json"];
    let greedy = oxidize(&args).json();
    let one = oxidize(&[&args[..], &["--beams", "1"]].concat()).json();
    assert_eq!(one["tokens"], greedy["tokens"]);
    let four = oxidize(&[&args[..], &["--beams", "4"]].concat()).json();
    let beams = four["beams"].as_array().unwrap();
    assert_eq!(beams.len(), 4);
    assert!(beams[0]["score"].as_f64() >= beams[3]["score"].as_f64());
    let plain = oxidize(&["run", &model, "Hello", "-n", "12", "--beams", "4"]).ok();
    assert_eq!(plain.trim_end_matches('\n'), four["text"].as_str().unwrap());
    let error = oxidize(&["run", &model, "Hello", "--beams", "0"]).error();
    assert!(error.contains("1 to 64"), "{error}");
}

#[test]
fn banned_strings_do_not_occur() {
    let model = model();
    let args = ["run", &model, "Hello", "--temp", "0", "--json", "-n", "24"];
    let text = oxidize(&args).json()["text"].as_str().unwrap().to_owned();
    let banned: String = text.chars().skip(3).take(2).collect();
    let without = oxidize(&[&args[..], &["--ban-string", &banned]].concat()).json();
    let without = without["text"].as_str().unwrap();
    assert!(
        text.contains(&banned) && !without.contains(&banned),
        "{without:?}"
    );
}

#[test]
fn every_sampler_has_a_flag() {
    let model = model();
    for flags in [
        "--dynatemp-range 0.5 --dynatemp-exp 2",
        "--top-k 5 --samplers top_k;temperature",
        "--samplers kpt",
        "--top-p 0.5",
        "--min-p 0.2",
        "--typical 0.5",
        "--tfs 0.5",
        "--top-n-sigma 1",
        "--xtc-probability 1 --xtc-threshold 0.01",
        "--mirostat 1 --mirostat-ent 3",
        "--mirostat 2 --mirostat-lr 0.2",
        "--dry-multiplier 2 --dry-base 2 --dry-allowed-length 1 --dry-penalty-last-n 50",
        "--dry-multiplier 2 --dry-sequence-breaker none",
        "--repeat-penalty 1.5 --repeat-last-n 20 --penalize-nl",
        "--frequency-penalty 1 --presence-penalty 1",
        "--samplers infill",
        "--n-probs 3",
    ] {
        let flags: Vec<&str> = flags.split(' ').collect();
        let args = [
            "run", &model, "Hello", "-n", "8", "-s", "4", "--temp", "0.9", "--json",
        ];
        let report = oxidize(&[&args[..], &flags].concat()).json();
        assert!(report["text"].is_string(), "{flags:?}");
        let has_probabilities = report["logprobs"][0]["top"].as_array().map(Vec::len) == Some(3);
        assert_eq!(has_probabilities, flags[0] == "--n-probs");
    }
    let error = run(&[&model, "Hello", "--samplers", "top_k;top_q"]).error();
    assert!(
        error.contains("top_q") && error.contains("infill"),
        "{error}"
    );
}

#[test]
fn infill_requires_infill_tokens() {
    let error = run(&[&model(), "--fim-prefix", "a = ", "--fim-suffix", "\n"]).error();
    assert!(error.contains("does not support infill"), "{error}");
}

/// Two prompts are an error, in whatever form they are given.
#[test]
fn a_second_prompt_is_an_error() {
    let model = model();
    let (_dir, path) = text_file("three");
    for args in [
        &[&model, "-p", "one two", "b"][..],
        &[&model, "-p", "x", "-f", &path],
        &[&model, "b", "-f", &path],
    ] {
        let outcome = run(args);
        assert_eq!(outcome.code, Some(2), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("cannot be used with"), "{args:?}");
    }
    for args in [
        &["-m", &model, "-p", "one two", "b"][..],
        &["-m", &model, "b", "-f", &path],
    ] {
        let error = run(args).error();
        assert!(error.contains("two prompts"), "{error}");
    }
}

/// The tokens of the prompt, as text without the template.
fn prompt_of(args: &[&str], input: std::process::Stdio) -> String {
    let model = model();
    let args = [&["run", &model, "--raw", "--json", "-n", "1"], args].concat();
    let mut command = super::command(&args);
    let report = super::outcome(command.stdin(input).output().unwrap()).json();
    let tokens: Vec<u32> = serde_json::from_value(report["prompt_tokens"].clone()).unwrap();
    let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let decoded = oxidize(&["tokenize", "-m", &model, "--decode", &tokens.join(",")]).ok();
    decoded.trim_end_matches('\n').replace("<s>", "")
}

#[test]
fn standard_input_follows_the_prompt() {
    use std::process::Stdio;
    let (_dir, path) = text_file("the text");
    let file = || Stdio::from(std::fs::File::open(&path).unwrap());
    let joined = "Summarize:\n\nthe text";
    assert!(prompt_of(&["Summarize:"], file()).ends_with(joined));
    assert!(prompt_of(&["-p", "Summarize:"], file()).ends_with(joined));
    let (_dir, question) = text_file("Summarize:\n");
    assert!(prompt_of(&["-f", &question], file()).ends_with(joined));
    for nothing in [Stdio::null(), Stdio::piped()] {
        assert!(prompt_of(&["Summarize:"], nothing).ends_with("Summarize:"));
    }
    let piped = oxidize_with(&["run", &model(), "a:", "--json", "-n", "1"], "more").json();
    let alone = oxidize_with(&["run", &model(), "a:\n\nmore", "--json", "-n", "1"], "").json();
    assert_eq!(piped["prompt_tokens"], alone["prompt_tokens"]);
}

/// A pipe that stays open and empty is announced, not waited for in silence.
#[test]
fn waiting_for_standard_input_is_announced() {
    use std::io::{BufRead, BufReader};
    let model = model();
    let mut child = super::command(&["run", &model, "Hello", "-n", "1"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("standard input"), "{first}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_full_context_is_announced() {
    let model = model();
    let args = [
        "run",
        &model,
        "Hello",
        "-c",
        "48",
        "--ignore-eos",
        "--temp",
        "0",
    ];
    let full = oxidize(&[&args[..], &["-n", "400"]].concat());
    let message = "the context of 48 tokens is full";
    assert!(full.stderr.contains(message), "{}", full.stderr);
    let json = oxidize(&[&args[..], &["--json"]].concat());
    assert!(json.stderr.contains(message), "{}", json.stderr);
    assert_eq!(json.json()["finish_reason"], "context_full");
    let beams = oxidize(&[&args[..], &["--json", "--beams", "2"]].concat()).json();
    assert_eq!(beams["finish_reason"], "context_full");
    let limited = oxidize(&[&args[..], &["-n", "2", "--json"]].concat());
    assert!(!limited.stderr.contains(message), "{}", limited.stderr);
    assert_eq!(limited.json()["finish_reason"], "length");
}
