//! Products with weights: projections of one input together, gated halves with what follows them, heads
//! by themselves. [`super::experts`] uses the same pieces for the matrices of experts.

use super::lower::{Linear, Projection};
use super::pool::{MAX_MATRICES, Matrix, Pool};
use super::run::{CpuSession, Worker, serial_rows};
use crate::backend::{Observation, SessionConfig};
use crate::graph::{ValueId, WeightId};
use crate::model::{Weight, Weights};
use oxidize_kernels::quant::TensorType;
use oxidize_kernels::{
    Activation, ActivationRounding, Activations, Epilogue, Kernels, Precision, QuantizedRows,
    Scratch, TileMut, WeightRows,
};

/// Bytes of weights in a piece of a projection: a few microseconds of memory traffic.
const PIECE_BYTES: usize = 1 << 16;
/// Rows of a weight that the kernels like to get together.
const PIECE_ROWS: usize = 32;

impl CpuSession {
    pub(super) fn rounding(&self) -> Rounding {
        Rounding {
            each_alone: self.each_alone,
            exact: self.exact,
            activations: self.config.activations,
        }
    }

    pub(super) fn project(&mut self, x: ValueId, parts: &[Projection]) {
        let weights = self.weights.clone();
        let mut taken: [_; MAX_MATRICES] =
            std::array::from_fn(|i| parts.get(i).map(|part| self.buffers.take(part.out)));
        let list: [Option<ExpertMatrix<'_>>; MAX_MATRICES] =
            std::array::from_fn(|i| parts.get(i).map(|part| resolve(&weights, &part.linear)));
        for (part, taken) in parts.iter().zip(taken.iter_mut().flatten()) {
            // The residual may still be elsewhere, if something else needs it later.
            if let Some(source) = part.residual.and_then(|r| self.buffers.source(r, part.out)) {
                taken.rows().copy_from_slice(source);
            }
        }
        let types = list.map(|matrix| matrix.map(|matrix| matrix.weight.ty));
        let input = self.buffers.get(x);
        observe(&self.config, list.iter().flatten(), input);
        let rounding = self.rounding();
        let acts = activations(
            self.kernels,
            &self.pool,
            &mut self.workers,
            &mut self.quantized,
            input,
            self.buffers.width(x),
            types.into_iter().flatten(),
            rounding,
        );
        let chunk = list
            .iter()
            .flatten()
            .map(|matrix| piece_rows(matrix.weight, self.pool.n_threads()))
            .min();
        let kernels = self.kernels;
        let mut outputs = taken
            .iter_mut()
            .flatten()
            .zip(parts)
            .map(|(taken, part)| Matrix {
                data: taken.rows(),
                cols: weights.get(part.linear.weight).rows,
            });
        let mut matrices: [Matrix<'_>; MAX_MATRICES] = std::array::from_fn(|_| {
            outputs.next().unwrap_or(Matrix {
                data: &mut [],
                cols: 1,
            })
        });
        self.pool.columns(
            &mut matrices[..parts.len()],
            chunk.unwrap_or(PIECE_ROWS),
            &mut self.workers,
            |index, rows, out, worker| {
                let Some(ExpertMatrix { weight, bias, .. }) = list[index] else {
                    return;
                };
                let bias = bias.map(|bias| &bias[rows.clone()]);
                let epilogue = Epilogue {
                    bias,
                    accumulate: parts[index].residual.is_some(),
                };
                kernels.matmul(
                    weight_rows(weight, 0).slice(rows),
                    &acts,
                    epilogue,
                    out,
                    &mut worker.scratch,
                );
            },
        );
        taken
            .into_iter()
            .flatten()
            .for_each(|taken| self.buffers.put(taken));
    }

    pub(super) fn gated_project(
        &mut self,
        x: ValueId,
        gate: &Linear,
        up: &Linear,
        activation: Activation,
        out: ValueId,
    ) {
        let weights = self.weights.clone();
        let (gate, up) = (resolve(&weights, gate), resolve(&weights, up));
        let mut taken = self.buffers.take(out);
        let input = self.buffers.get(x);
        observe(&self.config, [gate, up].iter(), input);
        let types = [gate, up].map(|matrix| Some(matrix.weight.ty));
        let rounding = self.rounding();
        let acts = activations(
            self.kernels,
            &self.pool,
            &mut self.workers,
            &mut self.quantized,
            input,
            self.buffers.width(x),
            types.into_iter().flatten(),
            rounding,
        );
        let hidden = Matrix {
            data: taken.rows(),
            cols: gate.weight.rows,
        };
        let glu = Glu {
            activation,
            limit: None,
        };
        half_layer(
            self.kernels,
            &self.pool,
            &mut self.workers,
            Some(gate),
            up,
            glu,
            &acts,
            hidden,
        );
        self.buffers.put(taken);
    }

