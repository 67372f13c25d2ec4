//! Greedy answers of real models against llama.cpp's, token by token with log probabilities.
//!
//! llama.cpp rounds activations to 8 bits where weights are quantised, and so do we, in blocks of
//! our own: where two tokens are nearly as likely, the two may choose differently. Such a place is
//! shown with both logits, must be a near-tie for llama.cpp as well, and must not contradict the
//! reference backend, which rounds nothing. Nor may our rounding cost more than llama.cpp's does.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, Batch, SeqSlice, SessionConfig};
use oxidize_core::engine::{Engine, EngineConfig, Event, Request};
use oxidize_core::file::OpenOptions;
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingParams;
use oxidize_core::tokenizer::EncodeOptions;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

/// Log probabilities nearer than this are a near-tie between engines that round differently.
const NEAR_TIE: f64 = 0.35;

#[test]
fn smollm2_says_what_llama_cpp_says() {
    compare("SmolLM2-135M-Instruct.Q4_1");
}

#[test]
fn stories15m_says_what_llama_cpp_says() {
    compare("stories15M-f32");
}

#[test]
#[ignore = "large: make test-models"]
fn gemma3_says_what_llama_cpp_says() {
    compare("gemma-3-270m-q4_k_m");
}

#[test]
#[ignore = "large: make test-models"]
fn tinyllama_says_what_llama_cpp_says() {
    compare("tinyllama-1.1b-chat.IQ2_XXS");
}

#[test]
#[ignore = "large: make test-models"]
fn qwen2_says_what_llama_cpp_says() {
    compare("qwen2.5-coder-1.5b-instruct-q4_k_m");
}

/// One greedy answer of llama.cpp.
struct Run {
    prompt: String,
    /// The chosen tokens.
    tokens: Vec<u32>,
    /// For each, the five most likely tokens with their log probabilities.
    top: Vec<Vec<(u32, f64)>>,
}

/// The model and llama.cpp's answers, or `None` where they are not there.
fn find(name: &str) -> Option<(Model, Vec<Run>)> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = set("OXIDIZE_TEST_CACHE").or_else(|| Some(set("HOME")?.join(".cache/oxidize")))?;
    let shared = set("OXIDIZE_SHARED")
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let model = cache.join(format!("models/{name}.gguf"));
    // Short answers that are kept, and longer ones where `scripts/greedy_references.py` was run.
    let answers = [
        shared.join(format!("ref/{name}.greedy.json")),
        cache.join(format!("greedy/{name}.greedy.json")),
    ];
    if !model.exists() || !answers.iter().any(|path| path.exists()) {
        eprintln!("SKIPPED: no {} or no answers to it", model.display());
        return None;
    }
    let id = |value: &Value| value.as_u64().unwrap() as u32;
    let run = |run: &Value| {
        let tokens = run["tokens"].as_array().unwrap();
        let top = |token: &Value| {
            let top = token["top"].as_array().unwrap();
            top.iter()
                .map(|entry| (id(&entry[0]), entry[1].as_f64().unwrap()))
                .collect()
        };
        Run {
            prompt: run["prompt"].as_str().unwrap().to_owned(),
            tokens: tokens.iter().map(|token| id(&token["id"])).collect(),
            top: tokens.iter().map(top).collect(),
        }
    };
    let mut runs = Vec::new();
    for path in answers.iter().filter(|path| path.exists()) {
        let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        runs.extend(golden["runs"].as_array().unwrap().iter().map(run));
    }
    Some((Model::load(model, &OpenOptions::default()).unwrap(), runs))
}

/// Compares all answers.
fn compare(name: &str) {
    let Some((model, runs)) = find(name) else {
        return;
    };
    assert!(!runs.is_empty());
    for run in &runs {
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let prompt = model.tokenizer().unwrap().encode(&run.prompt, options);
        let total = run.tokens.len();
        // With llama.cpp's tokens as input every place can be compared.
        let mut tokens = prompt.clone();
        tokens.extend(&run.tokens[..total - 1]);
        let first = prompt.len() - 1;
        let place = Place {
            what: format!("{name}, {:?}", run.prompt),
            run,
            ours: logprobs(&model, &Cpu::default(), &tokens, first),
            exact: logprobs(&model, &Reference, &tokens, first),
        };
        let what = &place.what;

        // What a user gets. Past a near-tie the two tell different stories.
        let answer = greedy(&model, prompt, total);
        if let Some(at) = (0..total).find(|&at| answer.get(at) != Some(&run.tokens[at])) {
            let ours = answer.get(at).copied();
            let ours = ours.unwrap_or_else(|| panic!("{what}: the answer ends at {at}"));
            place.assert_near_tie(at, ours);
        }

        let mut same = 0;
        for (at, ours) in place.ours.iter().enumerate() {
            let best = argmax(ours);
            if best == run.tokens[at] {
                same += 1;
            } else {
                place.assert_near_tie(at, best);
            }
        }
        let (ours, theirs) = place.rounding();
        println!("{what}: {same} of {total} tokens; off by {ours:.4}, llama.cpp by {theirs:.4}");
        assert!(
            same + total / 12 >= total,
            "{what}: only {same} of {total} tokens"
        );
        assert!(ours < 1.25 * theirs + 0.002, "{what}: {ours} and {theirs}");
    }
}

