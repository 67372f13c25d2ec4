//! The operations of a plan. Each is plain data: what it reads, what it writes, its constants.
//!
//! A row is one token of the batch. Only the number of rows and the length of the context are
//! unknown when a plan is built; every width is a number here.

use super::rope::Rope;
use super::{ValueId, WeightId};
pub use oxidize_kernels::{Activation, RopeLayout};
use std::ops::Range;

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
    /// Looks up the batch's positions: `out = table[position + offset]` (learned positions).
    EmbedPosition {
        /// One row a position.
        table: WeightId,
        /// Rows of the table before position 0.
        offset: usize,
        /// Tokens × width.
        out: ValueId,
    },
    /// The cosines and sines of the batch's positions, once for all layers that share them.
    RopeTable {
        /// How fast each pair of dimensions turns.
        rope: Rope,
        /// Tokens × dims: the cosines of all pairs, then their sines.
        out: ValueId,
    },
    /// Normalises groups of `width` neighbouring elements.
    Norm {
        /// Which statistic is divided out.
        kind: NormKind,
        /// What is normalised.
        x: ValueId,
        /// Factor of each element of a group, or, where groups differ, of the whole row.
        weight: Option<WeightId>,
        /// Offset of each element, likewise.
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
    /// Each head of `x` times a matrix of its own: `out[h] = weight[h] · x[h]`.
    HeadLinear {
        /// Rows × (heads · inputs).
        x: ValueId,
        /// A stack of heads × outputs × inputs.
        weight: WeightId,
        /// Rows × (heads · outputs).
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
        /// Tokens × (kv heads · value dim); none where values are part of the keys.
        v: Option<ValueId>,
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
    /// The xIELU function (Huang & Schlag 2024), whose parameters are learned layer by layer.
    Xielu {
        /// Input.
        x: ValueId,
        /// Its parameters.
        spec: Xielu,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = max(x − (mean + deviations · σ), 0)` over each row (Gemma 3n's sparse activations).
    Sparsify {
        /// Input.
        x: ValueId,
        /// Where the threshold lies, in standard deviations above the mean.
        deviations: f32,
        /// Whether the variance is the sum of squares over n − 1, not over n.
        unbiased: bool,
        /// Same shape as `x`.
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
    /// `out = x + weight`, the same for every row.
    AddVector {
        /// Input.
        x: ValueId,
        /// One term an element of a row.
        weight: WeightId,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = x + table[segment]`: which of two texts a token is of, the first or the second of a
    /// pair (BERT).
    AddSegment {
        /// Input.
        x: ValueId,
        /// Two rows, one after the other, as a vector.
        table: WeightId,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = a · b`, where each element of `b` multiplies as many neighbours of `a` as there are
    /// for one of it.
    Mul {
        /// First factor.
        a: ValueId,
        /// Second factor; its width divides that of `a`.
        b: ValueId,
        /// Same shape as `a`.
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
    /// `out = factor · strength · x`, where the strength is what the row's sequence wants of an
    /// adapter.
    AdapterScale {
        /// Input.
        x: ValueId,
        /// Which adapter: an index into [`crate::backend::SeqSlice::adapters`].
        adapter: usize,
        /// The constant of the adapter.
        factor: f32,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = x · weight`, element by element.
    ScaleBy {
        /// Input.
        x: ValueId,
        /// One factor an element of a row.
        weight: WeightId,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = x · (1 + scale · ln(1 + ⌊(position + offset) / period⌋))`: sharper attention far out.
    Temperature {
        /// Input.
        x: ValueId,
        /// Its constants.
        spec: Temperature,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = min(max(x, −limit), limit)`.
    Clamp {
        /// Input.
        x: ValueId,
        /// The bound.
        limit: f32,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = Σᵢ weights[offset + i] · terms[i]`, with weights that differ from row to row.
    WeightedSum {
        /// What is added up; all of one shape.
        terms: Vec<ValueId>,
        /// Rows × at least `offset + terms` factors.
        weights: ValueId,
        /// The factor of the first term.
        offset: usize,
        /// Same shape as a term.
        out: ValueId,
    },
    /// `out = x · rms(like) / rms(x)`, row by row.
    MatchMagnitude {
        /// Input.
        x: ValueId,
        /// Whose root mean square the output has.
        like: ValueId,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Takes `start..start + len` out of each group of `group` neighbouring elements.
    Slice {
        /// Input.
        x: ValueId,
        /// Elements in a group.
        group: usize,
        /// The first that is kept.
        start: usize,
        /// How many are kept.
        len: usize,
        /// Rows × (groups · len).
        out: ValueId,
    },
    /// Joins the groups of two values: of each row, a group of `a`, then one of `b`, and so on.
    Concat {
        /// First parts.
        a: ValueId,
        /// Second parts.
        b: ValueId,
        /// Groups in a row of each.
        groups: usize,
        /// Rows × (width of `a` + width of `b`).
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
    /// Each channel convolved with its last tokens, which the sequence's state keeps.
    ShortConv {
        /// Tokens × channels.
        x: ValueId,
        /// Its constants.
        spec: ShortConvOp,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Mamba's scan: `S ← e^(dt·a)·S + dt·x·bᵀ`, `out = S·c + skip·x` for each head.
    SelectiveScan {
        /// Tokens × (heads · head dim).
        x: ValueId,
        /// Tokens × heads: how long a step a token is.
        dt: ValueId,
        /// Tokens × (groups · state): what of a token is written where.
        b: ValueId,
        /// Tokens × (groups · state): what is read.
        c: ValueId,
        /// Its constants.
        spec: SelectiveScanOp,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Attention without softmax: each head keeps a matrix from keys to values, which decays and is
    /// written to and read by each token.
    LinearAttention {
        /// Tokens × (key heads · key dim).
        q: ValueId,
        /// Tokens × (key heads · key dim).
        k: ValueId,
        /// Tokens × (heads · value dim).
        v: ValueId,
        /// What is left of a head's matrix, or of its rows: tokens × heads (· key dim).
        decay: ValueId,
        /// Everything else about it.
        spec: LinearAttentionOp,
        /// Same shape as `v`.
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
    /// Which positions of its sequence a query sees.
    pub sees: Sees,
    /// How far of them; all where `None`.
    pub window: Option<Window>,
    /// `cap · tanh(score / cap)` before the softmax.
    pub softcap: Option<f32>,
    /// For each query head, the score of a sink that takes weight and gives nothing.
    pub sinks: Option<WeightId>,
    /// For each query head, what its score loses with each position of distance (ALiBi).
    pub slopes: Option<Vec<f32>>,
    /// For each query head, what is added to its scores of keys from so many positions before to so
    /// many after its own; farther ones have the bias of the end on their side (T5).
    pub relative: Option<WeightId>,
}

impl AttentionOp {
    /// The positions that are seen from `position`, in a sequence of which `end` positions are
    /// there and the first `encoded` were read by the encoder.
    pub fn visible(&self, position: usize, end: usize, encoded: usize) -> Range<usize> {
        let all = match self.sees {
            Sees::Past => 0..position + 1,
            Sees::All => 0..end,
            Sees::Encoded => return 0..encoded,
            Sees::Decoded => encoded..position + 1,
        };
        let Some(window) = self.window else {
            return all;
        };
        let last = window.last(position).saturating_add(1);
        all.start.max(window.first(position))..all.end.min(last)
    }
}

/// Which positions of its sequence a query sees, before a window narrows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Those up to its own.
    Past,
    /// All, before and after; the whole sequence must be in the batch.
    All,
    /// Those that the encoder has read.
    Encoded,
    /// Those up to its own that come after what the encoder has read.
    Decoded,
}

/// The constants of a [`Op::ShortConv`].
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvOp {
    /// Index into the session's states: the last `kernel − 1` rows, oldest first.
    pub state: usize,
    /// Tokens that a result is made of, its own included.
    pub kernel: usize,
    /// Kernel × channels: the factors of the oldest token, and so on.
    pub weight: WeightId,
    /// Added to each channel.
    pub bias: Option<WeightId>,
    /// What comes after.
    pub activation: Option<Activation>,
}

/// The constants of a [`Op::SelectiveScan`].
#[derive(Clone, Debug, PartialEq)]
pub struct SelectiveScanOp {
    /// Index into the session's states: head dim × state elements a head.
    pub state: usize,
    /// Heads, each of which has its own step.
    pub n_heads: usize,
    /// Elements of a head; one in the first Mamba.
    pub head_dim: usize,
    /// Heads share `b` and `c` in this many runs.
    pub n_groups: usize,
    /// Elements that are kept of each element of a head.
    pub n_state: usize,
    /// How fast the state decays, below zero: heads, or heads × state.
    pub a: WeightId,
    /// Factor of each head on its own input.
    pub skip: WeightId,
}

/// The constants of a [`Op::LinearAttention`]. `S` is the matrix of a head, from keys to values.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearAttentionOp {
    /// Index into the session's states: key dim × value dim elements a head.
    pub state: usize,
    /// Heads of values.
    pub n_heads: usize,
    /// Heads of queries and keys; divides `n_heads`.
    pub n_key_heads: usize,
    /// Which of them a head of values has.
    pub sharing: KeySharing,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// What a token does to the matrix.
    pub update: StateUpdate,
    /// RWKV 6: a token reads the matrix as it was before, and its own value by
    /// `Σ q · bonus · k`; heads × key dim.
    pub bonus: Option<WeightId>,
}

impl LinearAttentionOp {
    /// The key head of a head of values.
    pub fn key_head(&self, head: usize) -> usize {
        match self.sharing {
            KeySharing::Runs => head / (self.n_heads / self.n_key_heads),
            KeySharing::Turns => head % self.n_key_heads,
        }
    }
}

/// How heads of values share those of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySharing {
    /// Neighbours share one.
    Runs,
    /// They take turns.
    Turns,
}

/// What a token does to the matrix `S` of a head that has decayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateUpdate {
    /// `S + v·kᵀ`.
    Add,
    /// `S + beta·(v − S·k)·kᵀ`: what the key gave before is replaced (gated delta rule, Yang et al. 2024).
    Delta {
        /// Tokens × heads: how much of it.
        beta: ValueId,
    },
    /// `S + (Sₒ·remove)·addᵀ + v·kᵀ`, with `Sₒ` from before the decay (RWKV 7).
    Rewrite {
        /// Tokens × (heads · key dim).
        remove: ValueId,
        /// Tokens × (heads · key dim).
        add: ValueId,
    },
}

/// A bound on how far back a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// This many positions, the query's own included.
    Sliding(usize),
    /// Those of the same chunk: positions that share the quotient by this number.
    Chunk(usize),
    /// Its own and this many on either side.
    Around(usize),
}

impl Window {
    /// The first position that is seen from `position`.
    pub fn first(self, position: usize) -> usize {
        match self {
            Window::Sliding(n) => (position + 1).saturating_sub(n),
            Window::Chunk(n) => position / n.max(1) * n,
            Window::Around(n) => position.saturating_sub(n),
        }
    }

    /// The last position that may be seen from `position`.
    pub fn last(self, position: usize) -> usize {
        match self {
            Window::Sliding(_) | Window::Chunk(_) => position,
            Window::Around(n) => position.saturating_add(n),
        }
    }

    /// How many positions it spans at most.
    pub fn span(self) -> usize {
        match self {
            Window::Sliding(n) | Window::Chunk(n) => n,
            Window::Around(n) => n.saturating_mul(2).saturating_add(1),
        }
    }
}

/// How attention sharpens with distance from the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor on the logarithm.
    pub scale: f32,
    /// Positions over which the factor stays the same.
    pub period: f32,
    /// Added to positions.
    pub offset: f32,
}

impl Temperature {
    /// The factor on queries at `position`.
    pub fn at(&self, position: u32) -> f32 {
        let periods = ((position as f32 + self.offset) / self.period).floor();
        1.0 + self.scale * periods.ln_1p()
    }
}

/// The parameters of xIELU, as they enter the formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Curvature of the positive side.
    pub alpha_p: f32,
    /// Slope of the exponential on the negative side.
    pub alpha_n: f32,
    /// The linear part of both.
    pub beta: f32,
    /// Where the exponential is cut off below zero.
    pub epsilon: f32,
}

impl Xielu {
    /// From the parameters as they are trained and stored.
    pub fn from_stored(alpha_p: f32, alpha_n: f32, beta: f32, epsilon: f32) -> Xielu {
        let softplus = |x: f32| if x > 20.0 { x } else { x.exp().ln_1p() };
        Xielu {
            alpha_p: softplus(alpha_p),
            alpha_n: beta + softplus(alpha_n),
            beta,
            epsilon,
        }
    }

    /// The function at one point.
    pub fn apply(&self, x: f32) -> f32 {
        let curve = if x > 0.0 {
            self.alpha_p * x * x
        } else {
            (x.min(self.epsilon).exp_m1() - x) * self.alpha_n
        };
        curve + self.beta * x
    }
}

/// The constants of a mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsOp {
    /// Experts × hidden × width, and its biases; none where experts are not gated.
    pub gate: Option<ExpertWeights>,
    /// Experts × hidden × width.
    pub up: ExpertWeights,
    /// Experts × width × hidden.
    pub down: ExpertWeights,
    /// The function of the gated half.
    pub activation: Activation,
    /// gpt-oss: `activation(min(gate, l)) · (clamp(up, ±l) + 1)`.
    pub glu_limit: Option<f32>,
    /// Who does the work.
    pub routing: Routing,
    /// What low-rank adapters add to the products.
    pub adapters: Vec<ExpertAdapter>,
}

impl ExpertsOp {
    /// One of the stacks of matrices.
    pub fn stack(&self, half: ExpertHalf) -> Option<ExpertWeights> {
        match half {
            ExpertHalf::Gate => self.gate,
            ExpertHalf::Up => Some(self.up),
            ExpertHalf::Down => Some(self.down),
        }
    }

    /// The adapters of one of the stacks.
    pub fn adapters_of(&self, half: ExpertHalf) -> impl Iterator<Item = &ExpertAdapter> {
        self.adapters
            .iter()
            .filter(move |adapter| adapter.half == half)
    }
}

/// Which of an expert's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpertHalf {
    /// The gated half.
    Gate,
    /// The other half.
    Up,
    /// The way back.
    Down,
}

impl ExpertHalf {
    /// All of them.
    pub const ALL: [ExpertHalf; 3] = [ExpertHalf::Gate, ExpertHalf::Up, ExpertHalf::Down];
}

/// What an adapter adds to the products of a stack: `factor · strength · up[e]·(down[e]·x)`, where
/// the strength is what the token's sequence wants of the adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertAdapter {
    /// Which stack.
    pub half: ExpertHalf,
    /// Which adapter: an index into [`crate::backend::SeqSlice::adapters`].
    pub adapter: usize,
    /// The constant of the adapter.
    pub factor: f32,
    /// Experts × rank × inputs.
    pub down: WeightId,
    /// Experts × outputs × rank.
    pub up: WeightId,
}

/// A stack of matrices, one an expert, and the vectors that are added to their products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertWeights {
    /// Experts × outputs × inputs.
    pub weight: WeightId,
    /// Experts × outputs.
    pub bias: Option<WeightId>,
}

/// How a token's experts are chosen and weighed.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// How many there are.
    pub n_experts: usize,
    /// How many each token uses.
    pub n_used: usize,
    /// What turns logits into weights.
    pub gating: Gating,
    /// Added to weights for the choice, not for the sum.
    pub selection_bias: Option<WeightId>,
    /// Only the experts of the best groups can be chosen.
    pub groups: Option<ExpertGroups>,
    /// Whether the chosen weights are scaled to sum to one.
    pub renormalize: bool,
    /// Factor on all weights, after that.
    pub scale: f32,
    /// A factor on each expert's weight.
    pub expert_scale: Option<WeightId>,
    /// Whether the weight multiplies the expert's input instead of its output.
    pub weigh_input: bool,
}

/// Group-limited routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of equal size.
    pub n_groups: usize,
    /// How many a token can choose from.
    pub n_used: usize,
    /// What a group counts.
    pub score: GroupScore,
}

/// What a group of experts counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// Its best expert (DeepSeek V2).
    Best,
    /// Its two best together (DeepSeek V3).
    TwoBest,
}

/// How router logits become expert weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gating {
    /// Softmax over all experts, then the best are chosen.
    Softmax,
    /// A sigmoid each.
    Sigmoid,
    /// The best are chosen, then softmax over them.
    SoftmaxChosen,
    /// Each choice by softmax over the experts whose logits come near the best of those left
    /// (SparseMixer, Liu et al. 2023, without its noise).
    SparseMixer {
        /// How near, relative to the best.
        jitter: f32,
    },
}

impl Op {
    /// The values it reads.
    pub fn inputs(&self) -> Vec<ValueId> {
        match *self {
            Op::Embed { .. } | Op::EmbedPosition { .. } | Op::RopeTable { .. } => vec![],
            Op::Norm { x, .. }
            | Op::Linear { x, .. }
            | Op::HeadLinear { x, .. }
            | Op::Activate { x, .. }
            | Op::Xielu { x, .. }
            | Op::Sparsify { x, .. }
            | Op::Scale { x, .. }
            | Op::AdapterScale { x, .. }
            | Op::ScaleBy { x, .. }
            | Op::AddVector { x, .. }
            | Op::AddSegment { x, .. }
            | Op::Temperature { x, .. }
            | Op::Clamp { x, .. }
            | Op::Slice { x, .. }
            | Op::Softcap { x, .. }
            | Op::ShortConv { x, .. }
            | Op::SelectOutputs { x, .. } => vec![x],
            Op::SelectiveScan { x, dt, b, c, .. } => vec![x, dt, b, c],
            Op::LinearAttention {
                q,
                k,
                v,
                decay,
                ref spec,
                ..
            } => match spec.update {
                StateUpdate::Add => vec![q, k, v, decay],
                StateUpdate::Delta { beta } => vec![q, k, v, decay, beta],
                StateUpdate::Rewrite { remove, add } => vec![q, k, v, decay, remove, add],
            },
            Op::Rope { x, table, .. } => vec![x, table],
            Op::StoreKv { k, v, .. } => [Some(k), v].into_iter().flatten().collect(),
            Op::Attention { q, .. } => vec![q],
            Op::Glu { gate, up, .. } => vec![gate, up],
            Op::Add { a, b, .. } | Op::Mul { a, b, .. } | Op::Concat { a, b, .. } => vec![a, b],
            Op::MatchMagnitude { x, like, .. } => vec![x, like],
            Op::WeightedSum {
                ref terms, weights, ..
            } => terms.iter().copied().chain([weights]).collect(),
            Op::Experts { x, router, .. } => vec![x, router],
        }
    }

    /// The value it writes, if it writes one.
    pub fn output(&self) -> Option<ValueId> {
        match *self {
            Op::StoreKv { .. } => None,
            Op::Embed { out, .. }
            | Op::EmbedPosition { out, .. }
            | Op::RopeTable { out, .. }
            | Op::Norm { out, .. }
            | Op::Linear { out, .. }
            | Op::HeadLinear { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::Activate { out, .. }
            | Op::Xielu { out, .. }
            | Op::Sparsify { out, .. }
            | Op::Glu { out, .. }
            | Op::Add { out, .. }
            | Op::Mul { out, .. }
            | Op::ShortConv { out, .. }
            | Op::SelectiveScan { out, .. }
            | Op::LinearAttention { out, .. }
            | Op::Scale { out, .. }
            | Op::AdapterScale { out, .. }
            | Op::ScaleBy { out, .. }
            | Op::AddVector { out, .. }
            | Op::AddSegment { out, .. }
            | Op::Temperature { out, .. }
            | Op::Clamp { out, .. }
            | Op::WeightedSum { out, .. }
            | Op::MatchMagnitude { out, .. }
            | Op::Slice { out, .. }
            | Op::Concat { out, .. }
            | Op::Softcap { out, .. }
            | Op::Experts { out, .. }
            | Op::SelectOutputs { out, .. } => Some(out),
        }
    }

    /// The weights it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        let some = |weights: &[Option<WeightId>]| weights.iter().copied().flatten().collect();
        match self {
            Op::Embed { table, .. }
            | Op::EmbedPosition { table, .. }
            | Op::AddSegment { table, .. } => vec![*table],
            Op::Norm { weight, bias, .. } => some(&[*weight, *bias]),
            Op::Linear { weight, bias, .. } => some(&[Some(*weight), *bias]),
            Op::HeadLinear { weight, .. }
            | Op::ScaleBy { weight, .. }
            | Op::AddVector { weight, .. } => vec![*weight],
            Op::Attention { spec, .. } => some(&[spec.sinks, spec.relative]),
            Op::ShortConv { spec, .. } => some(&[Some(spec.weight), spec.bias]),
            Op::SelectiveScan { spec, .. } => vec![spec.a, spec.skip],
            Op::LinearAttention { spec, .. } => some(&[spec.bonus]),
            Op::Experts { spec, .. } => {
                let stacks = [spec.gate, Some(spec.up), Some(spec.down)];
                let matrices = stacks.iter().flatten();
                let mut weights: Vec<WeightId> = matrices
                    .flat_map(|stack| [Some(stack.weight), stack.bias])
                    .flatten()
                    .collect();
                weights.extend(spec.routing.selection_bias);
                weights.extend(spec.routing.expert_scale);
                weights.extend(spec.adapters.iter().flat_map(|a| [a.down, a.up]));
                weights
            }
            _ => vec![],
        }
    }
}
