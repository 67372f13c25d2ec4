//! Mixtures of experts: the tokens of a batch are grouped by expert, so that the weights of an
//! expert are read once for all of its tokens, and not at all where it has none.

use super::pool::Matrix;
use super::products::{ExpertMatrix, Glu, LowRank, activations, half_layer, observe};
use super::run::CpuSession;
use crate::backend::Batch;
use crate::backend::routing::route;
use crate::graph::{ExpertAdapter, ExpertHalf, ExpertWeights, ExpertsOp, Rows, ValueId, WeightId};
use crate::model::Weights;
use oxidize_kernels::{Activations, Kernels, QuantizedRows, Scratch, TileMut};

/// Buffers for the tokens of one expert.
#[derive(Default)]
pub(super) struct ExpertWork {
    /// For each expert, its tokens and their weights.
    routes: Vec<Vec<(usize, f32)>>,
    input: Vec<f32>,
    hidden: Vec<f32>,
    output: Vec<f32>,
    quantized_input: QuantizedRows,
    quantized_hidden: QuantizedRows,
}

impl CpuSession {
    pub(super) fn mix_experts(
        &mut self,
        spec: &ExpertsOp,
        x: ValueId,
        router: ValueId,
        out: ValueId,
        batch: &Batch<'_>,
    ) {
        let (routing, rounding) = (&spec.routing, self.rounding());
        let mut work = std::mem::take(&mut self.experts);
        work.routes.resize_with(routing.n_experts, Vec::new);
        work.routes.iter_mut().for_each(Vec::clear);
        let weights = self.weights.clone();
        let logits = self.buffers.get(router).chunks_exact(routing.n_experts);
        for (token, logits) in logits.enumerate() {
            for (expert, weight) in route(logits, routing, &weights) {
                work.routes[expert].push((token, weight));
            }
        }
        let (up, down) = (weights.get(spec.up.weight), weights.get(spec.down.weight));
        let (width, n_ff) = (up.cols, up.rows);
        let mut taken = self.buffers.take(out);
        taken.rows().fill(0.0);
        let x = self.buffers.get(x);
        let strength = |adapter| batch.strengths(Rows::Tokens, adapter).collect();
        let strengths: Vec<Vec<f32>> = spec.adapters.iter().map(|a| strength(a.adapter)).collect();
        let ExpertWork {
            routes,
            input,
            hidden,
            output,
            quantized_input,
            quantized_hidden,
        } = &mut work;
        for (expert, tokens) in routes
            .iter()
            .enumerate()
            .filter(|(_, tokens)| !tokens.is_empty())
        {
            let (kernels, pool, workers) = (self.kernels, &self.pool, &mut self.workers);
            input.clear();
            for &(t, weight) in tokens {
                let start = input.len();
                input.extend_from_slice(&x[t * width..(t + 1) * width]);
                if routing.weigh_input {
                    kernels.scale(&mut input[start..], weight);
                }
            }
            hidden.resize((tokens.len() * n_ff).max(hidden.len()), 0.0);
            let hidden = &mut hidden[..tokens.len() * n_ff];
            let adapted = Adapted {
                kernels,
                weights: &weights,
                spec,
                strengths: &strengths,
                expert,
                tokens,
            };
            let scratch = &mut workers[0].scratch;
            let lows =
                [ExpertHalf::Gate, ExpertHalf::Up].map(|half| adapted.lows(half, input, scratch));
            let added = lows.each_ref().map(|lows| adapted.low_ranks(lows));
            let matrix = |stack: ExpertWeights| {
                let weight = weights.get(stack.weight);
                let bias = stack.bias.map(|id| {
                    let all = weights.get(id).as_f32();
                    &all[expert * weight.rows..(expert + 1) * weight.rows]
                });
                ExpertMatrix {
                    weight,
                    bias,
                    expert,
                    added: &[],
                }
            };
            let gate = spec.gate.map(|gate| ExpertMatrix {
                added: &added[0],
                ..matrix(gate)
            });
            let up = ExpertMatrix {
                added: &added[1],
                ..matrix(spec.up)
            };
            observe(&self.config, gate.iter().chain([&up]), input);
            let types = [Some(up), gate].map(|matrix| matrix.map(|matrix| matrix.weight.ty));
            let acts = activations(
                kernels,
                pool,
                workers,
                quantized_input,
                input,
                width,
                types.into_iter().flatten(),
                rounding,
            );
            let glu = Glu {
                activation: spec.activation,
                limit: spec.glu_limit,
            };
            let cols = n_ff;
            let data = &mut *hidden;
            half_layer(
                kernels,
                pool,
                workers,
                gate,
                up,
                glu,
                &acts,
                Matrix { data, cols },
            );

            output.resize((tokens.len() * width).max(output.len()), 0.0);
            let output = &mut output[..tokens.len() * width];
            let acts = activations(
                kernels,
                pool,
                workers,
                quantized_hidden,
                hidden,
                n_ff,
                [down.ty],
                rounding,
            );
            let lows = adapted.lows(ExpertHalf::Down, hidden, &mut workers[0].scratch);
            let added = adapted.low_ranks(&lows);
            let down = ExpertMatrix {
                added: &added,
                ..matrix(spec.down)
            };
            observe(&self.config, [&down].into_iter(), hidden);
            let mut matrices = [Matrix {
                data: output,
                cols: width,
            }];
            pool.columns(&mut matrices, 64, workers, |_, rows, out, worker| {
                down.multiply(kernels, rows, &acts, out, &mut worker.scratch);
            });
            for (&(token, weight), output) in tokens.iter().zip(output.chunks_exact(width)) {
                let weight = if routing.weigh_input { 1.0 } else { weight };
                let out = &mut taken.rows()[token * width..(token + 1) * width];
                kernels.add_scaled(out, output, weight);
            }
        }
        self.buffers.put(taken);
        self.experts = work;
    }
}