/// The places of an answer, as three engines see them: log probabilities of every token.
struct Place<'a> {
    what: String,
    run: &'a Run,
    ours: Vec<Vec<f64>>,
    /// Without any rounding.
    exact: Vec<Vec<f64>>,
}

impl Place<'_> {
    /// Where we choose `ours` and llama.cpp something else: both must find the two nearly as likely.
    fn assert_near_tie(&self, at: usize, ours: u32) {
        let theirs = self.run.tokens[at];
        let known = |token: u32| self.run.top[at].iter().find(|(id, _)| *id == token);
        let pair = |row: &[f64]| (row[ours as usize], row[theirs as usize]);
        let what = format!("{}, token {at}: {ours} and not {theirs}", self.what);
        println!(
            "{what}: log probabilities {:.3?}, without rounding {:.3?}, llama.cpp's {:.3?}",
            pair(&self.ours[at]),
            pair(&self.exact[at]),
            (known(ours), known(theirs)),
        );
        let gap = match (known(theirs), known(ours)) {
            (Some((_, theirs)), Some((_, ours))) => theirs - ours,
            _ => f64::INFINITY,
        };
        assert!(gap < NEAR_TIE, "{what}: a gap of {gap} is no near-tie");
        let (our_exact, their_exact) = pair(&self.exact[at]);
        let gap = their_exact - our_exact;
        assert!(gap < NEAR_TIE, "{what}: wrong without rounding, by {gap}");
    }

    /// How far we are off, and llama.cpp is, on average over the tokens that matter: far down the
    /// list, small probabilities have large logarithms.
    fn rounding(&self) -> (f64, f64) {
        let (mut ours, mut theirs, mut n) = (0.0, 0.0, 0.0);
        for (at, top) in self.run.top.iter().enumerate() {
            for &(token, logprob) in top.iter().filter(|(_, logprob)| *logprob > -6.0) {
                let exact = self.exact[at][token as usize];
                ours += (self.ours[at][token as usize] - exact).abs();
                theirs += (logprob - exact).abs();
                n += 1.0;
            }
        }
        (ours / n, theirs / n)
    }
}

/// The engine's own answer, as long as llama.cpp's.
fn greedy(model: &Model, tokens: Vec<u32>, n: usize) -> Vec<u32> {
    let config = EngineConfig {
        cache_tokens: Some(512),
        max_sequences: 1,
        ..EngineConfig::default()
    };
    let engine = Engine::start(model.clone(), Arc::new(Cpu::default()), &config).unwrap();
    let request = Request {
        tokens,
        sampling: SamplingParams::greedy(),
        max_tokens: Some(n),
        ..Request::default()
    };
    let stream = engine.submit(request).unwrap();
    let token = |event| match event {
        Event::Token(token) => Some(token.id),
        Event::Finished(_) => None,
    };
    stream.filter_map(|event| token(event.unwrap())).collect()
}

/// The log probabilities at every position of `tokens` from `first` on.
fn logprobs(model: &Model, backend: &dyn Backend, tokens: &[u32], first: usize) -> Vec<Vec<f64>> {
    let config = SessionConfig {
        max_outputs: tokens.len(),
        ..SessionConfig::for_context(tokens.len())
    };
    let mut session = model.session(backend, &config).unwrap();
    let blocks: Vec<BlockId> = (0..config.n_blocks as u32).map(BlockId).collect();
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let batch = Batch {
        tokens,
        positions: &positions,
        sequences: &[SeqSlice {
            slot: 0,
            n_tokens: tokens.len(),
            blocks: &blocks,
            ..SeqSlice::default()
        }],
        outputs: &positions[first..],
    };
    session.run(&batch).unwrap();
    let mut row = |i: usize| {
        let logits = session.output(i).unwrap();
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        let normalize = |&x: &f32| f64::from(x) - max - sum.ln();
        logits.iter().map(normalize).collect()
    };
    (0..tokens.len() - first).map(&mut row).collect()
}

fn argmax(row: &[f64]) -> u32 {
    (0..row.len())
        .max_by(|&a, &b| row[a].total_cmp(&row[b]))
        .unwrap_or(0) as u32
}