    /// Each head on a thread of its own: gathered, multiplied, put back.
    pub(super) fn head_linear(&mut self, x: ValueId, weight: WeightId, out: ValueId) {
        let weights = self.weights.clone();
        let weight = weights.get(weight);
        let (width, inputs) = (self.buffers.width(x), weight.cols);
        let mut taken = self.buffers.take(out);
        let (kernels, x) = (self.kernels, self.buffers.get(x));
        let (each_alone, rounding) = (self.each_alone, self.rounding());
        let n_tokens = x.len() / width;
        // The heads' inputs lie beside each other: one row for all of them.
        if let (Some(observer), true) = (&self.config.observer, width == inputs * weight.n_experts)
        {
            observer.look(&Observation {
                weights: &[&weight.name],
                expert: 0,
                n_experts: 1,
                rows: x,
                width,
            });
        }
        let cols = weight.rows * weight.n_experts;
        let data = taken.rows();
        let body = |_: usize, head: usize, out: TileMut<'_>, worker: &mut Worker| {
            let Worker {
                scratch,
                floats,
                quantized,
            } = worker;
            floats.clear();
            for token in x.chunks_exact(width) {
                floats.extend_from_slice(&token[head * inputs..(head + 1) * inputs]);
            }
            let acts = match rounding.precision(kernels, [weight.ty], n_tokens) {
                Some(precision) => {
                    quantized.resize(precision, n_tokens, inputs);
                    kernels.quantize_rows(floats, quantized.rows_mut());
                    Activations::new(floats, quantized)
                }
                None => Activations::floats(floats, inputs),
            };
            let acts = acts.each_alone(each_alone);
            let rows = weight_rows(weight, head);
            kernels.matmul(rows, &acts, Epilogue::STORE, out, scratch);
        };
        let rows = 0..n_tokens;
        self.pool.grid(
            Matrix { data, cols },
            &[rows],
            weight.rows,
            &mut self.workers,
            body,
        );
        self.buffers.put(taken);
    }
}

/// How the input of products may be rounded.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    each_alone: bool,
    exact: bool,
    activations: ActivationRounding,
}

impl Rounding {
    /// What weights of these types want their input as, if not as floats.
    fn precision(
        self,
        kernels: &Kernels,
        types: impl IntoIterator<Item = TensorType>,
        n_tokens: usize,
    ) -> Option<Precision> {
        // A few tokens always meet floats as they are.
        let few = self.each_alone || self.exact;
        kernels.precision(types, if few { 1 } else { n_tokens }, self.activations)
    }
}

/// Shows the input of some matrices to whoever wants to see it.
pub(super) fn observe<'m>(
    config: &SessionConfig,
    matrices: impl Iterator<Item = &'m ExpertMatrix<'m>>,
    rows: &[f32],
) {
    let Some(observer) = &config.observer else {
        return;
    };
    let mut names: Vec<&str> = Vec::new();
    let (mut expert, mut n_experts, mut width) = (0, 1, 1);
    for matrix in matrices {
        (expert, n_experts) = (matrix.expert, matrix.weight.n_experts);
        width = matrix.weight.cols;
        // Parts of one matrix of the file have its name.
        if !names.contains(&matrix.weight.name.as_str()) {
            names.push(&matrix.weight.name);
        }
    }
    observer.look(&Observation {
        weights: &names,
        expert,
        n_experts,
        rows,
        width,
    });
}

/// One matrix of a stack, or a matrix by itself, with its biases and what adapters add.
#[derive(Clone, Copy)]
pub(super) struct ExpertMatrix<'a> {
    pub(super) weight: &'a Weight,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) expert: usize,
    pub(super) added: &'a [LowRank<'a>],
}

/// What an adapter adds to the products of an expert's matrix: `up · low`.
pub(super) struct LowRank<'a> {
    pub(super) up: &'a Weight,
    pub(super) low: Activations<'a>,
}

