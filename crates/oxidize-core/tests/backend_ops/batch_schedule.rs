//! Random schedules of batches, and the comparison of backends over them.

use crate::net::{Net, Random, VOCAB};
use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::reference::Reference;
use oxidize_core::backend::{Backend, Batch, KvType, SeqSlice, SessionConfig};
use oxidize_core::graph::{Rows, Window};
use oxidize_core::kv::{BlockId, WindowGroup};
use oxidize_kernels::{Isa, Kernels};
use std::ops::Range;

/// Sequences, and their division into batches.
pub(crate) struct BatchSchedule {
    pub(crate) config: SessionConfig,
    /// Tokens and blocks of each sequence.
    sequences: Vec<(Vec<u32>, Vec<BlockId>)>,
    /// For each batch, the number of tokens of each sequence, and the outputs.
    batches: Vec<(Vec<usize>, Vec<u32>)>,
}

/// Scales of adapters. Each sequence uses those from its own index on.
const SCALES: [f32; 5] = [1.0, -0.5, 0.0, 2.0, 0.25];

impl BatchSchedule {
    /// One batch of one sequence.
    pub(crate) fn prompt(random: &mut Random, n_tokens: usize) -> BatchSchedule {
        BatchSchedule::new(random, &[n_tokens], |_, left| left)
    }

    /// A few sequences at the same time, in batches of up to 70 tokens.
    pub(crate) fn random(random: &mut Random) -> BatchSchedule {
        let lengths: Vec<usize> = (0..random.within(1..=4))
            .map(|_| random.within(1..=60))
            .collect();
        let mut largest = 70 / lengths.len();
        BatchSchedule::new(random, &lengths, |random, left| {
            largest = random.pick(&[1, 3, 70 / 4, largest]);
            random.within(0..=largest).min(left)
        })
    }

    /// Sequences of a prompt in one batch and some single tokens.
    pub(crate) fn long(random: &mut Random, lengths: &[usize]) -> BatchSchedule {
        BatchSchedule::new(random, lengths, |_, left| {
            if left > 4 { left - 4 } else { left.min(1) }
        })
    }

    /// Whole sequences in one batch.
    pub(crate) fn whole(random: &mut Random, lengths: &[usize]) -> BatchSchedule {
        BatchSchedule::new(random, lengths, |_, left| left)
    }

    fn new(
        random: &mut Random,
        lengths: &[usize],
        mut take: impl FnMut(&mut Random, usize) -> usize,
    ) -> BatchSchedule {
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
        // Blocks in random order, one in three unused.
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
        BatchSchedule {
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

    /// Runs all batches; returns their results, one after the other. Layers with one of `windows` have block
    /// tables of their own, without the positions behind the window.
    fn run(&self, net: &Net, backend: &dyn Backend, windows: &[Window]) -> Vec<f32> {
        let n_blocks = self.config.n_blocks as u32;
        let groups = windows
            .iter()
            .map(|&window| WindowGroup { window, n_blocks });
        let config = SessionConfig {
            windows: groups.collect(),
            ..self.config.clone()
        };
        let mut session = backend.compile(&net.plan, &net.weights, &config).unwrap();
        let tables = |&window: &Window| WindowTables {
            window,
            free: (0..n_blocks).map(BlockId).collect(),
            tables: vec![Vec::new(); self.sequences.len()],
        };
        let mut windows: Vec<WindowTables> = windows.iter().map(tables).collect();
        let rows = net.plan.value(net.plan.result.unwrap()).rows;
        let mut done = vec![0; self.sequences.len()];
        let mut results = Vec::new();
        for (parts, outputs) in &self.batches {
            let (mut tokens, mut positions, mut slices) = (Vec::new(), Vec::new(), Vec::new());
            let mut of_windows = vec![Vec::new(); parts.len()];
            for (i, &n) in parts.iter().enumerate().filter(|(_, n)| **n > 0) {
                for windows in &mut windows {
                    let table = windows.advance(i, done[i]..done[i] + n, config.block_size);
                    of_windows[i].extend_from_slice(table);
                }
            }
            for (i, &n) in parts.iter().enumerate().filter(|(_, n)| **n > 0) {
                let (all, blocks) = &self.sequences[i];
                let blocks = match windows.is_empty() {
                    true => blocks,
                    // As long as the tables of windows.
                    false => &blocks[..(done[i] + n).div_ceil(config.block_size)],
                };
                tokens.extend_from_slice(&all[done[i]..done[i] + n]);
                positions.extend(done[i] as u32..(done[i] + n) as u32);
                slices.push(SeqSlice {
                    slot: i as u32,
                    n_tokens: n,
                    blocks,
                    windows: &of_windows[i],
                    adapters: SCALES.get(i..).unwrap_or_default(),
                    // In some sequences the second text starts at the fourth token.
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

/// Blocks of layers with a window, for all sequences.
struct WindowTables {
    window: Window,
    free: Vec<BlockId>,
    tables: Vec<Vec<BlockId>>,
}

impl WindowTables {
    /// Table of a sequence for a batch of its tokens at `positions`. Blocks behind their windows are free for
    /// other positions from now on.
    fn advance(&mut self, i: usize, positions: Range<usize>, block_size: usize) -> &[BlockId] {
        let table = &mut self.tables[i];
        let first = self.window.first(positions.start) / block_size;
        for block in table.iter_mut().take(first) {
            if *block != BlockId::NONE {
                self.free.push(std::mem::replace(block, BlockId::NONE));
            }
        }
        while table.len() < positions.end.div_ceil(block_size) {
            table.push(self.free.pop().unwrap());
        }
        table
    }
}

/// Compares a plan on the CPU, with every instruction set of this machine, with the reference.
pub(crate) fn compare(net: &Net, schedule: &BatchSchedule, bound: f64, what: &str) {
    let expected = schedule.run(net, &Reference, &[]);
    assert!(expected.iter().all(|x| x.is_finite()), "{what}");
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
        let got = schedule.run(net, &Cpu::with_kernels(kernels), &[]);
        assert_eq!(got.len(), expected.len(), "{what}");
        let error = normalized_error(&got, &expected);
        let isa = kernels.isa();
        assert!(
            error <= bound,
            "{isa}: error {error:e} over {bound:e}: {what}"
        );
    }
    let mut windows: Vec<Window> = net.plan.cache_windows().into_iter().flatten().collect();
    windows.dedup();
    if !windows.is_empty() {
        let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
        let cpu = Cpu::with_kernels(kernels);
        let backends: [&dyn Backend; 2] = [&Reference, &cpu];
        for backend in backends {
            let [shared, own] = [&[][..], &windows].map(|w| schedule.run(net, backend, w));
            assert_eq!(shared, own, "{} with {windows:?}: {what}", backend.name());
        }
    }
}

/// ‖got − expected‖² ÷ ‖expected‖².
fn normalized_error(got: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let differences = got
        .iter()
        .zip(expected)
        .map(|(&a, &b)| f64::from(a) - f64::from(b));
    let error: f64 = differences.map(square).sum();
    let size: f64 = expected.iter().map(|&x| square(f64::from(x))).sum();
    if error == 0.0 { 0.0 } else { error / size }
}
