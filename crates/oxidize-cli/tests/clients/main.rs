//! Python clients (`openai`, `anthropic`, `ollama`, `litellm`), the chat page in Chromium, schemathesis, which
//! generates requests from the OpenAPI document, and lm-evaluation-harness. `scripts/setup` and
//! `scripts/setup_lm_eval` install them.

#[allow(dead_code, reason = "the tests of the server use the rest")]
#[path = "../server/http.rs"]
mod http;
#[allow(dead_code, reason = "the tests of the server use the rest")]
#[path = "../server/running.rs"]
mod running;

use std::path::Path;
use std::process::Command;

use oxidize_core::model::Model;
use oxidize_quantize::multiple_choice::{Options, read_questions, score};
use oxidize_testing::{cache, cached, skip};
use running::{Running, start, start_with};
use serde_json::{Value, json};

oxidize_testing::main!(
    openai,
    anthropic,
    ollama,
    litellm,
    chromium,
    schemathesis,
    lm_eval,
);

/// Runs a script of a client against a server. Its exit status 77 means that the script cannot run here.
fn run(script: &str, server: &Running) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(script);
    let output = Command::new(cached("venv/bin/python"))
        .arg(path)
        .arg(format!("http://{}", server.address))
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if output.status.code() == Some(77) {
        skip(format!("{script}: {}", text.trim()));
    }
    assert!(output.status.success(), "{script}: {text}");
}

fn openai() {
    run("openai_client.py", &start(&["--api-key", "secret"]));
}

fn anthropic() {
    run("anthropic_client.py", &start(&["--api-key", "secret"]));
}

fn ollama() {
    run("ollama_client.py", &start(&[]));
}

fn litellm() {
    run("litellm_client.py", &start(&["--api-key", "secret"]));
}

fn chromium() {
    // A model of random weights may generate no text; this one generates some.
    let model = cached("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    run(
        "browser.py",
        &start_with(&["--port", "0", model.to_str().unwrap()]),
    );
}

fn schemathesis() {
    run(
        "schemathesis_run.py",
        // Random requests must not fetch or remove models.
        &start(&["-c", "512", "--queue", "1000", "--manage-models", "off"]),
    );
}

/// Countries and their capitals.
const CAPITALS: [(&str, &str); 50] = [
    ("France", "Paris"),
    ("Germany", "Berlin"),
    ("Italy", "Rome"),
    ("Spain", "Madrid"),
    ("Portugal", "Lisbon"),
    ("Greece", "Athens"),
    ("Austria", "Vienna"),
    ("Poland", "Warsaw"),
    ("Hungary", "Budapest"),
    ("Norway", "Oslo"),
    ("Sweden", "Stockholm"),
    ("Finland", "Helsinki"),
    ("Denmark", "Copenhagen"),
    ("Ireland", "Dublin"),
    ("Belgium", "Brussels"),
    ("Russia", "Moscow"),
    ("Ukraine", "Kyiv"),
    ("Turkey", "Ankara"),
    ("Egypt", "Cairo"),
    ("Kenya", "Nairobi"),
    ("Ghana", "Accra"),
    ("Nigeria", "Abuja"),
    ("Ethiopia", "Addis Ababa"),
    ("Morocco", "Rabat"),
    ("Japan", "Tokyo"),
    ("China", "Beijing"),
    ("India", "New Delhi"),
    ("Nepal", "Kathmandu"),
    ("Thailand", "Bangkok"),
    ("Vietnam", "Hanoi"),
    ("Indonesia", "Jakarta"),
    ("Malaysia", "Kuala Lumpur"),
    ("Pakistan", "Islamabad"),
    ("Iran", "Tehran"),
    ("Iraq", "Baghdad"),
    ("Lebanon", "Beirut"),
    ("Canada", "Ottawa"),
    ("Mexico", "Mexico City"),
    ("Cuba", "Havana"),
    ("Brazil", "Brasilia"),
    ("Argentina", "Buenos Aires"),
    ("Chile", "Santiago"),
    ("Peru", "Lima"),
    ("Colombia", "Bogota"),
    ("Venezuela", "Caracas"),
    ("Uruguay", "Montevideo"),
    ("Australia", "Canberra"),
    ("New Zealand", "Wellington"),
    ("Iceland", "Reykjavik"),
    ("Cambodia", "Phnom Penh"),
];

/// lm-evaluation-harness scores prompts over HTTP and agrees with `oxidize eval` on the same questions.
fn lm_eval() {
    let model = cached("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let python = cache().join("lm-eval/bin/python");
    if !python.exists() {
        skip("scripts/setup_lm_eval installs lm-evaluation-harness");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("questions.jsonl");
    let question = |(index, (country, capital)): (usize, &(&str, &str))| {
        let label = index % 4;
        let mut endings: Vec<&str> = [7, 19, 31]
            .map(|step| CAPITALS[(index + step) % 50].1)
            .into();
        endings.insert(label, capital);
        let ctx = format!("The capital of {country} is");
        json!({"ctx": ctx, "endings": endings, "label": label}).to_string() + "\n"
    };
    let lines: String = CAPITALS.iter().enumerate().map(question).collect();
    std::fs::write(&file, lines).unwrap();
    let questions = read_questions(&file).unwrap();
    let loaded = Model::load(&model).unwrap();
    let ours = score(&loaded, &questions, &Options::default(), |_, _, _| {}).unwrap();
    assert_eq!(ours.questions, 50);
    let server = start_with(&["--port", "0", model.to_str().unwrap()]);
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/clients/lm_eval_client.py"
    );
    let output = Command::new(python)
        .args([
            script,
            &format!("http://{}", server.address),
            file.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let theirs: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    eprintln!("oxidize eval: {ours:?}; lm-evaluation-harness: {theirs}");
    assert_eq!(theirs["questions"], 50);
    // Batches differ, and with them the last digits: one near tie may be decided otherwise.
    let difference = (theirs["accuracy"].as_f64().unwrap() - ours.accuracy).abs();
    assert!(difference < 1.5 / 50.0, "{theirs} and {ours:?}");
    assert!(
        ours.accuracy > 0.5,
        "the model knows more than chance: {ours:?}"
    );
}
