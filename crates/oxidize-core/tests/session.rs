//! The promises of the `Session` trait, on every backend: batches are checked before anything is computed, tokens
//! may be sampled where the logits are, and results may be fewer than all logits.

#[path = "backend_ops/cases.rs"]
#[allow(dead_code, reason = "shared with the tests of ops")]
mod cases;
#[path = "backend_ops/net.rs"]
#[allow(dead_code, reason = "shared with the tests of ops")]
mod net;

use net::{Net, VOCAB};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{
    Backend, BackendError, Batch, SeqSlice, Session, SessionConfig, TopK, sampled_output,
    sampled_token,
};
use oxidize_core::file::TensorType;
use oxidize_core::graph::{Op, Rows, ValueId};
use oxidize_core::kv::BlockId;

const BLOCK_SIZE: usize = 4;
const MAX_TOKENS: usize = 6;

fn backends() -> [Box<dyn Backend>; 2] {
    [Box::new(Reference), Box::<Cpu>::default()]
}

fn config() -> SessionConfig {
    SessionConfig {
        n_blocks: 16,
        block_size: BLOCK_SIZE,
        max_tokens: MAX_TOKENS,
        max_outputs: 3,
        state_slots: 3,
        n_threads: Some(2),
        ..SessionConfig::for_context(32)
    }
}

/// A model with attention, a recurrent layer, or both, whose results are logits of the vocabulary.
fn model(attention: bool, recurrent: bool) -> Net {
    let mut net = Net::new(11);
    let mut parts: Vec<ValueId> = Vec::new();
    if attention {
        let shape = cases::HeadShape {
            n_heads: 4,
            n_kv_heads: 2,
            key_dim: 32,
            value_dim: 32,
        };
        let attended = cases::attention(&mut net, &shape, cases::Variant::default());
        parts.push(net.linear(attended, TensorType::F32, 48));
    }
    if recurrent {
        let (x, _) = cases::build(cases::Kind::LinearAttention, &mut net);
        parts.push(net.linear(x, TensorType::F32, 48));
    }
    let sum = parts.into_iter().reduce(|a, b| {
        let out = net.like(a);
        net.push(Op::Add { a, b, out })
    });
    let out = net.value(Rows::Outputs, 48);
    let x = sum.expect("a model has a layer");
    let chosen = net.push(Op::SelectOutputs { x, out });
    net.plan.result = Some(net.linear(chosen, TensorType::F32, VOCAB));
    net
}

/// Part of a sequence: its slot, which also selects its blocks, its tokens and the position of the first.
type Part<'a> = (u32, &'a [u32], u32);

fn blocks_of(slot: u32) -> Vec<BlockId> {
    (0..5).map(|i| BlockId(3 * i + slot)).collect()
}

