//! The operations of a plan. Each is plain data: what it reads, what it writes, its constants.
//!
//! A row is one token of the batch. Only the number of rows and the length of the context are
//! unknown when a plan is built; every width is a number here.

use super::{ValueId, WeightId};
pub use oxidize_kernels::{Activation, RopeLayout};

/// One step of a plan. `out` is always a new value; whether it shares memory with an input that is
/// no longer needed is the backend's business.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Looks up the batch's token ids: `out = table[token]`.
    Embed {
        /// One row a token of the vocabulary.
        table: WeightId,
        /// Tokens × width.
        out: ValueId,
    },
    /// The cosines and sines of the batch's positions, once for all layers that share them.
    RopeTable {
        /// How fast each pair of dimensions turns.
        frequencies: RopeFrequencies,
        /// Tokens × dims: the cosines of all pairs, then their sines.
        out: ValueId,
    },
    /// Normalises groups of `width` neighbouring elements.
    Norm {
        /// Which statistic is divided out.
        kind: NormKind,
        /// What is normalised.
        x: ValueId,
        /// Factor of each element of a group.
        weight: Option<WeightId>,
        /// Offset of each element of a group.
        bias: Option<WeightId>,
        /// Added to the variance.
        epsilon: f32,
        /// Elements in a group: the row for a layer norm, the head for a norm of q or k.
        width: usize,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = x · weightᵀ + bias`.
    Linear {
        /// Rows × inputs.
        x: ValueId,
        /// Outputs × inputs.
        weight: WeightId,
        /// One element an output.
        bias: Option<WeightId>,
        /// Rows × outputs.
        out: ValueId,
    },
    /// Turns each head of `x` by its position (rotary embedding).
    Rope {
        /// Tokens × (heads · head_dim).
        x: ValueId,
        /// From [`Op::RopeTable`].
        table: ValueId,
        /// Elements of one head; those past the table's width stay as they are.
        head_dim: usize,
        /// Which elements make a pair.
        layout: RopeLayout,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Writes keys and values of the batch into the cache of `layer`.
    StoreKv {
        /// Index into the session's caches.
        layer: usize,
        /// Tokens × (kv heads · key dim).
        k: ValueId,
        /// Tokens × (kv heads · value dim).
        v: ValueId,
    },
    /// Softmax attention of the queries over the cache of a layer.
    Attention {
        /// Tokens × (heads · key dim).
        q: ValueId,
        /// Everything else about it.
        spec: AttentionOp,
        /// Tokens × (heads · value dim).
        out: ValueId,
    },
    /// `out = activation(x)`.
    Activate {
        /// Input.
        x: ValueId,
        /// The function.
        activation: Activation,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = activation(gate) · up`: the gated linear unit.
    Glu {
        /// The half that goes through the activation.
        gate: ValueId,
        /// The half that does not.
        up: ValueId,
        /// The function.
        activation: Activation,
        /// Same shape as `gate`.
        out: ValueId,
    },
    /// `out = a + b`.
    Add {
        /// First term.
        a: ValueId,
        /// Second term.
        b: ValueId,
        /// Same shape as both.
        out: ValueId,
    },
    /// `out = factor · x`.
    Scale {
        /// Input.
        x: ValueId,
        /// The constant.
        factor: f32,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = cap · tanh(x / cap)`.
    Softcap {
        /// Input.
        x: ValueId,
        /// The bound.
        cap: f32,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// A sparse mixture of gated feed-forward experts.
    Experts {
        /// Tokens × width.
        x: ValueId,
        /// Tokens × experts: the router's logits.
        router: ValueId,
        /// How experts are chosen and weighed.
        spec: ExpertsOp,
        /// Tokens × width.
        out: ValueId,
    },
    /// Keeps the rows that the batch wants results for.
    SelectOutputs {
        /// Tokens × width.
        x: ValueId,
        /// Outputs × width.
        out: ValueId,
    },
}

/// The statistic that a norm divides out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Root of the mean square.
    Rms,
    /// Mean and standard deviation.
    Layer,
}

/// How fast each pair of a rotary embedding turns.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// Radians per position of each pair; scaling of the context is already in them.
    pub radians: Vec<f32>,
    /// Factor on cosines and sines (YaRN's attention temperature).
    pub magnitude: f32,
}

/// The constants of an attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionOp {
    /// Whose cache is read.
    pub layer: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// How many positions a query sees, itself included; all where `None`.
    pub window: Option<usize>,
    /// `cap · tanh(score / cap)` before the softmax.
    pub softcap: Option<f32>,
}

/// The constants of a mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsOp {
    /// Experts × hidden × width.
    pub gate: WeightId,
    /// Experts × hidden × width.
    pub up: WeightId,
    /// Experts × width × hidden.
    pub down: WeightId,
    /// How many there are.
    pub n_experts: usize,
    /// How many each token uses.
    pub n_used: usize,
    /// What turns logits into weights.
    pub gating: Gating,
    /// Whether the chosen weights are scaled to sum to one.
    pub renormalize: bool,
    /// The function of the gated half.
    pub activation: Activation,
}

/// How router logits become expert weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts, then the best are chosen.
    Softmax,
    /// A sigmoid each.
    Sigmoid,
}

impl Op {
    /// The values it reads.
    pub fn inputs(&self) -> Vec<ValueId> {
        match *self {
            Op::Embed { .. } | Op::RopeTable { .. } => vec![],
            Op::Norm { x, .. }
            | Op::Linear { x, .. }
            | Op::Activate { x, .. }
            | Op::Scale { x, .. }
            | Op::Softcap { x, .. }
            | Op::SelectOutputs { x, .. } => vec![x],
            Op::Rope { x, table, .. } => vec![x, table],
            Op::StoreKv { k, v, .. } => vec![k, v],
            Op::Attention { q, .. } => vec![q],
            Op::Glu { gate, up, .. } => vec![gate, up],
            Op::Add { a, b, .. } => vec![a, b],
            Op::Experts { x, router, .. } => vec![x, router],
        }
    }

    /// The value it writes, if it writes one.
    pub fn output(&self) -> Option<ValueId> {
        match *self {
            Op::StoreKv { .. } => None,
            Op::Embed { out, .. }
            | Op::RopeTable { out, .. }
            | Op::Norm { out, .. }
            | Op::Linear { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::Activate { out, .. }
            | Op::Glu { out, .. }
            | Op::Add { out, .. }
            | Op::Scale { out, .. }
            | Op::Softcap { out, .. }
            | Op::Experts { out, .. }
            | Op::SelectOutputs { out, .. } => Some(out),
        }
    }

    /// The weights it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::Embed { table, .. } => vec![*table],
            Op::Norm { weight, bias, .. } => [*weight, *bias].into_iter().flatten().collect(),
            Op::Linear { weight, bias, .. } => {
                [Some(*weight), *bias].into_iter().flatten().collect()
            }
            Op::Experts { spec, .. } => vec![spec.gate, spec.up, spec.down],
            _ => vec![],
        }
    }
}
