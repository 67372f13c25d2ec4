//! Speculative decoding: whatever is guessed, the answer is the one without guesses, to the last bit
//! of its log probabilities.

mod answers;
#[allow(dead_code, reason = "each test uses some of it")]
mod tiny;

use answers::{Answer, golden, prompt, read};
use oxidize_core::Error;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::engine::{
    Engine, EngineConfig, EngineError, EngineHandle, Request, Token, TokenStream,
};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::grammar::Grammar;
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingParams;
use oxidize_core::speculative::{DraftSource, Speculation, SpeculationError};
use oxidize_core::tokenizer::EncodeOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn config(speculation: Option<Speculation>) -> EngineConfig {
    EngineConfig {
        max_batch_tokens: 64,
        cache_tokens: Some(4096),
        n_threads: Some(2),
        speculation,
        ..EngineConfig::default()
    }
}

/// Guesses without asking whether it pays: a test has no time to measure.
fn always(source: DraftSource, max_tokens: usize) -> Option<Speculation> {
    Some(Speculation {
        max_tokens,
        min_probability: 0.0,
        always: true,
        ..Speculation::new(source)
    })
}

fn start(model: &Model, speculation: Option<Speculation>) -> EngineHandle {
    Engine::start(
        model.clone(),
        Arc::new(Cpu::default()),
        &config(speculation),
    )
    .unwrap()
}

/// The tiny model with every weight a little different: its guesses are right now and then.
fn similar_model() -> Model {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/model.gguf");
    let file = ModelFile::open(&path, &OpenOptions::default()).unwrap();
    let data = file.tensors().iter().map(|t| t.bytes).sum::<u64>() as usize;
    let mut bytes = std::fs::read(&path).unwrap();
    let start = (bytes.len() - data) / 4 * 4;
    for float in bytes[start..].chunks_exact_mut(4) {
        // A high bit of the fraction.
        float[2] ^= 0x08;
    }
    let file = ModelFile::from_bytes(bytes, &OpenOptions::default()).unwrap();
    Model::from_file(file).unwrap()
}