impl ExpertMatrix<'_> {
    /// `out = rows of the matrix · acts + bias`.
    pub(super) fn multiply(
        &self,
        kernels: &Kernels,
        rows: std::ops::Range<usize>,
        acts: &Activations<'_>,
        mut out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        let bias = self.bias.map(|bias| &bias[rows.clone()]);
        let epilogue = Epilogue {
            bias,
            accumulate: false,
        };
        let matrix = weight_rows(self.weight, self.expert).slice(rows.clone());
        kernels.matmul(matrix, acts, epilogue, out.reborrow(), scratch);
        for LowRank { up, low } in self.added {
            let epilogue = Epilogue {
                bias: None,
                accumulate: true,
            };
            let matrix = weight_rows(up, self.expert).slice(rows.clone());
            kernels.matmul(matrix, low, epilogue, out.reborrow(), scratch);
        }
    }
}

/// How the halves of a gated unit meet.
#[derive(Clone, Copy)]
pub(super) struct Glu {
    pub(super) activation: Activation,
    pub(super) limit: Option<f32>,
}

impl Glu {
    fn apply(self, kernels: &Kernels, gate: &mut [f32], up: &mut [f32]) {
        if let Some(limit) = self.limit {
            gate.iter_mut().for_each(|x| *x = x.min(limit));
            up.iter_mut()
                .for_each(|x| *x = x.clamp(-limit, limit) + 1.0);
        }
        kernels.glu(self.activation, gate, up);
    }
}

/// `out = activation(gate · x) · (up · x)`, or `activation(up · x)` without a gate.
pub(super) fn half_layer(
    kernels: &Kernels,
    pool: &Pool,
    workers: &mut [Worker],
    gate: Option<ExpertMatrix<'_>>,
    up: ExpertMatrix<'_>,
    glu: Glu,
    acts: &Activations<'_>,
    out: Matrix<'_>,
) {
    // Both matrices are read for a piece, so it has half as many rows.
    let chunk = (piece_rows(up.weight, pool.n_threads()) / 2).next_multiple_of(PIECE_ROWS);
    pool.columns(&mut [out], chunk, workers, |_, rows, mut out, worker| {
        let width = rows.len();
        let Worker {
            scratch, floats, ..
        } = worker;
        let Some(gate) = gate else {
            up.multiply(kernels, rows, acts, out.reborrow(), scratch);
            for token in 0..acts.rows() {
                kernels.activate(glu.activation, out.row(token));
            }
            return;
        };
        floats.resize((acts.rows() * width).max(floats.len()), 0.0);
        let product = &mut floats[..acts.rows() * width];
        gate.multiply(kernels, rows.clone(), acts, out.reborrow(), scratch);
        up.multiply(kernels, rows, acts, TileMut::new(product, width), scratch);
        for (token, up) in product.chunks_exact_mut(width).enumerate() {
            glu.apply(kernels, out.row(token), up);
        }
    });
}

/// The input of projections by weights of these types, quantised on all threads if they want it so.
pub(super) fn activations<'a>(
    kernels: &Kernels,
    pool: &Pool,
    workers: &mut [Worker],
    quantized: &'a mut QuantizedRows,
    floats: &'a [f32],
    k: usize,
    types: impl IntoIterator<Item = TensorType>,
    rounding: Rounding,
) -> Activations<'a> {
    let (n_tokens, each_alone) = (floats.len() / k, rounding.each_alone);
    let Some(precision) = rounding.precision(kernels, types, n_tokens) else {
        return Activations::floats(floats, k).each_alone(each_alone);
    };
    quantized.resize(precision, n_tokens, k);
    pool.quantize(kernels, floats, quantized, serial_rows(k), workers);
    Activations::new(floats, quantized).each_alone(each_alone)
}

/// Rows of a weight in one piece of work: small enough to even out, large enough to stream.
fn piece_rows(weight: &Weight, n_threads: usize) -> usize {
    let by_bytes = PIECE_BYTES / weight.row_bytes().max(1);
    let by_share = weight.rows / (4 * n_threads);
    by_bytes
        .min(by_share)
        .next_multiple_of(PIECE_ROWS)
        .max(PIECE_ROWS)
}

fn resolve<'a>(weights: &'a Weights, linear: &Linear) -> ExpertMatrix<'a> {
    ExpertMatrix {
        weight: weights.get(linear.weight),
        bias: linear.bias.map(|id| weights.get(id).as_f32()),
        expert: 0,
        added: &[],
    }
}

/// One matrix of a weight, as the kernels take it.
pub(super) fn weight_rows(weight: &Weight, expert: usize) -> WeightRows<'_> {
    WeightRows::new(weight.ty, weight.cols, weight.expert(expert)).unwrap_or_else(|| {
        unreachable!("{}: its shape was checked when it was loaded", weight.name)
    })
}
