//! Products with weights: projections that share an input, gated linear units with the product of their halves,
//! and the matrices of heads. [`super::experts`] uses the same functions for the matrices of experts.

use super::lower::{Linear, Projection};
use super::pool::{MAX_MATRICES, Matrix, Pool};
use super::row_ops::serial_rows;
use super::session::{CpuSession, Worker};
use crate::backend::{Observation, SessionConfig};
use crate::graph::{ExpertAdapter, ExpertProjection, ValueId, WeightId};
use crate::weights::{Weight, Weights};
use oxidize_kernels::quant::TensorType;
use oxidize_kernels::{
    Activation, ActivationFormat, ActivationQuant, Activations, Epilogue, Kernels, QuantizedRows,
    Scratch, TileMut, WeightRows,
};

/// Bytes of weights in a piece of work: a few microseconds of memory traffic.
const PIECE_BYTES: usize = 1 << 16;
/// Weight rows that kernels process together.
const PIECE_ROWS: usize = 32;

impl CpuSession {
    pub(super) fn activation_policy(&self) -> ActivationPolicy {
        ActivationPolicy {
            batch_invariant: self.batch_invariant,
            f32_products: self.f32_products,
            activations: self.config.activations,
        }
    }

    pub(super) fn project(&mut self, x: ValueId, parts: &[Projection]) {
        let weights = self.weights.clone();
        let mut taken: [_; MAX_MATRICES] =
            std::array::from_fn(|i| parts.get(i).map(|part| self.buffers.take(part.out)));
        let list: [Option<MatrixRef<'_>>; MAX_MATRICES] =
            std::array::from_fn(|i| parts.get(i).map(|part| matrix_of(&weights, &part.linear)));
        for (part, taken) in parts.iter().zip(taken.iter_mut().flatten()) {
            // The residual has another buffer if it is used again later.
            if let Some(source) = part.residual.and_then(|r| self.buffers.source(r, part.out)) {
                taken.rows().copy_from_slice(source);
            }
        }
        let types = list.map(|matrix| matrix.map(|matrix| matrix.weight.ty));
        let input = self.buffers.get(x);
        observe(&self.config, list.iter().flatten(), input);
        let policy = self.activation_policy();
        let acts = activations(
            self.kernels,
            &self.pool,
            &mut self.workers,
            &mut self.quantized,
            input,
            self.buffers.width(x),
            types.into_iter().flatten(),
            policy,
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
                let Some(MatrixRef { weight, bias, .. }) = list[index] else {
                    return;
                };
                let epilogue = Epilogue {
                    bias: bias.map(|bias| &bias[rows.clone()]),
                    accumulate: parts[index].residual.is_some(),
                };
                let rows = weight_rows(weight, 0).slice(rows);
                kernels.matmul(rows, &acts, epilogue, out, &mut worker.scratch);
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
        let (gate, up) = (matrix_of(&weights, gate), matrix_of(&weights, up));
        let mut taken = self.buffers.take(out);
        let input = self.buffers.get(x);
        observe(&self.config, [gate, up].iter(), input);
        let types = [gate, up].map(|matrix| Some(matrix.weight.ty));
        let policy = self.activation_policy();
        let acts = activations(
            self.kernels,
            &self.pool,
            &mut self.workers,
            &mut self.quantized,
            input,
            self.buffers.width(x),
            types.into_iter().flatten(),
            policy,
        );
        let hidden = Matrix {
            data: taken.rows(),
            cols: gate.weight.rows,
        };
        let glu = Glu {
            activation,
            limit: None,
        };
        gate_up(
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

    /// Each head of `x` times its own matrix. A thread takes a head at a time.
    pub(super) fn head_linear(&mut self, x: ValueId, weight: WeightId, out: ValueId) {
        let weights = self.weights.clone();
        let weight = weights.get(weight);
        let (width, inputs) = (self.buffers.width(x), weight.cols);
        let mut taken = self.buffers.take(out);
        let (kernels, x) = (self.kernels, self.buffers.get(x));
        let (batch_invariant, policy) = (self.batch_invariant, self.activation_policy());
        let n_tokens = x.len() / width;
        // The inputs of all heads are one row.
        if let (Some(observer), true) = (&self.config.observer, width == inputs * weight.n_experts)
        {
            observer.observe(&Observation {
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
            let acts = match policy.format(kernels, [weight.ty], n_tokens) {
                Some(format) => {
                    quantized.resize(format, n_tokens, inputs);
                    kernels.quantize_activations(floats, quantized.rows_mut());
                    Activations::new(floats, quantized)
                }
                None => Activations::floats(floats, inputs),
            };
            let acts = acts.batch_invariant(batch_invariant);
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

/// The quantization of activations in a batch.
#[derive(Clone, Copy)]
pub(super) struct ActivationPolicy {
    batch_invariant: bool,
    f32_products: bool,
    activations: ActivationQuant,
}

impl ActivationPolicy {
    /// The format of the input of weights of these types; `None` for f32.
    fn format(
        self,
        kernels: &Kernels,
        types: impl IntoIterator<Item = TensorType>,
        n_tokens: usize,
    ) -> Option<ActivationFormat> {
        // For a single token, 16-bit float weights take their input as f32.
        let as_one_token = self.batch_invariant || self.f32_products;
        kernels.activation_format(
            types,
            if as_one_token { 1 } else { n_tokens },
            self.activations,
        )
    }
}

/// Passes the input of matrices to the observer, if there is one.
pub(super) fn observe<'m>(
    config: &SessionConfig,
    matrices: impl Iterator<Item = &'m MatrixRef<'m>>,
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
        // Parts of one tensor of the file have the same name.
        if !names.contains(&matrix.weight.name.as_str()) {
            names.push(&matrix.weight.name);
        }
    }
    observer.observe(&Observation {
        weights: &names,
        expert,
        n_experts,
        rows,
        width,
    });
}

/// A matrix, or one matrix of a stack, with its bias and adapters.
#[derive(Clone, Copy)]
pub(super) struct MatrixRef<'a> {
    pub(super) weight: &'a Weight,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) expert: usize,
    pub(super) adapters: Option<AdapterProducts<'a>>,
}

/// The low-rank products that adapters add to those of an expert's matrix: `up · low` for each adapter.
#[derive(Clone, Copy)]
pub(super) struct AdapterProducts<'a> {
    pub(super) weights: &'a Weights,
    pub(super) adapters: &'a [ExpertAdapter],
    /// The matrix of the expert.
    pub(super) projection: ExpertProjection,
    /// For each of `adapters`, its low-rank activations, row by row.
    pub(super) low: &'a [Vec<f32>],
}

impl<'a> AdapterProducts<'a> {
    /// The `up` matrix and the low-rank activations of each adapter of the matrix.
    fn iter(self) -> impl Iterator<Item = (&'a Weight, &'a [f32])> {
        let adapters = self.adapters.iter().zip(self.low);
        let of_projection =
            adapters.filter(move |(adapter, _)| adapter.projection == self.projection);
        of_projection.map(move |(adapter, low)| (self.weights.get(adapter.up), low.as_slice()))
    }
}

impl MatrixRef<'_> {
    /// `out = rows of the matrix · acts + bias`, and the products of the adapters.
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
        for (up, low) in self.adapters.into_iter().flat_map(AdapterProducts::iter) {
            let epilogue = Epilogue {
                bias: None,
                accumulate: true,
            };
            let low = Activations::floats(low, up.cols);
            let matrix = weight_rows(up, self.expert).slice(rows.clone());
            kernels.matmul(matrix, &low, epilogue, out.reborrow(), scratch);
        }
    }
}

/// The function of a gated linear unit.
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
pub(super) fn gate_up(
    kernels: &Kernels,
    pool: &Pool,
    workers: &mut [Worker],
    gate: Option<MatrixRef<'_>>,
    up: MatrixRef<'_>,
    glu: Glu,
    acts: &Activations<'_>,
    out: Matrix<'_>,
) {
    // A piece reads rows of both matrices, so it has half as many.
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

/// The input of projections with weights of these types, quantized on all threads if their kernels need it.
pub(super) fn activations<'a>(
    kernels: &Kernels,
    pool: &Pool,
    workers: &mut [Worker],
    quantized: &'a mut QuantizedRows,
    floats: &'a [f32],
    k: usize,
    types: impl IntoIterator<Item = TensorType>,
    policy: ActivationPolicy,
) -> Activations<'a> {
    let (n_tokens, batch_invariant) = (floats.len() / k, policy.batch_invariant);
    let Some(format) = policy.format(kernels, types, n_tokens) else {
        return Activations::floats(floats, k).batch_invariant(batch_invariant);
    };
    quantized.resize(format, n_tokens, k);
    pool.quantize(kernels, floats, quantized, serial_rows(k), workers);
    Activations::new(floats, quantized).batch_invariant(batch_invariant)
}

/// Rows of a weight in one piece of work: few enough to balance threads, and enough to stream.
fn piece_rows(weight: &Weight, n_threads: usize) -> usize {
    let by_bytes = PIECE_BYTES / weight.row_bytes().max(1);
    let by_share = weight.rows / (4 * n_threads);
    by_bytes
        .min(by_share)
        .next_multiple_of(PIECE_ROWS)
        .max(PIECE_ROWS)
}

fn matrix_of<'a>(weights: &'a Weights, linear: &Linear) -> MatrixRef<'a> {
    MatrixRef {
        weight: weights.get(linear.weight),
        bias: linear.bias.map(|id| weights.get(id).as_f32()),
        expert: 0,
        adapters: None,
    }
}

/// One matrix of a weight, as the argument of a kernel.
pub(super) fn weight_rows(weight: &Weight, expert: usize) -> WeightRows<'_> {
    WeightRows::new(weight.ty, weight.cols, weight.expert(expert))
        .unwrap_or_else(|| unreachable!("{}: the loader has checked the shape", weight.name))
}
