//! Golden models with sliding or chunked attention: the engine, which keeps only their windows, gives the same
//! answers as a session that keeps everything.

use crate::answers::golden;
use crate::families::{alone, ask, config, prompt};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::engine::{DiskCache, Engine, EngineConfig};
use oxidize_core::file::OpenOptions;
use oxidize_core::graph::Window;
use oxidize_core::model::Model;
use oxidize_core::speculative::{DraftSource, Speculation};
use std::sync::Arc;

/// Size of the chunks of Llama 4.
const CHUNK: usize = 40;

/// Golden model, from its directory with a changed configuration.
fn from_directory(name: &str, change: impl Fn(&mut serde_json::Value)) -> Model {
    let golden = oxidize_golden::build(name);
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden.directory()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let config = copy.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut json = serde_json::from_str(&text).unwrap();
    change(&mut json);
    std::fs::write(&config, json.to_string()).unwrap();
    let options = OpenOptions {
        mmap: false,
        ..OpenOptions::default()
    };
    let model = Model::load_with(copy.path(), &options).unwrap();
    model.tokenizer().unwrap();
    model.weights().loaded().unwrap();
    model
}

/// Models with their windows. In Mistral all layers have one, in Llama 4 it is a chunk that is shorter here
/// than the context.
fn models() -> Vec<(&'static str, Model)> {
    let shorten = |json: &mut serde_json::Value| json["attention_chunk_size"] = CHUNK.into();
    let mut models: Vec<_> = ["gemma3-text", "gpt-oss", "cohere2"]
        .into_iter()
        .map(|name| (name, golden(name)))
        .collect();
    models.push(("mistral-swa", from_directory("mistral-swa", |_| {})));
    models.push(("llama4-text", from_directory("llama4-text", shorten)));
    models
}

fn start(model: &Model, config: &EngineConfig) -> Engine {
    let windows = config.session(model).windows;
    let window = windows.first().expect("the model has a window").window;
    assert!(matches!(window, Window::Sliding(16) | Window::Chunk(CHUNK)));
    Engine::start(model.clone(), Arc::new(Cpu::default()), config).unwrap()
}

#[test]
fn cached_prefixes_and_preemption_do_not_change_answers() {
    for (name, model) in models() {
        let config = EngineConfig {
            // Less than the requests that run at once need.
            cache_tokens: Some(14 * 32),
            ..config()
        };
        let engine = start(&model, &config);
        // Two prompts share two blocks and differ in the third.
        let mut prompts: Vec<Vec<u32>> = (0..4).map(|seed| prompt(seed, 100)).collect();
        let mut fork = prompts[0][..66].to_vec();
        fork.extend([9, 8, 7]);
        prompts.push(fork);
        let expected: Vec<Vec<u32>> = prompts.iter().map(|p| alone(&model, p, 40)).collect();
        // The requests of a round rarely arrive so late that none has to be preempted.
        let preempted = (0..50).any(|_| {
            for (answer, expected) in ask(&engine, &prompts).iter().zip(&expected) {
                assert_eq!(&answer.ids(), expected, "{name}");
            }
            engine.stats().preemptions > 0
        });
        assert!(preempted, "{name}");
        for (prompt, expected) in prompts.iter().zip(&expected).rev() {
            let answer = ask(&engine, std::slice::from_ref(prompt)).remove(0);
            assert_eq!(&answer.ids(), expected, "{name}, again");
        }
        // A conversation continues where its last answer ended.
        let mut longer = prompts[1].clone();
        longer.extend(&expected[1]);
        longer.extend([4, 5, 6]);
        ask(&engine, &prompts[1..2]);
        let answer = ask(&engine, std::slice::from_ref(&longer)).remove(0);
        assert_eq!(answer.completion.cached_tokens, 128, "{name}, longer");
        assert_eq!(answer.ids(), alone(&model, &longer, 40), "{name}, longer");
    }
}

#[test]
fn drafts_do_not_change_answers() {
    let (mut n_accepted, mut n_drafted) = (0, 0);
    let models = models();
    for (name, model) in &models {
        for source in [DraftSource::Ngram, DraftSource::Model(model.clone())] {
            let config = EngineConfig {
                max_batch_tokens: 24,
                speculation: Some(Speculation {
                    max_tokens: 8,
                    min_probability: 0.0,
                    always: true,
                    ..Speculation::new(source)
                }),
                ..config()
            };
            let engine = start(model, &config);
            let mut repeating = prompt(7, 20).repeat(4);
            repeating.extend([3, 4]);
            let prompts = [prompt(1, 90), repeating, prompt(2, 33)];
            let answers = ask(&engine, &prompts);
            for (answer, prompt) in answers.iter().zip(&prompts) {
                n_drafted += answer.completion.drafts.drafted;
                n_accepted += answer.completion.drafts.accepted;
                assert_eq!(answer.ids(), alone(model, prompt, 40), "{name}");
            }
        }
    }
    assert!(models.is_empty() || n_accepted > 0 && n_drafted > n_accepted);
}

#[test]
fn windows_are_restored_from_disk() {
    for (name, model) in models() {
        let directory = tempfile::tempdir().unwrap();
        let config = EngineConfig {
            disk: Some(DiskCache {
                directory: directory.path().to_path_buf(),
                limit: 1 << 30,
            }),
            ..config()
        };
        let prompt = prompt(3, 100);
        let expected = alone(&model, &prompt, 40);
        for cached_tokens in [0, 96] {
            let engine = start(&model, &config);
            let answer = ask(&engine, std::slice::from_ref(&prompt)).remove(0);
            assert_eq!(answer.completion.cached_tokens, cached_tokens, "{name}");
            assert_eq!(answer.ids(), expected, "{name}");
            let monitor = engine.monitor();
            drop(engine);
            // The blocks are written before the engine ends.
            while !monitor.has_ended() {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
    }
}
