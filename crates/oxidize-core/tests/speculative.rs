//! Speculative decoding does not change answers, down to the last bit of the log probabilities.

mod answers;
#[allow(dead_code, reason = "each test uses some of it")]
mod tiny;

use answers::{Answer, golden, prompt, read};
use oxidize_core::Error;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::engine::{Engine, EngineConfig, EngineError, Request, Token, TokenStream};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::grammar::Grammar;
use oxidize_core::model::Model;
use oxidize_core::recipe::QuantRecipe;
use oxidize_core::sampling::SamplingParams;
use oxidize_core::speculative::{DraftParams, DraftSource, Speculation, SpeculationError};
use oxidize_core::synth::{Shape, Synthesis};
use oxidize_core::tokenizer::EncodeOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

oxidize_testing::main!(
    drafts_do_not_change_answers,
    accepted_drafts_save_steps,
    predicted_answers_are_drafted,
    concurrent_drafts_do_not_change_answers,
    grammars_and_stop_strings_apply_with_drafts,
    drafting_stops_when_it_does_not_save_time,
    invalid_speculation_is_rejected,
    recurrent_models_answer_the_same_with_drafts,
    smollm2_answers_the_same_with_drafts,
    stories15m_answers_the_same_with_drafts; large
    tinyllama_answers_the_same_with_drafts,
    gemma3_answers_the_same_with_drafts,
    qwen2_answers_the_same_with_drafts,
);

fn config(speculation: Option<Speculation>) -> EngineConfig {
    EngineConfig {
        max_batch_tokens: 64,
        cache_tokens: Some(4096),
        n_threads: Some(2),
        speculation,
        ..EngineConfig::default()
    }
}

/// Speculation at every step, whether it saves time or not: a test has no time to measure.
fn always(source: DraftSource, max_tokens: usize) -> Option<Speculation> {
    Some(Speculation {
        max_tokens,
        min_probability: 0.0,
        always: true,
        ..Speculation::new(source)
    })
}

fn start(model: &Model, speculation: Option<Speculation>) -> Engine {
    Engine::start(
        model.clone(),
        Arc::new(Cpu::default()),
        &config(speculation),
    )
    .unwrap()
}

/// The tiny model with every weight slightly changed, so that some of its drafts are accepted.
fn similar_model() -> Model {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/model.gguf");
    let file = ModelFile::open(&path, &OpenOptions::default()).unwrap();
    let data = file.tensors().iter().map(|t| t.bytes).sum::<u64>() as usize;
    let mut bytes = std::fs::read(&path).unwrap();
    let start = (bytes.len() - data) / 4 * 4;
    for float in bytes[start..].chunks_exact_mut(4) {
        // A high bit of the mantissa.
        float[2] ^= 0x08;
    }
    let file = ModelFile::from_bytes(bytes, &OpenOptions::default()).unwrap();
    Model::from_file(file).unwrap()
}

/// All kinds of draft sources. The model's own drafts are always accepted, those of the similar model
/// sometimes, and n-grams rarely.
fn sources(model: &Model) -> [(&'static str, DraftSource); 3] {
    [
        ("itself", DraftSource::Model(model.clone())),
        ("a similar model", DraftSource::Model(similar_model())),
        ("the text", DraftSource::Ngram),
    ]
}

/// A request with a salt of its own: a prompt found in the cache is chunked differently, which changes the
/// order of floating-point sums.
fn request(tokens: Vec<u32>, temperature: f32, max_tokens: usize) -> Request {
    static SALT: AtomicU64 = AtomicU64::new(1);
    Request {
        prompt: tokens.into(),
        cache_salt: SALT.fetch_add(1, Ordering::Relaxed),
        sampling: Some(SamplingParams {
            temperature,
            seed: Some(11),
            n_probs: Some(3),
            repeat_penalty: if temperature > 1.0 { 1.2 } else { 1.0 },
            ..SamplingParams::default()
        }),
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..Request::default()
    }
}

fn ask(engine: &Engine, request: &Request) -> Answer {
    read(engine.submit(request.clone()).unwrap()).unwrap()
}

/// Asserts that tokens, log probabilities and finish reason are the same.
#[track_caller]
fn assert_same(with: &Answer, without: &Answer, what: &str) {
    let differ = |(a, b): &(&Token, &Token)| a != b;
    let pairs = with.tokens.iter().zip(&without.tokens);
    if let Some((at, (with, without))) = pairs.enumerate().find(|(_, pair)| differ(pair)) {
        panic!("{what}: token {at} is {with:?}, and {without:?} without drafts");
    }
    assert_eq!(with.tokens.len(), without.tokens.len(), "{what}");
    assert_eq!(with.text, without.text, "{what}");
    assert_eq!(
        with.completion.finish_reason, without.completion.finish_reason,
        "{what}"
    );
}

fn drafts_do_not_change_answers() {
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
                    drafts.0 += with.completion.drafts.drafted;
                    drafts.1 += with.completion.drafts.accepted;
                }
            }
            println!(
                "{name}, {max_tokens} at a time: {} drafted, {} accepted",
                drafts.0, drafts.1
            );
            assert!(drafts.1 > 0 && drafts.1 <= drafts.0, "{name}: {drafts:?}");
        }
    }
}

