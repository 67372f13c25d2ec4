//! Mixtures of experts: the tokens of a batch are grouped by expert, so that the weights of an
//! expert are read once for all of its tokens, and not at all where it has none.

use super::pool::Matrix;
use super::run::{CpuSession, activations, gated, weight_rows};
use crate::backend::reference::route;
use crate::graph::{ExpertsOp, ValueId};
use oxidize_kernels::{Epilogue, QuantizedRows};

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
        let mut work = std::mem::take(&mut self.experts);
        work.routes.resize_with(spec.n_experts, Vec::new);
        work.routes.iter_mut().for_each(Vec::clear);
        for (token, logits) in self
            .buffers
            .get(router)
            .chunks_exact(spec.n_experts)
            .enumerate()
        {
            for (expert, weight) in route(logits, spec) {
                work.routes[expert].push((token, weight));
            }
        }
        let weights = self.weights.clone();
        let (gate, up, down) = (
            weights.get(spec.gate),
            weights.get(spec.up),
            weights.get(spec.down),
        );
        let (width, n_ff) = (gate.cols, gate.rows);
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
            input.clear();
            tokens
                .iter()
                .for_each(|&(t, _)| input.extend_from_slice(&x[t * width..(t + 1) * width]));
            hidden.resize((tokens.len() * n_ff).max(hidden.len()), 0.0);
            let hidden = &mut hidden[..tokens.len() * n_ff];
            let (kernels, pool, workers) = (self.kernels, &self.pool, &mut self.workers);
            let quantize = gate.ty.is_quantized() || up.ty.is_quantized();
            let acts = activations(
                kernels,
                pool,
                workers,
                quantized_input,
                input,
                width,
                quantize,
            );
            let matrix = Matrix {
                data: hidden,
                cols: n_ff,
            };
            gated(
                kernels,
                pool,
                workers,
                (gate, None),
                (up, None),
                expert,
                spec.activation,
                &acts,
                matrix,
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
                down.ty.is_quantized(),
            );
            let mut matrices = [Matrix {
                data: output,
                cols: width,
            }];
            pool.columns(&mut matrices, 64, workers, |_, rows, out, worker| {
                let rows = weight_rows(down, expert).slice(rows);
                kernels.matmul(rows, &acts, Epilogue::STORE, out, &mut worker.scratch);
            });
            for (&(token, weight), output) in tokens.iter().zip(output.chunks_exact(width)) {
                kernels.add_scaled(
                    &mut taken.rows()[token * width..(token + 1) * width],
                    output,
                    weight,
                );
            }
        }
        self.buffers.put(taken);
        self.experts = work;
    }
}
