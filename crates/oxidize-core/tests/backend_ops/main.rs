//! Comparison of the CPU backend, with each instruction set of this machine, with the reference backend: every op
//! over random shapes and types, then random plans, whose ops are fused and whose values share buffers.

mod batch_schedule;
mod cases;
mod net;

use batch_schedule::{BatchSchedule, compare};
use cases::{ALL, Variant, build, kind};
use net::{Net, Random, VOCAB, weight_types};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, BackendError, Batch, KvType, SeqSlice};
use oxidize_core::file::TensorType;
use oxidize_core::graph::{
    Activation, AttentionMask, NormKind, Op, RopeLayout, Rows, ValueId, Window,
};
use oxidize_core::kv::{BlockCopy, BlockId};

/// The number of cases to run of `n`. On a slow emulator, `OXIDIZE_TEST_PART=4` runs a quarter of them.
fn part_of(n: usize) -> usize {
    let part = std::env::var("OXIDIZE_TEST_PART").map_or(1, |part| part.parse().unwrap());
    n.div_ceil(part)
}

/// Plans of one op and the ops that compute its input.
#[test]
fn every_op_matches_reference() {
    for &wanted in ALL {
        for seed in 0..part_of(12) as u64 {
            let mut net = Net::new(seed);
            let (result, bound) = build(wanted, &mut net);
            net.plan.result = Some(result);
            assert!(net.plan.ops.iter().any(|op| kind(op) == wanted));
            let schedule = BatchSchedule::random(&mut net.random);
            compare(&net, &schedule, bound, &format!("{wanted:?}, seed {seed}"));
        }
    }
}

/// Every type of weight, for one token, a few and many.
#[test]
fn products_of_every_type_match_reference() {
    for (i, ty) in weight_types().enumerate() {
        for m in [1, 7, 70] {
            let mut net = Net::new(i as u64);
            let width = net.random.within(1..=3) * ty.block_len().max(8);
            let x = net.input(width);
            // Enough outputs that a single one that is small by chance does not decide.
            let outputs = net.random.within(12..=50);
            net.plan.result = Some(net.linear(x, ty, outputs));
            let schedule = BatchSchedule::prompt(&mut net.random, m);
            compare(
                &net,
                &schedule,
                cases::product_bound(ty),
                &format!("{ty}, {m} tokens"),
            );
        }
    }
}

/// Shapes of attention for which the CPU has different code, with every cache type.
#[test]
fn attention_of_every_cache_type_matches_reference() {
    for ty in KvType::ALL {
        for (n_heads, n_kv_heads, head_dim) in
            [(4, 4, 64), (6, 2, 32), (8, 1, 96), (3, 3, 128), (2, 1, 20)]
        {
            if ty.row_bytes(head_dim).is_none() {
                continue;
            }
            for window in [None, Some(Window::Sliding(5))] {
                let mut net = Net::new(head_dim as u64);
                let shape = cases::HeadShape {
                    n_heads,
                    n_kv_heads,
                    key_dim: head_dim,
                    value_dim: head_dim,
                };
                let variant = Variant {
                    window,
                    softcap: window.map(|_| 3.0),
                    ..Variant::default()
                };
                net.plan.result = Some(cases::attention(&mut net, &shape, variant));
                let mut schedule = BatchSchedule::random(&mut net.random);
                (schedule.config.key_type, schedule.config.value_type) = (ty, ty);
                let what = format!("{ty:?}, {n_heads}/{n_kv_heads} of {head_dim}, {window:?}");
                compare(&net, &schedule, cases::cache_bound(ty), &what);
            }
        }
    }
}

/// Keys and values of different cache types.
#[test]
fn attention_of_mixed_cache_types_matches_reference() {
    for key_type in KvType::ALL {
        for value_type in KvType::ALL {
            let mut net = Net::new(5);
            let shape = cases::HeadShape {
                n_heads: 4,
                n_kv_heads: 2,
                key_dim: 64,
                value_dim: 32,
            };
            net.plan.result = Some(cases::attention(&mut net, &shape, Variant::default()));
            let mut schedule = BatchSchedule::random(&mut net.random);
            (schedule.config.key_type, schedule.config.value_type) = (key_type, value_type);
            let bound = cases::cache_bound(key_type).max(cases::cache_bound(value_type));
            compare(
                &net,
                &schedule,
                bound,
                &format!("{key_type:?} and {value_type:?}"),
            );
        }
    }
}