/// Every way to guess: the model itself is always right, the similar one sometimes, the text rarely.
fn sources(model: &Model) -> [(&'static str, DraftSource); 3] {
    [
        ("itself", DraftSource::Model(model.clone())),
        ("a similar model", DraftSource::Model(similar_model())),
        ("the text", DraftSource::Ngram),
    ]
}

/// Under a salt of its own: a prompt found in the cache is cut differently, and adds differently.
fn request(tokens: Vec<u32>, temperature: f32, max_tokens: usize) -> Request {
    static SALT: AtomicU64 = AtomicU64::new(1);
    Request {
        tokens,
        salt: SALT.fetch_add(1, Ordering::Relaxed),
        sampling: SamplingParams {
            temperature,
            seed: Some(11),
            n_probs: Some(3),
            repeat_penalty: if temperature > 1.0 { 1.2 } else { 1.0 },
            ..SamplingParams::default()
        },
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..Request::default()
    }
}

fn ask(engine: &EngineHandle, request: &Request) -> Answer {
    read(engine.submit(request.clone()).unwrap()).unwrap()
}

/// The same tokens with the same log probabilities, and the same end.
#[track_caller]
fn assert_same(with: &Answer, without: &Answer, what: &str) {
    let differ = |(a, b): &(&Token, &Token)| a != b;
    let pairs = with.tokens.iter().zip(&without.tokens);
    if let Some((at, (with, without))) = pairs.enumerate().find(|(_, pair)| differ(pair)) {
        panic!("{what}: token {at} is {with:?}, and {without:?} without guesses");
    }
    assert_eq!(with.tokens.len(), without.tokens.len(), "{what}");
    assert_eq!(with.text, without.text, "{what}");
    assert_eq!(with.finished.reason, without.finished.reason, "{what}");
}

#[test]
fn guesses_change_nothing() {
    let model = tiny::model();
    let plain = start(&model, None);
    for (name, source) in sources(&model) {
        for max_tokens in [1, 2, 5, 16] {
            let engine = start(&model, always(source.clone(), max_tokens));
            let mut drafts = (0, 0);
            for (i, temperature) in [0.0, 0.8, 1.3].into_iter().enumerate() {
                for length in [1, 7, 33, 100] {
                    let request = request(prompt(i as u32, length), temperature, 90);
                    let with = ask(&engine, &request);
                    let what = format!("{name}, {max_tokens} at a time, temperature {temperature}");
                    assert_same(&with, &ask(&plain, &request), &what);
                    drafts.0 += with.finished.drafts.drafted;
                    drafts.1 += with.finished.drafts.accepted;
                }
            }
            println!(
                "{name}, {max_tokens} at a time: {} guesses, {} right",
                drafts.0, drafts.1
            );
            assert!(drafts.1 > 0 && drafts.1 <= drafts.0, "{name}: {drafts:?}");
        }
    }
}

/// The model itself is right about the most likely token every time, so few steps are needed.
#[test]
fn right_guesses_save_steps() {
    let model = tiny::model();
    let engine = start(&model, always(DraftSource::Model(model.clone()), 8));
    let answer = ask(&engine, &request(prompt(3, 20), 0.0, 101));
    let drafts = answer.finished.drafts;
    assert_eq!(drafts.accepted, drafts.drafted);
    assert_eq!(drafts.acceptance(), Some(1.0));
    // The books are told after the answer.
    let begun = std::time::Instant::now();
    while engine.stats().finished == 0 && begun.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    let stats = engine.stats();
    assert!(stats.steps <= 20, "{stats:?}");
    assert_eq!(stats.accepted_drafts, drafts.accepted as u64);
    // Who wants no guesses gets none.
    let none = Request {
        max_draft: Some(0),
        ..request(prompt(3, 20), 0.0, 101)
    };
    let without = ask(&engine, &none);
    assert_eq!(without.finished.drafts.drafted, 0);
    assert_same(&without, &answer, "without guesses");
}

#[test]
fn a_crowd_of_guesses_changes_nothing() {
    let model = tiny::model();
    let plain = start(&model, None);
    for (name, source) in sources(&model) {
        let engine = start(&model, always(source, 6));
        let requests: Vec<Request> = (0..6)
            .map(|i| request(prompt(i, 10 + 9 * i as usize), 0.0, 60))
            .collect();
        let streams: Vec<TokenStream> = requests
            .iter()
            .map(|request| engine.submit(request.clone()).unwrap())
            .collect();
        for (request, stream) in requests.iter().zip(streams) {
            let (with, without) = (read(stream).unwrap(), ask(&plain, request));
            // Prompts of others in a step change the order of sums, as they do without guesses.
            assert_eq!(with.ids(), without.ids(), "{name}");
        }
        assert_eq!(engine.stats().used_blocks, 0);
    }
}

#[test]
fn a_form_stop_strings_and_bans_hold_with_guesses() {
    let model = tiny::model();
    let plain = start(&model, None);
    let forms = [
        Some(Grammar::Regex("[a-f]{3,40}(x|yz)".into())),
        Some(Grammar::JsonSchema(serde_json::json!({
            "type": "array", "items": {"enum": ["left", "right"]}, "minItems": 4, "maxItems": 9
        }))),
        None,
    ];
    for (name, source) in sources(&model) {
        let engine = start(&model, always(source, 8));
        for (i, form) in forms.iter().enumerate() {
            for temperature in [0.0, 1.0] {
                let mut request = request(prompt(i as u32, 12), temperature, 80);
                request.grammar = form.clone();
                request.ignore_eos = false;
                request.sampling.stop = vec!["right".into(), "q".into()];
                let with = ask(&engine, &request);
                assert_same(&with, &ask(&plain, &request), &format!("{name}, {form:?}"));
                assert!(!with.text.contains("right"));
            }
        }
    }
}

/// Guesses that take longer than they save are given up, without a word being different.
#[test]
fn guessing_stops_where_it_does_not_pay() {
    let model = tiny::model();
    // To guess, the model has to be run as often as without.
    let settings = Speculation {
        min_probability: 0.0,
        ..Speculation::new(DraftSource::Model(similar_model()))
    };
    let engine = start(&model, Some(settings.clone()));
    let plain = start(&model, None);
    let eager = start(&model, always(settings.source, 8));
    let (mut guessed, mut eagerly) = (0, 0);
    for seed in 0..8 {
        let request = request(prompt(seed, 10), 1.3, 200);
        let with = ask(&engine, &request);
        assert_same(&with, &ask(&plain, &request), "it may stop at any time");
        guessed += with.finished.drafts.drafted;
        eagerly += ask(&eager, &request).finished.drafts.drafted;
    }
    assert!(
        2 * guessed < eagerly,
        "{guessed} guesses, {eagerly} if always"
    );
}

#[test]
fn what_cannot_guess_is_refused() {
    let model = tiny::model();
    let refused = |speculation: Speculation| match Engine::start(
        model.clone(),
        Arc::new(Cpu::default()),
        &config(Some(speculation)),
    ) {
        Err(Error::Engine(EngineError::Speculation(error))) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted"),
    };
    let ngram = || Speculation::new(DraftSource::Ngram);
    for (field, speculation) in [
        (
            "max_tokens",
            Speculation {
                max_tokens: 0,
                ..ngram()
            },
        ),
        (
            "max_tokens",
            Speculation {
                max_tokens: 1000,
                ..ngram()
            },
        ),
        (
            "min_tokens",
            Speculation {
                min_tokens: 9,
                ..ngram()
            },
        ),
        (
            "min_probability",
            Speculation {
                min_probability: f32::NAN,
                ..ngram()
            },
        ),
    ] {
        match refused(speculation) {
            SpeculationError::Parameter { field: named, .. } => assert_eq!(named, field),
            other => panic!("{other}"),
        }
    }
    let Some(other) = cached("SmolLM2-135M-Instruct.Q4_1") else {
        return;
    };
    let error = refused(Speculation::new(DraftSource::Model(other)));
    assert!(
        matches!(error, SpeculationError::VocabularySize { .. }),
        "{error}"
    );
}

/// Recurrent state that has seen wrong guesses goes back to before them, and what was right is computed again.
#[test]
fn recurrent_models_say_the_same_with_guesses() {
    let mut drafts = (0, 0);
    for name in [
        "mamba",
        "mamba2",
        "kimi-linear",
        "qwen3-next",
        "falcon-h1",
        "granite-hybrid",
        "lfm2",
    ] {
        let Some(model) = golden(name) else { return };
        let plain = start(&model, None);
        for max_tokens in [1, 4, 9] {
            let engine = start(&model, always(DraftSource::Ngram, max_tokens));
            for (seed, temperature) in [(0, 0.0), (1, 0.9), (2, 0.9)] {
                let mut request = request(prompt(seed, 40), temperature, 60);
                // A text that repeats itself, but not always, so that guesses are made and some are right.
                request.grammar = Some(Grammar::Regex("((ab|cd)(ef|gh)x){15}".into()));
                let with = ask(&engine, &request);
                let what = format!("{name}, {max_tokens} at a time, temperature {temperature}");
                assert_same(&with, &ask(&plain, &request), &what);
                drafts.0 += with.finished.drafts.drafted;
                drafts.1 += with.finished.drafts.accepted;
            }
            assert_eq!(engine.stats().used_blocks, 0, "{name}");
        }
        println!("{name}: {} guesses, {} right so far", drafts.0, drafts.1);
    }
    assert!(drafts.1 > 0 && drafts.1 < drafts.0, "{drafts:?}");
}

fn cached(name: &str) -> Option<Model> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = set("OXIDIZE_TEST_CACHE").or_else(|| Some(set("HOME")?.join(".cache/oxidize")))?;
    let path = cache.join(format!("models/{name}.gguf"));
    if !path.exists() {
        eprintln!("SKIPPED: no {}", path.display());
        return None;
    }
    Some(Model::load(path, &OpenOptions::default()).unwrap())
}