/// The model's own drafts of greedy tokens are all accepted, so few steps are needed.
fn accepted_drafts_save_steps() {
    let model = tiny::model();
    let engine = start(&model, always(DraftSource::Model(model.clone()), 8));
    let answer = ask(&engine, &request(prompt(3, 20), 0.0, 101));
    let drafts = answer.completion.drafts;
    assert_eq!(drafts.accepted, drafts.drafted);
    assert_eq!(drafts.acceptance(), Some(1.0));
    // The statistics are updated after the answer is sent.
    let begun = std::time::Instant::now();
    while engine.stats().finished == 0 && begun.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    let stats = engine.stats();
    assert!(stats.steps <= 20, "{stats:?}");
    assert_eq!(stats.accepted_drafts, drafts.accepted as u64);
    // A request can turn drafting off.
    let none = Request {
        drafts: DraftParams {
            max_tokens: Some(0),
            ..DraftParams::default()
        },
        ..request(prompt(3, 20), 0.0, 101)
    };
    let without = ask(&engine, &none);
    assert_eq!(without.completion.drafts.drafted, 0);
    assert_same(&without, &answer, "without drafts");
}

/// A predicted answer saves steps as far as it is right, and does not change the answer where it is wrong.
fn predicted_answers_are_drafted() {
    let model = tiny::model();
    let plain = start(&model, None);
    let asked = request(prompt(3, 20), 0.0, 60);
    let answer = ask(&plain, &asked);
    let wrong_in_the_middle = {
        let middle = answer.text.floor_char_boundary(answer.text.len() / 2);
        let (begin, end) = answer.text.split_at(middle);
        format!("{begin} something else {end}")
    };
    for source in sources(&model) {
        let engine = start(&model, always(source.1, 8));
        for (prediction, most) in [(&answer.text, 60), (&wrong_in_the_middle, 60)] {
            let with = ask(&engine, &asked.clone().prediction(prediction));
            assert_same(&with, &answer, source.0);
            let drafts = with.completion.drafts;
            assert!(
                drafts.accepted > 20 && drafts.accepted <= most,
                "{drafts:?}"
            );
        }
        let other = asked.clone().prediction("0123456789".repeat(20));
        assert_same(&ask(&engine, &other), &answer, "a wrong prediction");
    }
}

fn concurrent_drafts_do_not_change_answers() {
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
            // Prompts of other requests in a step change the order of floating-point sums, with and without
            // drafts.
            assert_eq!(with.ids(), without.ids(), "{name}");
        }
        assert_eq!(engine.stats().used_blocks, 0);
    }
}

fn grammars_and_stop_strings_apply_with_drafts() {
    let model = tiny::model();
    let plain = start(&model, None);
    let grammars = [
        Some(Grammar::Regex("[a-f]{3,40}(x|yz)".into())),
        Some(Grammar::JsonSchema(serde_json::json!({
            "type": "array", "items": {"enum": ["left", "right"]}, "minItems": 4, "maxItems": 9
        }))),
        None,
    ];
    for (name, source) in sources(&model) {
        let engine = start(&model, always(source, 8));
        for (i, grammar) in grammars.iter().enumerate() {
            for temperature in [0.0, 1.0] {
                let mut request = request(prompt(i as u32, 12), temperature, 80);
                request.grammar = grammar.clone();
                request.ignore_eos = false;
                let sampling = request.sampling.get_or_insert_default();
                sampling.stop = vec!["right".into(), "q".into()];
                let with = ask(&engine, &request);
                assert_same(
                    &with,
                    &ask(&plain, &request),
                    &format!("{name}, {grammar:?}"),
                );
                assert!(!with.text.contains("right"));
            }
        }
    }
}