/// Bidirectional attention, over whole sequences.
#[test]
fn bidirectional_attention_matches_reference() {
    let windows = [None, Some(Window::Around(3)), Some(Window::Around(40))];
    for (seed, window) in windows.into_iter().enumerate() {
        for lengths in [&[1][..], &[90], &[7, 70, 1, 33]] {
            let mut net = Net::new(seed as u64);
            let shape = cases::HeadShape {
                n_heads: 4,
                n_kv_heads: 2,
                key_dim: 32,
                value_dim: 32,
            };
            let variant = Variant {
                window,
                mask: AttentionMask::Full,
                relative: seed == 0,
                alibi: seed == 1,
                ..Variant::default()
            };
            net.plan.result = Some(cases::attention(&mut net, &shape, variant));
            let schedule = BatchSchedule::whole(&mut net.random, lengths);
            let what = format!("window {window:?}, {lengths:?}");
            compare(
                &net,
                &schedule,
                cases::cache_bound(schedule.config.key_type),
                &what,
            );
            // A part of a sequence is refused.
            let backends: [Box<dyn Backend>; 2] = [Box::new(Reference), Box::<Cpu>::default()];
            for backend in backends {
                let compiled = backend.compile(&net.plan, &net.weights, &schedule.config);
                let sequences = [SeqSlice {
                    slot: 0,
                    n_tokens: 1,
                    blocks: &[BlockId(0); 2],
                    ..SeqSlice::default()
                }];
                let piece = Batch {
                    tokens: &[1],
                    positions: &[1],
                    sequences: &sequences,
                    outputs: &[],
                };
                let error = compiled.unwrap().run(&piece).unwrap_err();
                assert!(matches!(error, BackendError::Malformed(_)), "{error}");
            }
        }
    }
}

/// Contexts long enough that the CPU splits the keys of one token over threads.
#[test]
fn attention_over_a_long_context_matches_reference() {
    let windows = [
        None,
        Some(Window::Sliding(700)),
        Some(Window::Sliding(40)),
        Some(Window::Chunk(600)),
    ];
    for (seed, window) in windows.into_iter().enumerate() {
        for n_threads in [4, 1, 2].into_iter().take(part_of(3)) {
            let mut net = Net::new(seed as u64);
            let shape = cases::HeadShape {
                n_heads: 4,
                n_kv_heads: 2,
                key_dim: 32,
                value_dim: 32,
            };
            let variant = Variant {
                window,
                sinks: seed % 2 == 0,
                alibi: seed == 1,
                ..Variant::default()
            };
            net.plan.result = Some(cases::attention(&mut net, &shape, variant));
            let mut schedule = BatchSchedule::long(&mut net.random, &[1100, 530, 40]);
            schedule.config.n_threads = Some(n_threads);
            let what = format!("window {window:?}, {n_threads} threads");
            compare(
                &net,
                &schedule,
                cases::cache_bound(schedule.config.key_type),
                &what,
            );
        }
    }
}

/// Fusion and the sharing of buffers do not change results.
#[test]
fn random_plans_match_reference() {
    for seed in 0..part_of(150) as u64 {
        let mut net = Net::new(1000 + seed);
        let result = random_plan(&mut net);
        net.plan.result = Some(result);
        let schedule = BatchSchedule::random(&mut net.random);
        compare(
            &net,
            &schedule,
            1e-8,
            &format!("plan {seed}: {:#?}", net.plan.ops),
        );
    }
}

