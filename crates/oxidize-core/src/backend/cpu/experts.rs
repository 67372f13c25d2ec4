//! Mixtures of experts. The tokens of a batch are grouped by expert, so that the weights of an expert are read once
//! for all of its tokens, and not at all if it has none.

use super::matmul::{AdapterProducts, Glu, MatrixRef, activations, gate_up, observe};
use super::pool::Matrix;
use super::session::CpuSession;
use crate::backend::Batch;
use crate::backend::routing::Router;
use crate::graph::{ExpertProjection, ExpertWeights, ExpertsOp, Routing, Rows, ValueId};
use crate::weights::Weights;
use oxidize_kernels::{Activations, Kernels, QuantizedRows, Scratch, TileMut};
use std::ops::Range;

/// Columns of the output of an expert that a thread computes at a time.
const PIECE_COLUMNS: usize = 64;

/// Working memory of the op. All buffers are reused.
#[derive(Default)]
pub(super) struct ExpertWork {
    routes: Routes,
    /// For each adapter of the op, its scale for each token.
    scales: Vec<f32>,
    input: Vec<f32>,
    hidden: Vec<f32>,
    output: Vec<f32>,
    /// For each adapter of the op, its low-rank activations for the tokens of an expert.
    low: Vec<Vec<f32>>,
    quantized_input: QuantizedRows,
    quantized_hidden: QuantizedRows,
}

/// The tokens of each expert.
#[derive(Default)]
struct Routes {
    router: Router,
    /// Token, expert and gate weight, by token.
    by_token: Vec<(usize, usize, f32)>,
    /// Token and gate weight, by expert.
    by_expert: Vec<(usize, f32)>,
    /// End of each expert's part of `by_expert`.
    ends: Vec<usize>,
}

impl Routes {
    /// Routes all tokens, by their rows of router logits.
    fn fill(&mut self, logits: &[f32], routing: &Routing, weights: &Weights) {
        self.by_token.clear();
        for (token, logits) in logits.chunks_exact(routing.n_experts).enumerate() {
            let chosen = self.router.route(logits, routing, weights).iter();
            let chosen = chosen.map(|&(expert, weight)| (token, expert, weight));
            self.by_token.extend(chosen);
        }
        // Counting sort: `ends` has the number of tokens of each expert, then the start and then the end of
        // its part.
        self.ends.clear();
        self.ends.resize(routing.n_experts, 0);
        for &(_, expert, _) in &self.by_token {
            self.ends[expert] += 1;
        }
        let mut start = 0;
        for end in &mut self.ends {
            start += std::mem::replace(end, start);
        }
        self.by_expert.clear();
        self.by_expert.resize(self.by_token.len(), (0, 0.0));
        for &(token, expert, weight) in &self.by_token {
            self.by_expert[self.ends[expert]] = (token, weight);
            self.ends[expert] += 1;
        }
    }

    /// Experts that have tokens, each with its tokens and their gate weights.
    fn iter(&self) -> impl Iterator<Item = (usize, &[(usize, f32)])> {
        let start = |expert: usize| expert.checked_sub(1).map_or(0, |before| self.ends[before]);
        let part = move |(expert, &end): (usize, &usize)| {
            let tokens: Range<usize> = start(expert)..end;
            (expert, &self.by_expert[tokens])
        };
        let parts = self.ends.iter().enumerate().map(part);
        parts.filter(|(_, tokens)| !tokens.is_empty())
    }
}

