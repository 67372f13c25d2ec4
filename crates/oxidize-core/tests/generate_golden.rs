//! Greedy answers of real models, compared with llama.cpp's token by token and by log probability.
//!
//! llama.cpp rounds activations to 8 bits if weights are quantized, and so does this engine, with other block
//! sizes. If two tokens are nearly equally likely, the engines may choose differently. Each such position is
//! printed with both log probabilities, must be a near-tie for llama.cpp as well, and must not contradict the
//! reference backend, which does not round. The mean rounding error must not be much larger than llama.cpp's.

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, Batch, SeqSlice, SessionConfig};
use oxidize_core::engine::{Engine, EngineConfig, Request};
use oxidize_core::file::OpenOptions;
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingParams;
use oxidize_core::tokenizer::EncodeOptions;
use oxidize_testing::{cache, cached};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum difference of log probabilities that counts as a near-tie between engines that round differently.
const NEAR_TIE: f64 = 0.35;

oxidize_testing::main!(
    smollm2_matches_llama_cpp,
    stories15m_matches_llama_cpp; large
    gemma3_matches_llama_cpp,
    tinyllama_matches_llama_cpp,
    qwen2_matches_llama_cpp,
);

fn smollm2_matches_llama_cpp() {
    compare("SmolLM2-135M-Instruct.Q4_1");
}

fn stories15m_matches_llama_cpp() {
    compare("stories15M-f32");
}

fn gemma3_matches_llama_cpp() {
    compare("gemma-3-270m-q4_k_m");
}

fn tinyllama_matches_llama_cpp() {
    compare("tinyllama-1.1b-chat.IQ2_XXS");
}

fn qwen2_matches_llama_cpp() {
    compare("qwen2.5-coder-1.5b-instruct-q4_k_m");
}

/// A greedy answer of llama.cpp.
struct Run {
    prompt: String,
    /// Chosen tokens.
    tokens: Vec<u32>,
    /// The five most likely tokens with their log probabilities, for each chosen token.
    top: Vec<Vec<(u32, f64)>>,
}

/// Loads the model and llama.cpp's answers.
fn find(name: &str) -> (Model, Vec<Run>) {
    let model = cached(format!("models/{name}.gguf"));
    // Short answers are fixtures; `scripts/greedy_references.py` makes longer ones.
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/greedy");
    let mut answers = vec![
        fixtures.join(format!("{name}.json")),
        cache().join(format!("greedy/{name}.greedy.json")),
    ];
    answers.retain(|path| path.exists());
    assert!(!answers.is_empty(), "there are no answers for {name}");
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
    for path in &answers {
        let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        runs.extend(golden["runs"].as_array().unwrap().iter().map(run));
    }
    (
        Model::load_with(model, &OpenOptions::default()).unwrap(),
        runs,
    )
}

/// Compares all answers.
fn compare(name: &str) {
    let (model, runs) = find(name);
    assert!(!runs.is_empty());
    for run in &runs {
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let prompt = model.tokenizer().unwrap().encode(&run.prompt, options);
        let total = run.tokens.len();
        // With llama.cpp's tokens as input, all positions can be compared.
        let mut tokens = prompt.clone();
        tokens.extend(&run.tokens[..total - 1]);
        let first = prompt.len() - 1;
        let comparison = Comparison {
            what: format!("{name}, {:?}", run.prompt),
            run,
            ours: logprobs(&model, &Cpu::default(), &tokens, first),
            exact: logprobs(&model, &Reference, &tokens, first),
        };
        let what = &comparison.what;

        // The answer of the engine. After the first near-tie, the two continuations differ.
        let answer = greedy(&model, prompt, total);
        if let Some(at) = (0..total).find(|&at| answer.get(at) != Some(&run.tokens[at])) {
            let ours = answer.get(at).copied();
            let ours = ours.unwrap_or_else(|| panic!("{what}: the answer ends at {at}"));
            comparison.assert_near_tie(at, ours);
        }

        let mut same = 0;
        for (at, ours) in comparison.ours.iter().enumerate() {
            let best = argmax(ours);
            if best == run.tokens[at] {
                same += 1;
            } else {
                comparison.assert_near_tie(at, best);
            }
        }
        let (ours, theirs) = comparison.rounding();
        println!("{what}: {same} of {total} tokens; error {ours:.4}, llama.cpp's {theirs:.4}");
        assert!(
            same + total / 12 >= total,
            "{what}: only {same} of {total} tokens"
        );
        assert!(ours < 1.25 * theirs + 0.002, "{what}: {ours} and {theirs}");
    }
}

/// Log probabilities of every token at every position of an answer, from three engines.
struct Comparison<'a> {
    what: String,
    run: &'a Run,
    ours: Vec<Vec<f64>>,
    /// Of the reference backend, which does not round.
    exact: Vec<Vec<f64>>,
}

impl Comparison<'_> {
    /// Asserts that position `at`, where we choose `ours` and llama.cpp another token, is a near-tie for
    /// both.
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

    /// Mean absolute error of our and llama.cpp's log probabilities. Tokens below exp(-6) are left out,
    /// because their log probabilities are sensitive to rounding.
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

/// The engine's greedy answer of `n` tokens.
fn greedy(model: &Model, tokens: Vec<u32>, n: usize) -> Vec<u32> {
    let config = EngineConfig {
        cache_tokens: Some(512),
        max_sequences: 1,
        ..EngineConfig::default()
    };
    let engine = Engine::start(model.clone(), Arc::new(Cpu::default()), &config).unwrap();
    let request = Request {
        prompt: tokens.into(),
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(n),
        ..Request::default()
    };
    let stream = engine.submit(request).unwrap();
    stream.map(|token| token.unwrap().id).collect()
}

/// Log probabilities at every position of `tokens` from `first` on.
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