/// Ops on random values, old ones too, so that some values live long and some are never used. Projections often
/// come in groups that are fused.
fn random_plan(net: &mut Net) -> ValueId {
    let (head_dim, n_heads) = (2 * net.random.within(1..=8), net.random.within(1..=4));
    let width = head_dim * n_heads;
    let wide = width * net.random.within(1..=2) + head_dim;
    let mut values = vec![net.input(width)];
    let table = cases::rope_table(net, head_dim / 2);
    for _ in 0..net.random.within(3..=25) {
        let recent = values.len().saturating_sub(3);
        let from = if net.random.chance(0.7) { recent } else { 0 };
        let x = values[net.random.within(from..=values.len() - 1)];
        let info = net.plan.value(x);
        let same: Vec<ValueId> = values
            .iter()
            .copied()
            .filter(|&v| net.plan.value(v) == info)
            .collect();
        let other = net.random.pick(&same);
        let added = match net.random.within(0..=9) {
            0 => {
                let out = net.like(x);
                let weight = net.maybe_vector(info.width);
                let kind = net.random.pick(&[NormKind::Rms, NormKind::Layer]);
                net.push(Op::Norm {
                    kind,
                    x,
                    weight,
                    bias: None,
                    epsilon: 1e-5,
                    width: info.width,
                    out,
                })
            }
            1 | 2 => {
                let outputs = net.random.pick(&[width, wide]);
                net.linear(x, TensorType::F32, outputs)
            }
            3 => {
                // Like queries, keys and values, or more than fit in one step.
                for _ in 0..net.random.within(2..=6) {
                    let value = net.linear(x, TensorType::F32, width);
                    values.push(value);
                }
                *values.last().unwrap()
            }
            4 => {
                let gate = net.linear(x, TensorType::F32, wide);
                let up = net.linear(x, TensorType::F32, wide);
                if net.random.chance(0.3) {
                    values.push(up);
                }
                let (gate, up) = if net.random.chance(0.3) {
                    (up, gate)
                } else {
                    (gate, up)
                };
                let out = net.like(gate);
                net.push(Op::Glu {
                    gate,
                    up,
                    activation: Activation::Silu,
                    out,
                })
            }
            5 | 6 => {
                // A residual, sometimes with its terms swapped, or with a product that is used twice.
                let product = net.linear(x, TensorType::F32, width);
                if net.random.chance(0.2) {
                    values.push(product);
                }
                let first: Vec<ValueId> = values
                    .iter()
                    .copied()
                    .filter(|&v| net.plan.value(v) == net.plan.value(product))
                    .collect();
                let residual = net.random.pick(&first);
                let (a, b) = if net.random.chance(0.8) {
                    (residual, product)
                } else {
                    (product, residual)
                };
                let out = net.like(product);
                net.push(Op::Add { a, b, out })
            }
            7 => {
                let out = net.like(x);
                net.push(Op::Add {
                    a: x,
                    b: other,
                    out,
                })
            }
            8 => {
                let out = net.like(x);
                let activation = net.random.pick(&[Activation::GeluErf, Activation::Tanh]);
                net.push(Op::Activate { x, activation, out })
            }
            _ if info.rows == Rows::Tokens && info.width.is_multiple_of(head_dim) => {
                let out = net.like(x);
                let layout = net
                    .random
                    .pick(&[RopeLayout::Halves, RopeLayout::Interleaved]);
                net.push(Op::Rope {
                    x,
                    table,
                    head_dim,
                    layout,
                    out,
                })
            }
            _ => {
                let out = net.like(x);
                net.push(Op::Scale {
                    x,
                    factor: 0.7,
                    out,
                })
            }
        };
        values.push(added);
    }
    let last = values[values.len() - 1];
    let width = net.plan.value(last).width;
    let chosen = net.value(Rows::Outputs, width);
    net.push(Op::SelectOutputs {
        x: last,
        out: chosen,
    });
    net.linear(chosen, TensorType::F32, VOCAB)
}

/// A sequence continues in copies of its blocks, and in blocks that were read and written back.
#[test]
fn blocks_are_copied_read_and_written() {
    let backends: [Box<dyn Backend>; 2] = [Box::new(Reference), Box::<Cpu>::default()];
    for backend in backends {
        for ty in KvType::ALL {
            let mut net = Net::new(9);
            let shape = cases::HeadShape {
                n_heads: 4,
                n_kv_heads: 2,
                key_dim: 32,
                value_dim: 64,
            };
            net.plan.result = Some(cases::attention(&mut net, &shape, Variant::default()));
            let mut schedule = BatchSchedule::prompt(&mut net.random, 20);
            let config = &mut schedule.config;
            (config.key_type, config.value_type) = (ty, ty);
            (config.block_size, config.n_blocks, config.max_tokens) = (8, 12, 32);
            let mut session = backend.compile(&net.plan, &net.weights, config).unwrap();
            let blocks = |list: [u32; 3]| list.map(BlockId);
            let run = |session: &mut dyn oxidize_core::backend::Session,
                       tokens: std::ops::Range<u32>,
                       blocks: &[BlockId]| {
                let positions: Vec<u32> = tokens.clone().collect();
                let sequences = [SeqSlice {
                    slot: 0,
                    n_tokens: tokens.len(),
                    blocks,
                    ..SeqSlice::default()
                }];
                let batch = Batch {
                    tokens: &positions,
                    positions: &positions,
                    sequences: &sequences,
                    outputs: &[],
                };
                session.run(&batch).unwrap();
                session.output(tokens.len() - 1).unwrap().to_vec()
            };
            run(session.as_mut(), 0..18, &blocks([5, 0, 7]));
            let plain = run(session.as_mut(), 18..19, &blocks([5, 0, 7]));

            let copy = |(from, to): (u32, u32)| BlockCopy {
                group: 0,
                from: BlockId(from),
                to: BlockId(to),
            };
            let copies = [(5, 1), (0, 3), (7, 9)].map(copy);
            session.copy_blocks(&copies).unwrap();
            assert_eq!(run(session.as_mut(), 18..19, &blocks([1, 3, 9])), plain);

            let mut fresh = backend.compile(&net.plan, &net.weights, config).unwrap();
            let mut bytes = Vec::new();
            for (from, to) in [(5, 11), (0, 2), (7, 4)] {
                session.read_block(0, BlockId(from), &mut bytes).unwrap();
                assert_eq!(bytes.len(), session.block_bytes(0));
                fresh.write_block(0, BlockId(to), &bytes).unwrap();
            }
            assert_eq!(run(fresh.as_mut(), 18..19, &blocks([11, 2, 4])), plain);

            assert!(session.read_block(0, BlockId(12), &mut bytes).is_err());
            assert!(session.read_block(1, BlockId(0), &mut bytes).is_err());
            assert!(fresh.write_block(0, BlockId(0), &bytes[1..]).is_err());
            assert!(fresh.copy_blocks(&[copy((0, 12))]).is_err());
        }
    }
}