/// The tokens of one expert, and the adapters of its matrices.
struct Adapted<'a> {
    kernels: &'a Kernels,
    weights: &'a Weights,
    spec: &'a ExpertsOp,
    /// For each adapter, what each token of the batch wants of it.
    strengths: &'a [Vec<f32>],
    expert: usize,
    tokens: &'a [(usize, f32)],
}

impl Adapted<'_> {
    /// `factor · strength · down·input` for each adapter of a half, and the matrix that comes next.
    fn lows(
        &self,
        half: ExpertHalf,
        input: &[f32],
        scratch: &mut Scratch,
    ) -> Vec<(WeightId, Vec<f32>)> {
        let adapters = self.spec.adapters.iter().zip(self.strengths);
        let of_half = adapters.filter(|(adapter, _)| adapter.half == half);
        let low = |(adapter, strengths): (&ExpertAdapter, &Vec<f32>)| {
            let down = ExpertMatrix {
                weight: self.weights.get(adapter.down),
                bias: None,
                expert: self.expert,
                added: &[],
            };
            let rank = down.weight.rows;
            let mut low = vec![0.0; self.tokens.len() * rank];
            let acts = Activations::floats(input, down.weight.cols);
            let out = TileMut::new(&mut low, rank);
            down.multiply(self.kernels, 0..rank, &acts, out, scratch);
            for (row, (token, _)) in low.chunks_exact_mut(rank).zip(self.tokens) {
                self.kernels.scale(row, adapter.factor * strengths[*token]);
            }
            (adapter.up, low)
        };
        of_half.map(low).collect()
    }

    fn low_ranks<'l>(&'l self, lows: &'l [(WeightId, Vec<f32>)]) -> Vec<LowRank<'l>> {
        let low_rank = |(up, low): &'l (WeightId, Vec<f32>)| {
            let up = self.weights.get(*up);
            LowRank {
                up,
                low: Activations::floats(low, up.cols),
            }
        };
        lows.iter().map(low_rank).collect()
    }
}