/// Drafting that takes longer than it saves is turned off, without changing answers.
fn drafting_stops_when_it_does_not_save_time() {
    let model = tiny::model();
    // Drafting runs the draft model as often as decoding runs the model.
    let settings = Speculation {
        min_probability: 0.0,
        ..Speculation::new(DraftSource::Model(similar_model()))
    };
    let engine = start(&model, Some(settings.clone()));
    let plain = start(&model, None);
    let always_drafting = start(&model, always(settings.source, 8));
    let (mut drafted, mut always_drafted) = (0, 0);
    for seed in 0..8 {
        let request = request(prompt(seed, 10), 1.3, 200);
        let with = ask(&engine, &request);
        assert_same(
            &with,
            &ask(&plain, &request),
            "drafting may stop at any time",
        );
        drafted += with.completion.drafts.drafted;
        always_drafted += ask(&always_drafting, &request).completion.drafts.drafted;
    }
    assert!(
        2 * drafted < always_drafted,
        "{drafted} drafts, {always_drafted} if always drafting"
    );
}

fn invalid_speculation_is_rejected() {
    let model = tiny::model();
    let rejected = |speculation: Speculation| match Engine::start(
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
        match rejected(speculation) {
            SpeculationError::Parameter { field: named, .. } => assert_eq!(named, field),
            other => panic!("{other}"),
        }
    }
    // Of 1024 tokens; the tiny model has 320.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.gguf");
    let synthesis = Synthesis {
        shape: Shape::named("tiny").unwrap(),
        recipe: QuantRecipe::named("F32").unwrap(),
        seed: 1,
    };
    synthesis.save(&path, |_, _| {}).unwrap();
    let other = Model::load_with(path, &OpenOptions::default()).unwrap();
    let error = rejected(Speculation::new(DraftSource::Model(other)));
    assert!(
        matches!(error, SpeculationError::VocabularySize { .. }),
        "{error}"
    );
}

/// Recurrent state is rolled back after a rejected draft, and the accepted tokens are recomputed.
fn recurrent_models_answer_the_same_with_drafts() {
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
        let model = golden(name);
        let plain = start(&model, None);
        for max_tokens in [1, 4, 9] {
            let engine = start(&model, always(DraftSource::Ngram, max_tokens));
            for (seed, temperature) in [(0, 0.0), (1, 0.9), (2, 0.9)] {
                let mut request = request(prompt(seed, 40), temperature, 60);
                // The text repeats itself, but not always, so that there are drafts and only some are
                // accepted.
                request.grammar = Some(Grammar::Regex("((ab|cd)(ef|gh)x){15}".into()));
                let with = ask(&engine, &request);
                let what = format!("{name}, {max_tokens} at a time, temperature {temperature}");
                assert_same(&with, &ask(&plain, &request), &what);
                drafts.0 += with.completion.drafts.drafted;
                drafts.1 += with.completion.drafts.accepted;
            }
            assert_eq!(engine.stats().used_blocks, 0, "{name}");
        }
        println!("{name}: {} drafted, {} accepted so far", drafts.0, drafts.1);
    }
    assert!(drafts.1 > 0 && drafts.1 < drafts.0, "{drafts:?}");
}

/// A downloaded model. The running test is skipped if it is missing.
fn downloaded(name: &str) -> Model {
    let path = oxidize_testing::cached(format!("models/{name}.gguf"));
    Model::load_with(path, &OpenOptions::default()).unwrap()
}

/// Compares answers of real models with and without drafts, on repetitive and other text, greedy and sampled.
fn compare(model: Model, draft: Option<Model>) {
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
                drafts += with.completion.drafts.accepted;
            }
        }
        assert!(drafts > 0, "{source:?}");
    }
}

fn smollm2_answers_the_same_with_drafts() {
    let model = downloaded("SmolLM2-135M-Instruct.Q4_1");
    compare(model.clone(), Some(model));
}

fn stories15m_answers_the_same_with_drafts() {
    compare(downloaded("stories15M-f32"), None);
}

fn tinyllama_answers_the_same_with_drafts() {
    compare(
        downloaded("tinyllama-1.1b-chat.IQ2_XXS"),
        Some(downloaded("stories15M-f32")),
    );
}

fn gemma3_answers_the_same_with_drafts() {
    compare(downloaded("gemma-3-270m-q4_k_m"), None);
}

fn qwen2_answers_the_same_with_drafts() {
    compare(downloaded("qwen2.5-coder-1.5b-instruct-q4_k_m"), None);
}