/// Each fault of a batch has its error, and the session can be used afterwards.
#[test]
fn bad_batches_are_refused() {
    let backends: [Box<dyn Backend>; 2] = [Box::new(Reference), Box::<Cpu>::default()];
    for backend in backends {
        let mut net = Net::new(3);
        let shape = cases::HeadShape {
            n_heads: 2,
            n_kv_heads: 1,
            key_dim: 32,
            value_dim: 32,
        };
        let attended = cases::attention(&mut net, &shape, Variant::default());
        let out = net.value(Rows::Outputs, 64);
        net.plan.result = Some(net.push(Op::SelectOutputs { x: attended, out }));
        let mut config = BatchSchedule::prompt(&mut net.random, 4).config;
        (config.block_size, config.n_blocks) = (4, 4);
        (config.max_tokens, config.max_outputs) = (4, 2);
        let mut session = backend.compile(&net.plan, &net.weights, &config).unwrap();
        let mut run = |tokens: &[u32], positions: &[u32], blocks: &[u32], outputs: &[u32]| {
            let blocks: Vec<BlockId> = blocks.iter().copied().map(BlockId).collect();
            let sequences = [SeqSlice {
                slot: 0,
                n_tokens: tokens.len(),
                blocks: &blocks,
                ..SeqSlice::default()
            }];
            session.run(&Batch {
                tokens,
                positions,
                sequences: &sequences,
                outputs,
            })
        };
        let vocab = VOCAB as u32;
        let error = run(&[1, vocab], &[0, 1], &[0], &[1]).unwrap_err();
        assert!(matches!(error, BackendError::TokenOutOfRange { token, .. } if token == vocab));
        let error = run(&[1; 5], &[0, 1, 2, 3, 4], &[0, 1], &[]).unwrap_err();
        assert!(matches!(
            error,
            BackendError::BatchTooLarge {
                what: "tokens",
                requested: 5,
                limit: 4
            }
        ));
        let error = run(&[1; 3], &[0, 1, 2], &[0], &[0, 1, 2]).unwrap_err();
        assert!(matches!(
            error,
            BackendError::BatchTooLarge {
                what: "outputs",
                ..
            }
        ));
        let malformed = [
            run(&[], &[], &[], &[]),
            run(&[1, 2], &[0], &[0], &[]),
            run(&[1], &[4], &[0], &[]),
            run(&[1], &[u32::MAX], &[0], &[]),
            run(&[1], &[0], &[4], &[]),
            run(&[1, 2], &[0, 1], &[0], &[1, 0]),
            run(&[1, 2], &[0, 1], &[0], &[2]),
        ];
        for result in malformed {
            assert!(
                matches!(result, Err(BackendError::Malformed(_))),
                "{result:?}"
            );
        }
        run(&[1, 2], &[0, 1], &[3], &[1]).unwrap();
        assert!(session.output(0).unwrap().iter().all(|x| x.is_finite()));
        assert!(session.output(1).is_err());
    }
}

/// Heads that are not whole blocks of a cache type.
#[test]
fn heads_that_do_not_fit_the_cache_type_are_refused() {
    for key in [KvType::Q8_0, KvType::Q4_0] {
        let mut net = Net::new(1);
        let shape = cases::HeadShape {
            n_heads: 2,
            n_kv_heads: 2,
            key_dim: 20,
            value_dim: 32,
        };
        net.plan.result = Some(cases::attention(&mut net, &shape, Variant::default()));
        let mut config = BatchSchedule::prompt(&mut Random::new(0), 4).config;
        config.key_type = key;
        let result = Cpu::default().compile(&net.plan, &net.weights, &config);
        let error = result.err().expect("a head of 20 is no whole block");
        assert!(matches!(
            error,
            BackendError::KvType {
                dim: 20,
                block: 32,
                ..
            }
        ));
        assert!(error.to_string().contains("20"), "{error}");
    }
}
