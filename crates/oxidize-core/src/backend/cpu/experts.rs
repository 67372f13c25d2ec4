//! Mixtures of experts: the tokens of a batch are grouped by expert, so that the weights of an
//! expert are read once for all of its tokens, and not at all where it has none.

use super::pool::Matrix;
use super::run::{CpuSession, ExpertMatrix, Glu, activations, half_layer, observe};
use crate::backend::routing::route;
use crate::graph::{ExpertWeights, ExpertsOp, ValueId};
use oxidize_kernels::QuantizedRows;

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
                }
            };
            let (gate, up) = (spec.gate.map(matrix), matrix(spec.up));
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
            let down = matrix(spec.down);
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