impl CpuSession {
    pub(super) fn run_experts(
        &mut self,
        spec: &ExpertsOp,
        x: ValueId,
        router: ValueId,
        out: ValueId,
        batch: &Batch<'_>,
    ) {
        let (routing, policy) = (&spec.routing, self.activation_policy());
        let mut work = std::mem::take(&mut self.experts);
        let weights = self.weights.clone();
        let ExpertWork {
            routes,
            scales,
            input,
            hidden,
            output,
            low,
            quantized_input,
            quantized_hidden,
        } = &mut work;
        routes.fill(self.buffers.get(router), routing, &weights);
        scales.clear();
        for adapter in &spec.adapters {
            scales.extend(batch.scales(Rows::Tokens, adapter.adapter));
        }
        low.resize_with(spec.adapters.len().max(low.len()), Vec::new);

        let (up, down) = (weights.get(spec.up.weight), weights.get(spec.down.weight));
        let (width, n_ff) = (up.cols, up.rows);
        let mut taken = self.buffers.take(out);
        taken.rows().fill(0.0);
        let x = self.buffers.get(x);
        for (expert, tokens) in routes.iter() {
            let (kernels, pool, workers) = (self.kernels, &self.pool, &mut self.workers);
            input.clear();
            for &(token, weight) in tokens {
                let start = input.len();
                input.extend_from_slice(&x[token * width..(token + 1) * width]);
                if routing.apply_router_weight_on_input {
                    kernels.scale(&mut input[start..], weight);
                }
            }
            hidden.resize((tokens.len() * n_ff).max(hidden.len()), 0.0);
            let hidden = &mut hidden[..tokens.len() * n_ff];
            let adapters = ExpertAdapters {
                kernels,
                weights: &weights,
                spec,
                scales,
                expert,
                tokens,
            };
            let matrix = |stack: ExpertWeights| {
                let weight = weights.get(stack.weight);
                let bias = stack.bias.map(|id| {
                    let all = weights.get(id).as_f32();
                    &all[expert * weight.rows..(expert + 1) * weight.rows]
                });
                MatrixRef {
                    weight,
                    bias,
                    expert,
                    adapters: None,
                }
            };
            let halves = [ExpertProjection::Gate, ExpertProjection::Up];
            adapters.compute_low(&halves, input, low, &mut workers[0].scratch);
            let gate = spec.gate.map(|gate| MatrixRef {
                adapters: adapters.products(ExpertProjection::Gate, low),
                ..matrix(gate)
            });
            let up = MatrixRef {
                adapters: adapters.products(ExpertProjection::Up, low),
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
                policy,
            );
            let glu = Glu {
                activation: spec.activation,
                limit: spec.glu_limit,
            };
            let product = Matrix {
                data: &mut *hidden,
                cols: n_ff,
            };
            gate_up(kernels, pool, workers, gate, up, glu, &acts, product);

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
                policy,
            );
            let scratch = &mut workers[0].scratch;
            adapters.compute_low(&[ExpertProjection::Down], hidden, low, scratch);
            let down = MatrixRef {
                adapters: adapters.products(ExpertProjection::Down, low),
                ..matrix(spec.down)
            };
            observe(&self.config, [&down].into_iter(), hidden);
            let mut matrices = [Matrix {
                data: output,
                cols: width,
            }];
            pool.columns(
                &mut matrices,
                PIECE_COLUMNS,
                workers,
                |_, rows, out, worker| {
                    down.multiply(kernels, rows, &acts, out, &mut worker.scratch);
                },
            );
            for (&(token, weight), output) in tokens.iter().zip(output.chunks_exact(width)) {
                let weight = if routing.apply_router_weight_on_input {
                    1.0
                } else {
                    weight
                };
                let out = &mut taken.rows()[token * width..(token + 1) * width];
                kernels.add_scaled(out, output, weight);
            }
        }
        self.buffers.put(taken);
        self.experts = work;
    }
}

/// The adapters of an expert and its tokens.
#[derive(Clone, Copy)]
struct ExpertAdapters<'a> {
    kernels: &'a Kernels,
    weights: &'a Weights,
    spec: &'a ExpertsOp,
    /// See [`ExpertWork::scales`].
    scales: &'a [f32],
    expert: usize,
    tokens: &'a [(usize, f32)],
}

impl<'a> ExpertAdapters<'a> {
    /// Computes `factor · scale · down · input` for each adapter of these matrices.
    fn compute_low(
        self,
        halves: &[ExpertProjection],
        input: &[f32],
        low: &mut [Vec<f32>],
        scratch: &mut Scratch,
    ) {
        let n_tokens = self.scales.len() / self.spec.adapters.len().max(1);
        let adapters = self.spec.adapters.iter().zip(low).enumerate();
        for (index, (adapter, low)) in adapters {
            if !halves.contains(&adapter.projection) {
                continue;
            }
            let down = MatrixRef {
                weight: self.weights.get(adapter.down),
                bias: None,
                expert: self.expert,
                adapters: None,
            };
            let rank = down.weight.rows;
            low.resize(self.tokens.len() * rank, 0.0);
            let acts = Activations::floats(input, down.weight.cols);
            let out = TileMut::new(low, rank);
            down.multiply(self.kernels, 0..rank, &acts, out, scratch);
            let scales = &self.scales[index * n_tokens..(index + 1) * n_tokens];
            for (row, (token, _)) in low.chunks_exact_mut(rank).zip(self.tokens) {
                self.kernels.scale(row, adapter.factor * scales[*token]);
            }
        }
    }

    /// The products that the adapters of a matrix add; `None` without adapters.
    fn products(
        self,
        projection: ExpertProjection,
        low: &'a [Vec<f32>],
    ) -> Option<AdapterProducts<'a>> {
        let adapters = &self.spec.adapters;
        (!adapters.is_empty()).then_some(AdapterProducts {
            weights: self.weights,
            adapters,
            projection,
            low,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Gating;

    #[test]
    fn tokens_are_grouped_by_expert() {
        let routing = Routing {
            n_experts: 4,
            n_expert_used: 2,
            gating: Gating::SoftmaxChosen,
            selection_bias: None,
            groups: None,
            renormalize: false,
            scale: 1.0,
            expert_scale: None,
            apply_router_weight_on_input: false,
        };
        let logits = [
            [0.0, 5.0, 1.0, 4.0],
            [9.0, 1.0, 2.0, 8.0],
            [1.0, 3.0, 0.0, 3.0],
        ];
        let mut routes = Routes::default();
        // A second time, over what the first has left.
        for _ in 0..2 {
            routes.fill(logits.as_flattened(), &routing, &Weights::default());
            let tokens = routes.iter().map(|(expert, tokens)| {
                let tokens: Vec<usize> = tokens.iter().map(|&(token, _)| token).collect();
                (expert, tokens)
            });
            let expected = [(0, vec![1]), (1, vec![0, 2]), (3, vec![0, 1, 2])];
            assert_eq!(tokens.collect::<Vec<_>>(), expected);
        }
    }
}
