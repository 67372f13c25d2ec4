//! The npm package in browsers, in Node and in bundlers, against the answers of a native engine.
//!
//! `web/tests` has the tests themselves; this target gives them models and expected values, and reports them as skipped
//! where a browser or the built package is missing. `make web-test` builds the package, and fails without a browser.

mod files;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use oxidize_core::engine::{Engine, EngineConfig, Request, Token, TokenStream};
use oxidize_core::sampling::SamplingParams;
use oxidize_core::tokenizer::EncodeOptions;
use oxidize_core::{Adapter, Conversation, Embedder, Model, OpenOptions, Prompt};
use oxidize_testing::{cached, skip};
use oxidize_wasm::Digest;
use serde_json::{Value as Json, json};

oxidize_testing::main![chromium, firefox, node, bundlers, application];

const PROMPT: &str = "Once upon a time";
const TOKENS: usize = 24;
const SMOL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn greedy(engine: &Engine, prompt: impl Into<Prompt>, n: usize, ignore_eos: bool) -> TokenStream {
    let mut request = Request::new(prompt)
        .sampling(SamplingParams::greedy())
        .max_tokens(n);
    request.ignore_eos = ignore_eos;
    engine.submit(request).unwrap()
}

fn engine(path: &Path) -> Engine {
    let config = EngineConfig::default().n_threads(2);
    Engine::with_config(Model::load(path).unwrap(), &config).unwrap()
}

fn file(path: &Path) -> Json {
    let bytes = std::fs::read(path).unwrap();
    let mut digest = Digest::default();
    digest.update(&bytes);
    json!({ "bytes": bytes.len(), "sha256": digest.sha256() })
}

fn merge(mut to: Json, from: Json) -> Json {
    let (Json::Object(to_map), Json::Object(from)) = (&mut to, from) else {
        panic!("not objects");
    };
    to_map.extend(from);
    to
}

fn tiny(path: &Path) -> Json {
    const TEXT: &str = "Grüße, world! 1234";
    let engine = engine(path);
    let tokens: Vec<Token> = greedy(&engine, PROMPT, TOKENS, true)
        .map(Result::unwrap)
        .collect();
    let tokenizer = engine.model().tokenizer().unwrap();
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Hello" },
    ]);
    let conversation = Conversation::new().system("Be brief.").user("Hello");
    let template = engine.model().chat_template().unwrap().unwrap_or_else(|| {
        oxidize_core::ChatTemplate::builtin("chatml", Default::default()).unwrap()
    });
    let texts = ["a first text", "and another one"];
    let embeddings = Embedder::new(engine.model())
        .unwrap()
        .embed(&texts)
        .unwrap();
    let found = json!({
        "prompt": PROMPT,
        "tokens": tokens.iter().map(|token| token.id).collect::<Vec<_>>(),
        "text": TEXT,
        "textTokens": tokenizer.encode(TEXT, EncodeOptions::default()),
        "messages": messages,
        "rendered": conversation.render(&template, tokenizer).unwrap().tokens,
        "embedded": texts,
        "embeddings": embeddings,
    });
    merge(file(path), found)
}

/// Tokens of the tiny model with an adapter.
fn adapted(tiny: &Path, adapter: &Path) -> Vec<u32> {
    let adapter = Adapter::open(adapter, &OpenOptions::default()).unwrap();
    let model = Model::load(tiny).unwrap();
    let model = model.with_adapters(vec![(adapter, 1.0)]).unwrap();
    let engine = Engine::with_config(model, &EngineConfig::default().n_threads(2)).unwrap();
    let tokens = greedy(&engine, PROMPT, TOKENS, true);
    tokens.map(|token| token.unwrap().id).collect()
}

fn smol(path: &Path) -> Json {
    let engine = engine(path);
    let question = "What is the capital of France? Answer in one sentence.";
    let tokens: Vec<Token> = greedy(&engine, Conversation::from(question), 32, false)
        .map(Result::unwrap)
        .collect();
    let found = json!({
        "messages": [{ "role": "user", "content": question }],
        "tokens": tokens.iter().map(|token| token.id).collect::<Vec<_>>(),
        "text": tokens.iter().map(|token| token.text.as_str()).collect::<String>(),
    });
    merge(file(path), found)
}

/// File with the models and the answers of a native engine, made once.
fn expected() -> &'static Path {
    static EXPECTED: OnceLock<PathBuf> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("web");
        std::fs::create_dir_all(&directory).unwrap();
        let tiny_path = repository().join("fixtures/tiny/model.gguf");
        let smol_path = cached(SMOL);
        let broken = directory.join("broken.gguf");
        let whole = std::fs::read(&tiny_path).unwrap();
        std::fs::write(&broken, &whole[..whole.len() / 2]).unwrap();
        let [first, second] = files::split(&tiny_path, &directory);
        let adapter = directory.join("adapter.gguf");
        files::write_adapter(&adapter);
        let expected = json!({
            "files": {
                "tiny.gguf": tiny_path,
                "smol.gguf": smol_path,
                "broken.gguf": broken,
                "first.gguf": first,
                "second.gguf": second,
                "adapter.gguf": adapter,
            },
            "tiny": tiny(&tiny_path),
            "adapted": adapted(&tiny_path, &adapter),
            "smol": smol(&smol_path),
        });
        let path = directory.join("expected.json");
        std::fs::write(&path, expected.to_string()).unwrap();
        path
    })
}

/// Ends the running test as skipped, or as failed if `make web-test` runs it.
fn absent(what: impl std::fmt::Display) -> ! {
    let reason = format!("{what} is missing; run make web-test");
    let required = std::env::var_os("OXIDIZE_REQUIRE_WEB").is_some_and(|value| value == "1");
    assert!(!required, "{reason}");
    skip(reason)
}

/// A program on PATH.
fn program(names: &[&str]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|directory| names.iter().map(move |name| directory.join(name)))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| absent(names.join(" or ")))
}

/// Runs the tests of a file in `web/tests`.
fn run(name: &str, browser: Option<(&str, PathBuf)>) {
    let node = program(&["node"]);
    let web = repository().join("web");
    for needed in [
        "package/dist/wasm/simd/oxidize_bg.wasm",
        "package/dist/wasm/threads/oxidize_bg.wasm",
        "node_modules",
    ] {
        if !web.join(needed).exists() {
            absent(format!("web/{needed}"));
        }
    }
    // Before the values of all tests are made, so that each of them is skipped.
    cached(SMOL);
    let mut command = Command::new(node);
    command
        .args(["--test-reporter=spec", "--test-timeout=600000", "--test"])
        .arg(web.join("tests").join(name))
        .env("OXIDIZE_WEB_EXPECTED", expected());
    if let Some((variable, path)) = browser {
        command.env(variable, path);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} failed:\n{text}\n{errors}");
}

fn chromium() {
    let browser = program(&["chromium", "chromium-browser", "google-chrome"]);
    run("chromium.test.mjs", Some(("OXIDIZE_CHROMIUM", browser)));
}

fn firefox() {
    let browser = program(&["firefox-esr", "firefox"]);
    run("firefox.test.mjs", Some(("OXIDIZE_FIREFOX", browser)));
}

fn node() {
    run("node.test.mjs", None);
}

fn bundlers() {
    let browser = program(&["chromium", "chromium-browser", "google-chrome"]);
    run("bundlers.test.mjs", Some(("OXIDIZE_CHROMIUM", browser)));
}

fn application() {
    let browser = program(&["chromium", "chromium-browser", "google-chrome"]);
    run("application.test.mjs", Some(("OXIDIZE_CHROMIUM", browser)));
}