/// Runs parts of sequences, with results for the last token of each.
fn run(session: &mut dyn Session, parts: &[Part<'_>]) -> Result<(), BackendError> {
    let blocks: Vec<Vec<BlockId>> = parts.iter().map(|(slot, ..)| blocks_of(*slot)).collect();
    let (mut tokens, mut positions, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    let mut sequences = Vec::new();
    for ((slot, own, start), blocks) in parts.iter().zip(&blocks) {
        tokens.extend_from_slice(own);
        positions.extend(*start..*start + own.len() as u32);
        outputs.push(tokens.len() as u32 - 1);
        sequences.push(SeqSlice {
            n_tokens: own.len(),
            blocks,
            slot: *slot,
            ..SeqSlice::default()
        });
    }
    session.run(&Batch {
        tokens: &tokens,
        positions: &positions,
        sequences: &sequences,
        outputs: &outputs,
    })
}

fn bits(session: &mut dyn Session, output: usize) -> Vec<u32> {
    let logits = session.output(output).unwrap();
    logits.iter().map(|x| x.to_bits()).collect()
}

/// All blocks of the cache.
fn cache(session: &dyn Session) -> Vec<Vec<u8>> {
    let read = |block| {
        let mut bytes = Vec::new();
        session.read_block(0, BlockId(block), &mut bytes).unwrap();
        bytes
    };
    (0..16).map(read).collect()
}

#[test]
fn refused_batches_change_nothing() {
    for (attention, recurrent) in [(true, false), (false, true), (true, true)] {
        let net = model(attention, recurrent);
        for backend in backends() {
            let compile = || backend.compile(&net.plan, &net.weights, &config()).unwrap();
            let (mut session, mut control) = (compile(), compile());
            for session in [&mut session, &mut control] {
                run(session.as_mut(), &[(0, &[5, 6, 7, 8, 9], 0)]).unwrap();
                session.sample_greedy().unwrap();
            }
            let (caches, logits) = (cache(session.as_ref()), bits(session.as_mut(), 0));
            let sampled = session.sampled(0).unwrap();

            let blocks = blocks_of(0);
            let good = SeqSlice {
                n_tokens: 2,
                blocks: &blocks,
                ..SeqSlice::default()
            };
            let refuse = |session: &mut dyn Session,
                          tokens: &[u32],
                          positions: &[u32],
                          sequences: &[SeqSlice<'_>],
                          outputs: &[u32]| {
                let batch = Batch {
                    tokens,
                    positions,
                    sequences,
                    outputs,
                };
                assert!(session.run(&batch).is_err(), "{batch:?}");
                assert!(session.encode(&batch).is_err(), "there is no encoder");
            };
            let session = session.as_mut();
            let next = [5, 6];
            // Token ids and references to sampled tokens.
            refuse(session, &[1, VOCAB as u32], &next, &[good], &[1]);
            refuse(session, &[1, sampled_token(1)], &next, &[good], &[1]);
            refuse(session, &[1, u32::MAX], &next, &[good], &[1]);
            // Positions: gaps, repetitions, outside the blocks, of another number than tokens.
            refuse(session, &[1, 2], &[5, 7], &[good], &[1]);
            refuse(session, &[1, 2], &[6, 6], &[good], &[1]);
            refuse(session, &[1, 2], &[19, 20], &[good], &[1]);
            refuse(session, &[1, 2], &[u32::MAX, 0], &[good], &[1]);
            refuse(session, &[1, 2], &[5], &[good], &[1]);
            // Sequences that do not cover the tokens, blocks that do not exist, scales that are no numbers.
            let wrong = [
                SeqSlice {
                    n_tokens: 1,
                    ..good
                },
                SeqSlice {
                    n_tokens: 3,
                    ..good
                },
                SeqSlice {
                    blocks: &blocks[..1],
                    ..good
                },
                SeqSlice {
                    blocks: &[BlockId(16), BlockId(0)],
                    ..good
                },
                SeqSlice {
                    adapters: &[f32::INFINITY],
                    ..good
                },
            ];
            for sequence in wrong {
                refuse(session, &[1, 2], &next, &[sequence], &[1]);
            }
            refuse(session, &[1, 2], &next, &[], &[1]);
            // Outputs: too many, in the wrong order, past the end.
            refuse(session, &[1, 2], &next, &[good], &[1, 0]);
            refuse(session, &[1, 2], &next, &[good], &[2]);
            let four = SeqSlice {
                n_tokens: 4,
                ..good
            };
            refuse(
                session,
                &[1, 2, 3, 4],
                &[5, 6, 7, 8],
                &[four],
                &[0, 1, 2, 3],
            );
            // Too many tokens, or none.
            let seven = SeqSlice {
                n_tokens: 7,
                ..good
            };
            let positions: Vec<u32> = (5..12).collect();
            refuse(session, &[1; MAX_TOKENS + 1], &positions, &[seven], &[6]);
            refuse(session, &[], &[], &[], &[]);
            if recurrent {
                // A state that is elsewhere, a slot that does not exist, and two sequences in one.
                let one = SeqSlice {
                    n_tokens: 1,
                    ..good
                };
                refuse(session, &[1, 2], &[4, 5], &[good], &[1]);
                refuse(
                    session,
                    &[1, 2],
                    &[5, 6],
                    &[SeqSlice { slot: 3, ..good }],
                    &[1],
                );
                refuse(session, &[1, 2], &[5, 6], &[one, one], &[1]);
                // The first sequence alone would be accepted.
                let other = SeqSlice { slot: 1, ..one };
                refuse(session, &[1, 2], &[5, 3], &[one, other], &[1]);
            }

            assert!(cache(session) == caches);
            assert_eq!(bits(session, 0), logits);
            assert_eq!(session.sampled(0).unwrap(), sampled);
            let next: [Part<'_>; 1] = [(0, &[sampled_token(0), 3], 5)];
            run(session, &next).unwrap();
            run(control.as_mut(), &next).unwrap();
            assert_eq!(bits(session, 0), bits(control.as_mut(), 0));
        }
    }
}

#[test]
fn top_k_selects_from_all_logits() {
    let net = model(true, false);
    for backend in backends() {
        let mut session = backend.compile(&net.plan, &net.weights, &config()).unwrap();
        let parts: [Part<'_>; 2] = [(0, &[1, 2, 3], 0), (1, &[4, 5], 0)];
        run(session.as_mut(), &parts).unwrap();
        let mut top = TopK::default();
        for output in 0..2 {
            let logits = session.output(output).unwrap().to_vec();
            let mut ids: Vec<u32> = (0..VOCAB as u32).collect();
            ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            for k in [1, 5, VOCAB] {
                session.top_k(output, k, &mut top).unwrap();
                let chosen: Vec<u32> = top.candidates.iter().map(|c| c.id).collect();
                assert_eq!(chosen, ids[..k]);
                let exact = |c: &oxidize_core::backend::Candidate| c.logit == logits[c.id as usize];
                assert!(top.candidates.iter().all(exact));
                let error = f64::from(top.log_sum_exp) - sum.ln();
                assert!(error.abs() < 1e-5, "{error}");
            }
        }
        assert!(session.top_k(2, 1, &mut top).is_err());
    }
}

/// Two sequences decode by references to sampled tokens exactly as by token ids; the host reads tokens one step late.
#[test]
fn sampled_tokens_stand_for_their_ids() {
    let net = model(true, true);
    for backend in backends() {
        let compile = || backend.compile(&net.plan, &net.weights, &config()).unwrap();
        let (mut by_id, mut by_reference) = (compile(), compile());
        let prompts: [Part<'_>; 2] = [(0, &[1, 2, 3], 0), (1, &[4], 0)];
        for session in [&mut by_id, &mut by_reference] {
            assert!(session.sampled(0).is_err(), "nothing was sampled");
            run(session.as_mut(), &prompts).unwrap();
            session.sample_greedy().unwrap();
        }
        // The slot of each output of the last batch, and the next position of each slot.
        let (mut slots, mut next) = ([0u32, 1], [3, 1]);
        for _ in 0..12 {
            let ids = [0, 1].map(|output| by_id.sampled(output).unwrap());
            let logits = by_id.output(0).unwrap();
            let largest = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
            assert_eq!(logits[ids[0] as usize], largest);
            // The sequences change places, so that a reference is to another output than the token's own.
            slots.reverse();
            let output_of = [1, 0];
            let references = output_of.map(sampled_token);
            assert_eq!(references.map(sampled_output), output_of.map(Some));
            for (session, tokens) in [
                (&mut by_id, output_of.map(|output| ids[output])),
                (&mut by_reference, references),
            ] {
                let part = |i: usize| (slots[i], &tokens[i..=i], next[slots[i] as usize]);
                run(session.as_mut(), &[part(0), part(1)]).unwrap();
            }
            next = next.map(|position| position + 1);
            assert_eq!(bits(by_id.as_mut(), 0), bits(by_reference.as_mut(), 0));
            assert_eq!(bits(by_id.as_mut(), 1), bits(by_reference.as_mut(), 1));
            // The tokens of the step before, until the next are sampled.
            assert_eq!(by_reference.sampled(1).unwrap(), ids[1]);
            by_id.sample_greedy().unwrap();
            by_reference.sample_greedy().unwrap();
        }
    }
}

#[test]
fn devices_that_do_not_exist_are_refused() {
    let net = model(true, false);
    for backend in backends() {
        let n_devices = backend.devices().len();
        for device in 0..n_devices {
            let config = SessionConfig { device, ..config() };
            assert!(backend.compile(&net.plan, &net.weights, &config).is_ok());
        }
        let config = SessionConfig {
            device: n_devices,
            ..config()
        };
        let error = backend.compile(&net.plan, &net.weights, &config);
        let error = error.err().expect("there is no such device");
        assert!(
            matches!(error, BackendError::NoDevice { device, .. } if device == n_devices),
            "{error}"
        );
    }
}
