//! How sequences are cut into batches, and the comparison of backends over them.

use crate::net::{Net, Random, VOCAB};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, Batch, KvType, SeqSlice, SessionConfig};
use oxidize_core::graph::Rows;
use oxidize_core::kv::BlockId;
use oxidize_kernels::{Isa, Kernels};

/// Sequences, and the batches they come in.
pub(crate) struct Feed {
    pub(crate) config: SessionConfig,
    /// Tokens and blocks of each sequence.
    sequences: Vec<(Vec<u32>, Vec<BlockId>)>,
    /// For each batch, how many tokens of each sequence, and the outputs.
    batches: Vec<(Vec<usize>, Vec<u32>)>,
}

/// What sequences want of adapters: each from its own place on.
const STRENGTHS: [f32; 5] = [1.0, -0.5, 0.0, 2.0, 0.25];

impl Feed {
    /// One batch of one sequence.
    pub(crate) fn prompt(random: &mut Random, n_tokens: usize) -> Feed {
        Feed::new(random, &[n_tokens], |_, left| left)
    }

    /// A few sequences, side by side, in batches of up to 70 tokens.
    pub(crate) fn random(random: &mut Random) -> Feed {
        let lengths: Vec<usize> = (0..random.within(1..=4))
            .map(|_| random.within(1..=60))
            .collect();
        let mut largest = 70 / lengths.len();
        Feed::new(random, &lengths, |random, left| {
            largest = random.pick(&[1, 3, 70 / 4, largest]);
            random.within(0..=largest).min(left)
        })
    }

    /// Sequences whose prompts come at once, and then some tokens one by one.
    pub(crate) fn long(random: &mut Random, lengths: &[usize]) -> Feed {
        Feed::new(random, lengths, |_, left| {
            if left > 4 { left - 4 } else { left.min(1) }
        })
    }

    /// Whole sequences in one batch.
    pub(crate) fn whole(random: &mut Random, lengths: &[usize]) -> Feed {
        Feed::new(random, lengths, |_, left| left)
    }

    fn new(
        random: &mut Random,
        lengths: &[usize],
        mut take: impl FnMut(&mut Random, usize) -> usize,
    ) -> Feed {
        let mut batches = Vec::new();
        let mut left = lengths.to_vec();
        while left.iter().any(|&left| left > 0) {
            let parts: Vec<usize> = left.iter().map(|&left| take(random, left)).collect();
            let n: usize = parts.iter().sum();
            if n == 0 {
                continue;
            }
            left.iter_mut().zip(&parts).for_each(|(l, n)| *l -= n);
            let outputs: Vec<u32> = (0..n as u32).filter(|_| random.chance(0.6)).collect();
            batches.push((parts, outputs));
        }
        let block_size = random.pick(&[1, 4, 16, 32]);
        // Blocks in an odd order, one in three unused.
        let n_blocks: usize = lengths.iter().map(|n| n.div_ceil(block_size)).sum();
        let n_blocks = n_blocks + n_blocks / 2 + 1;
        let mut blocks: Vec<BlockId> = (0..n_blocks as u32).map(BlockId).collect();
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, random.within(0..=i));
        }
        let sequences = lengths
            .iter()
            .map(|&n| {
                let tokens = (0..n).map(|_| random.bits() as u32 % VOCAB as u32);
                let blocks = blocks.split_off(blocks.len() - n.div_ceil(block_size));
                (tokens.collect(), blocks)
            })
            .collect();
        let most_tokens = batches
            .iter()
            .map(|(parts, _)| parts.iter().sum::<usize>())
            .max();
        let most_outputs = batches.iter().map(|(_, outputs)| outputs.len()).max();
        Feed {
            config: SessionConfig {
                n_blocks,
                block_size,
                max_tokens: most_tokens.unwrap_or(1),
                max_outputs: most_outputs.unwrap_or(1),
                state_slots: lengths.len(),
                key_type: KvType::F32,
                value_type: KvType::F32,
                n_threads: Some(random.within(1..=3)),
                ..SessionConfig::for_context(lengths.iter().copied().max().unwrap_or(1))
            },
            sequences,
            batches,
        }
    }

    /// The results of all batches, one after the other.
    fn run(&self, net: &Net, backend: &dyn Backend) -> Vec<f32> {
        let mut session = backend
            .compile(&net.plan, &net.weights, &self.config)
            .unwrap();
        let rows = net.plan.value(net.plan.result.unwrap()).rows;
        let mut done = vec![0; self.sequences.len()];
        let mut results = Vec::new();
        for (parts, outputs) in &self.batches {
            let (mut tokens, mut positions, mut slices) = (Vec::new(), Vec::new(), Vec::new());
            for (i, &n) in parts.iter().enumerate().filter(|(_, n)| **n > 0) {
                let (all, blocks) = &self.sequences[i];
                tokens.extend_from_slice(&all[done[i]..done[i] + n]);
                positions.extend(done[i] as u32..(done[i] + n) as u32);
                slices.push(SeqSlice {
                    slot: i as u32,
                    n_tokens: n,
                    blocks,
                    adapters: STRENGTHS.get(i..).unwrap_or_default(),
                    // Of some sequences, what comes from their fourth token on.
                    second_text: (i % 2 == 0).then_some(3),
                });
                done[i] += n;
            }
            let batch = Batch {
                tokens: &tokens,
                positions: &positions,
                sequences: &slices,
                outputs,
            };
            session.run(&batch).unwrap();
            let n = match rows {
                Rows::Tokens => tokens.len(),
                Rows::Outputs => outputs.len(),
            };
            for i in 0..n {
                results.extend_from_slice(session.output(i).unwrap());
            }
        }
        results
    }
}

/// Runs a plan on the reference and on the CPU with every instruction set there is.
pub(crate) fn compare(net: &Net, feed: &Feed, bound: f64, what: &str) {
    let want = feed.run(net, &Reference);
    assert!(want.iter().all(|x| x.is_finite()), "{what}");
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
        let got = feed.run(net, &Cpu::with_kernels(kernels));
        assert_eq!(got.len(), want.len(), "{what}");
        let error = normalized_error(&got, &want);
        let isa = kernels.isa();
        assert!(
            error <= bound,
            "{isa}: error {error:e} over {bound:e}: {what}"
        );
    }
}

/// ‖got − want‖² ÷ ‖want‖².
fn normalized_error(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let differences = got
        .iter()
        .zip(want)
        .map(|(&a, &b)| f64::from(a) - f64::from(b));
    let error: f64 = differences.map(square).sum();
    let size: f64 = want.iter().map(|&x| square(f64::from(x))).sum();
    if error == 0.0 { 0.0 } else { error / size }
}
