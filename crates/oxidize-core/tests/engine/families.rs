//! Golden models of families with recurrent state or an encoder: the engine gives the same answers as a
//! session.

use crate::answers::golden;
use crate::{Answer, greedy, read};
use oxidize_core::Error;
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Batch, KvType, SeqSlice, Session, SessionConfig};
use oxidize_core::engine::{Engine, EngineConfig, EngineError};
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use std::sync::Arc;

pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        n_ctx: Some(256),
        cache_tokens: Some(1024),
        // Less than a prompt, so that prompts are chunked.
        max_batch_tokens: 24,
        max_sequences: 3,
        key_type: KvType::F32,
        value_type: KvType::F32,
        n_threads: Some(2),
        ..EngineConfig::default()
    }
}

fn start(model: &Model) -> Engine {
    Engine::start(model.clone(), Arc::new(Cpu::default()), &config()).unwrap()
}

pub(crate) fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len)
        .map(|i| 5 + (i * i * 7 + seed * 31) % 300)
        .collect()
}

/// Tokens that a session generates greedily, with one block table for all layers.
pub(crate) fn alone(model: &Model, prompt: &[u32], n_tokens: usize) -> Vec<u32> {
    let session_config = SessionConfig {
        windows: Vec::new(),
        ..config().session(model)
    };
    let mut session = model.session(&Cpu::default(), &session_config).unwrap();
    let blocks: Vec<BlockId> = (0..8).map(BlockId).collect();
    let mut at = 0;
    let mut run = |session: &mut dyn Session, tokens: &[u32], encode: bool| {
        let positions: Vec<u32> = (at..at + tokens.len() as u32).collect();
        at += tokens.len() as u32;
        let sequences = [SeqSlice {
            n_tokens: tokens.len(),
            blocks: &blocks,
            slot: 0,
            ..SeqSlice::default()
        }];
        let last = [tokens.len() as u32 - 1];
        let batch = Batch {
            tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: if encode { &[] } else { &last },
        };
        if encode {
            session.encode(&batch).unwrap();
            return 0;
        }
        session.run(&batch).unwrap();
        let logits = session.output(0).unwrap();
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        best.unwrap() as u32
    };
    let mut next = match model.hparams().decoder_start {
        Some(start) => {
            run(session.as_mut(), prompt, true);
            run(session.as_mut(), &[start], false)
        }
        None => {
            let chunks: Vec<&[u32]> = prompt.chunks(24).collect();
            let mut next = 0;
            chunks
                .into_iter()
                .for_each(|chunk| next = run(session.as_mut(), chunk, false));
            next
        }
    };
    let mut tokens = vec![next];
    while tokens.len() < n_tokens {
        next = run(session.as_mut(), &[next], false);
        tokens.push(next);
    }
    tokens
}

pub(crate) fn ask(engine: &Engine, prompts: &[Vec<u32>]) -> Vec<Answer> {
    let streams: Vec<_> = prompts
        .iter()
        .map(|prompt| engine.submit(greedy(prompt.clone(), 40)).unwrap())
        .collect();
    streams
        .into_iter()
        .map(|stream| read(stream).unwrap())
        .collect()
}

#[test]
fn recurrent_models_match_session_concurrently_and_from_checkpoints() {
    for name in ["mamba2", "kimi-linear", "qwen3-next", "falcon-h1", "lfm2"] {
        let model = golden(name);
        let engine = start(&model);
        // There are more requests than run at once. Two of them share their first two blocks and differ in
        // the third.
        let mut prompts: Vec<Vec<u32>> = (0..4).map(|seed| prompt(seed, 70)).collect();
        let mut fork = prompts[0][..66].to_vec();
        fork.extend([9, 8, 7]);
        prompts.push(fork);
        let expected: Vec<Vec<u32>> = prompts.iter().map(|p| alone(&model, p, 40)).collect();
        let first = ask(&engine, &prompts);
        for (answer, expected) in first.iter().zip(&expected) {
            assert_eq!(&answer.ids(), expected, "{name}");
        }
        // The second time, the prompts' full blocks and the state at their ends are cached.
        for (prompt, expected) in prompts.iter().zip(&expected).rev() {
            let answer = ask(&engine, std::slice::from_ref(prompt)).remove(0);
            assert_eq!(&answer.ids(), expected, "{name}, from a checkpoint");
        }
        let answer = ask(&engine, &prompts[4..]).remove(0);
        assert_eq!(answer.completion.cached_tokens, 64, "{name}");
        // A conversation resumes at the end of the answer's last full block.
        let mut longer = prompts[1].clone();
        longer.extend(&expected[1]);
        longer.extend([4, 5, 6]);
        ask(&engine, &prompts[1..2]);
        let answer = ask(&engine, std::slice::from_ref(&longer)).remove(0);
        assert!(answer.completion.cached_tokens >= 96, "{name}");
        assert_eq!(answer.ids(), alone(&model, &longer, 40), "{name}, longer");
    }
}

#[test]
fn encoder_decoder_matches_session_concurrently() {
    for name in ["t5", "t5-v1.1"] {
        let model = golden(name);
        let engine = start(&model);
        let prompts: Vec<Vec<u32>> = (0..5).map(|seed| prompt(seed, 10 + 20 * seed)).collect();
        let answers = ask(&engine, &prompts);
        for (answer, prompt) in answers.iter().zip(&prompts) {
            assert_eq!(answer.ids(), alone(&model, prompt, 40), "{name}");
        }
        assert!(
            engine
                .submit(greedy(Vec::new(), 4))
                .is_ok_and(|stream| read(stream).is_err())
        );
    }
}

#[test]
fn encoder_cannot_generate_text() {
    let model = golden("bert");
    let started = Engine::start(model, Arc::new(Cpu::default()), &EngineConfig::default());
    let error = started.err().expect("BERT has no logits");
    assert!(
        matches!(error, Error::Engine(EngineError::NoText("bert"))),
        "{error}"
    );
}
