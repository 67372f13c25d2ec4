//! Beam search on the tiny model, compared with an exhaustive search.

#[allow(dead_code, reason = "each test uses some of it")]
mod tiny;

use oxidize_core::Error;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Batch, KvType, SeqSlice, SessionConfig};
use oxidize_core::engine::{
    BeamParams, BeamSequence, Engine, EngineConfig, EngineError, FinishReason, Request, beam_search,
};
use oxidize_core::grammar::Grammar;
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use oxidize_core::sampling::SamplingParams;
use std::sync::Arc;

fn config() -> EngineConfig {
    EngineConfig {
        n_threads: Some(2),
        key_type: KvType::F32,
        value_type: KvType::F32,
        ..EngineConfig::default()
    }
}

fn request(tokens: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt: tokens.to_vec().into(),
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..Request::default()
    }
}

fn search(model: &Model, request: &Request, beams: usize) -> Result<Vec<BeamSequence>, Error> {
    let params = BeamParams {
        beams,
        length_penalty: 1.0,
    };
    beam_search(model, &Cpu::default(), &config(), request, params, || true)
}

/// Log probabilities of the token after `tokens`.
fn logprobs(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let session_config = SessionConfig {
        key_type: KvType::F32,
        value_type: KvType::F32,
        ..SessionConfig::for_context(tokens.len())
    };
    let mut session = model.session(&Cpu::default(), &session_config).unwrap();
    let blocks: Vec<BlockId> = (0..session_config.n_blocks as u32).map(BlockId).collect();
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let sequence = SeqSlice {
        n_tokens: tokens.len(),
        blocks: &blocks,
        ..SeqSlice::default()
    };
    let batch = Batch {
        tokens,
        positions: &positions,
        sequences: &[sequence],
        outputs: &positions[tokens.len() - 1..],
    };
    session.run(&batch).unwrap();
    let logits = session.output(0).unwrap();
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    logits.iter().map(|&x| x - sum.ln() as f32).collect()
}

#[test]
fn finds_the_most_likely_pairs() {
    let model = tiny::model();
    for prompt in [&[5u32, 80, 7][..], &[100, 42, 42, 17, 300]] {
        let mut all = Vec::new();
        for (first, p_first) in (0..).zip(logprobs(&model, prompt)) {
            let longer = [prompt, &[first]].concat();
            let second = (0..).zip(logprobs(&model, &longer));
            all.extend(second.map(|(second, p)| (p_first + p, [first, second])));
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let found = search(&model, &request(prompt, 2), 32).unwrap();
        assert_eq!(found.len(), 32);
        for (answer, (logprob, tokens)) in found.iter().zip(&all).take(10) {
            assert!(
                (answer.logprob - logprob).abs() < 1e-3,
                "{answer:?}, {logprob}"
            );
            assert_eq!(answer.tokens, tokens);
            assert_eq!(answer.score, answer.logprob / 2.0);
            assert_eq!(answer.finish_reason, FinishReason::Length);
        }
    }
}

#[test]
fn one_beam_is_greedy_and_scores_match_model() {
    let model = tiny::model();
    // The prompt takes several chunks and the answer several blocks.
    let prompt: Vec<u32> = (0..100).map(|i| 5 + i * 37 % 315).collect();
    let request = request(&prompt, 70);
    let engine = Engine::start(model.clone(), Arc::new(Cpu::default()), &config()).unwrap();
    let greedy = engine.submit(request.clone()).unwrap();
    let (text, _) = greedy.collect_text().unwrap();
    let one = search(&model, &request, 1).unwrap();
    assert_eq!((one.len(), &one[0].text), (1, &text));
    let five = search(&model, &request, 5).unwrap();
    assert_eq!(five.len(), 5);
    assert!(five.windows(2).all(|pair| pair[0].score >= pair[1].score));
    // The reported log probability is the model's.
    let mut tokens = prompt;
    let mut logprob = 0.0;
    for &token in &five[0].tokens {
        logprob += logprobs(&model, &tokens)[token as usize];
        tokens.push(token);
    }
    assert!((five[0].logprob - logprob).abs() < 0.05, "{logprob}");
}

#[test]
fn grammar_and_stop_strings_apply() {
    let model = tiny::model();
    let mut request = request(&[10, 20, 30], 40);
    request.grammar = Some(Grammar::Regex("(yes|no|maybe later)!".into()));
    request.ignore_eos = false;
    let found = search(&model, &request, 6).unwrap();
    let texts: Vec<&str> = found.iter().map(|answer| &*answer.text).collect();
    assert!(
        found
            .iter()
            .all(|a| a.finish_reason == FinishReason::EndOfText)
    );
    let known = ["yes!", "no!", "maybe later!"];
    assert!(texts.iter().all(|text| known.contains(text)), "{texts:?}");
    let sampling = request.sampling.get_or_insert_default();
    sampling.stop = vec!["be".into()];
    sampling.banned_strings = vec!["yes".into(), "no".into()];
    let found = search(&model, &request, 6).unwrap();
    assert!(found.iter().all(|answer| answer.text == "may"), "{found:?}");
}

#[test]
fn search_stops_early_and_rejects_invalid_parameters() {
    let model = tiny::model();
    let params = |beams| BeamParams {
        beams,
        length_penalty: 1.0,
    };
    let request = request(&[10, 20, 30], 200);
    let mut steps = 0;
    let stop = || {
        steps += 1;
        steps <= 5
    };
    let cpu = Cpu::default();
    let found = beam_search(&model, &cpu, &config(), &request, params(4), stop).unwrap();
    assert!(found.iter().all(|answer| answer.tokens.len() == 5));
    for beams in [0, 65, usize::MAX] {
        let error = search(&model, &request, beams).unwrap_err();
        assert!(matches!(error, Error::Engine(EngineError::Beams(n)) if n == beams));
    }
    let long = Request {
        prompt: vec![7; 300].into(),
        ..request.clone()
    };
    let error = search(&model, &long, 2).unwrap_err();
    assert!(
        matches!(error, Error::Engine(EngineError::Submit(_))),
        "{error}"
    );
    let wrong = Request {
        prompt: vec![320].into(),
        ..request
    };
    assert!(search(&model, &wrong, 2).is_err());
}