/// Real models on text that repeats itself and text that does not, greedy and sampled.
fn compare(model: Option<Model>, draft: Option<Model>) {
    let Some(model) = model else { return };
    let tokenizer = model.tokenizer().unwrap();
    let plain = start(&model, None);
    let sources = draft.map(DraftSource::Model).into_iter();
    for source in sources.chain([DraftSource::Ngram]) {
        let engine = start(&model, always(source.clone(), 8));
        let mut drafts = 0;
        for text in [
            "The quick brown fox jumps over the lazy dog. The quick brown fox",
            "fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n\nfn sub(a: i32, b: i32) -> i32 {\n",
            "Once upon a time",
        ] {
            let options = EncodeOptions {
                add_special: true,
                parse_special: true,
            };
            for temperature in [0.0, 0.8] {
                let request = request(tokenizer.encode(text, options), temperature, 60);
                let with = ask(&engine, &request);
                assert_same(
                    &with,
                    &ask(&plain, &request),
                    &format!("{source:?}: {text:?}"),
                );
                drafts += with.finished.drafts.accepted;
            }
        }
        assert!(drafts > 0, "{source:?}");
    }
}

#[test]
fn smollm2_says_the_same_with_guesses() {
    let model = cached("SmolLM2-135M-Instruct.Q4_1");
    compare(model.clone(), model);
}

#[test]
fn stories15m_says_the_same_with_guesses() {
    compare(cached("stories15M-f32"), None);
}

#[test]
#[ignore = "large: make test-models"]
fn tinyllama_says_the_same_with_guesses() {
    compare(
        cached("tinyllama-1.1b-chat.IQ2_XXS"),
        cached("stories15M-f32"),
    );
}

#[test]
#[ignore = "large: make test-models"]
fn gemma3_says_the_same_with_guesses() {
    compare(cached("gemma-3-270m-q4_k_m"), None);
}

#[test]
#[ignore = "large: make test-models"]
fn qwen2_says_the_same_with_guesses() {
    compare(cached("qwen2.5-coder-1.5b-instruct-q4_k_m"), None);
}
