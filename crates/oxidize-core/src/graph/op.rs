//! Operations of a plan, as plain data: inputs, outputs and constants.
//!
//! A row is a token of the batch. The number of rows and the context length are unknown when a plan
//! is built; all widths are known.

use super::rope::Rope;
use super::{ValueId, WeightId};
pub use oxidize_kernels::{Activation, RopeLayout};
use std::ops::Range;

/// Operation of a plan. `out` is always a new value; the backend decides whether it reuses the
/// memory of an input.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Token embeddings: `out = table[token]`.
    Embed {
        /// One row per token of the vocabulary.
        table: WeightId,
        /// Tokens × width.
        out: ValueId,
    },
    /// Learned position embeddings: `out = table[position + offset]`.
    EmbedPosition {
        /// One row per position.
        table: WeightId,
        /// Rows of the table before position 0.
        offset: usize,
        /// Tokens × width.
        out: ValueId,
    },
    /// Cosines and sines of the batch's positions, shared by layers with the same RoPE.
    RopeTable {
        /// Frequencies.
        rope: Rope,
        /// Tokens × dims: the cosines of all pairs, then their sines.
        out: ValueId,
    },
    /// Normalizes groups of `width` consecutive elements.
    Norm {
        /// Kind of norm.
        kind: NormKind,
        /// Input.
        x: ValueId,
        /// Factor per element of a group, or of the whole row if groups differ.
        weight: Option<WeightId>,
        /// Offset per element of a group, or of the whole row if groups differ.
        bias: Option<WeightId>,
        /// Epsilon.
        epsilon: f32,
        /// Elements of a group: the row for a layer norm, the head for a norm of q or k.
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
        /// One element per output.
        bias: Option<WeightId>,
        /// Rows × outputs.
        out: ValueId,
    },
    /// A matrix for each head: `out[h] = weight[h] · x[h]`.
    HeadLinear {
        /// Rows × (heads · inputs).
        x: ValueId,
        /// Stack of heads × outputs × inputs.
        weight: WeightId,
        /// Rows × (heads · outputs).
        out: ValueId,
    },
    /// Rotates each head of `x` by its position (RoPE).
    Rope {
        /// Tokens × (heads · head_dim).
        x: ValueId,
        /// From [`Op::RopeTable`].
        table: ValueId,
        /// Elements of a head; those beyond the table's width are copied.
        head_dim: usize,
        /// Pairing of the elements.
        layout: RopeLayout,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Stores keys and values of the batch in the cache of `layer`.
    StoreKv {
        /// Index into the session's caches.
        layer: usize,
        /// Tokens × (kv heads · key dim).
        k: ValueId,
        /// Tokens × (kv heads · value dim); `None` if values are part of the keys.
        v: Option<ValueId>,
    },
    /// Softmax attention over the cache of a layer.
    Attention {
        /// Tokens × (heads · key dim).
        q: ValueId,
        /// Constants.
        spec: AttentionOp,
        /// Tokens × (heads · value dim).
        out: ValueId,
    },
    /// `out = activation(x)`.
    Activate {
        /// Input.
        x: ValueId,
        /// Activation.
        activation: Activation,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Gated linear unit: `out = activation(gate) · up`.
    Glu {
        /// Input of the activation.
        gate: ValueId,
        /// Other factor.
        up: ValueId,
        /// Activation.
        activation: Activation,
        /// Same shape as `gate`.
        out: ValueId,
    },
    /// xIELU (Huang & Schlag 2024), whose parameters are learned per layer.
    Xielu {
        /// Input.
        x: ValueId,
        /// Parameters.
        spec: Xielu,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = max(x − (mean + deviations · σ), 0)` for each row (Gemma 3n's sparse activations).
    Sparsify {
        /// Input.
        x: ValueId,
        /// Threshold in standard deviations above the mean.
        deviations: f32,
        /// True if the variance is divided by n − 1 instead of n.
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
    /// `out = x + weight` for each row.
    AddVector {
        /// Input.
        x: ValueId,
        /// One element per column.
        weight: WeightId,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = x + table[segment]`: embedding of the token's segment, the first or second text of a
    /// pair (BERT).
    AddSegment {
        /// Input.
        x: ValueId,
        /// Both rows of the table as one vector.
        table: WeightId,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = a · b`, where each element of `b` multiplies a group of consecutive elements of `a`.
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
        /// Factor.
        factor: f32,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = factor · scale · x`, where `scale` is the sequence's scale of the LoRA adapter.
    AdapterScale {
        /// Input.
        x: ValueId,
        /// Index of the adapter in [`crate::backend::SeqSlice::adapters`].
        adapter: usize,
        /// Constant factor of the adapter.
        factor: f32,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = x · weight` for each row.
    ScaleBy {
        /// Input.
        x: ValueId,
        /// One factor per column.
        weight: WeightId,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Temperature tuning: `out = x · (1 + scale · ln(1 + ⌊(position + offset) / period⌋))`.
    Temperature {
        /// Input.
        x: ValueId,
        /// Constants.
        spec: Temperature,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = min(max(x, −limit), limit)`.
    Clamp {
        /// Input.
        x: ValueId,
        /// Bound.
        limit: f32,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// `out = Σᵢ weights[offset + i] · terms[i]`, with weights for each row.
    WeightedSum {
        /// Terms of the same shape.
        terms: Vec<ValueId>,
        /// Rows × at least `offset + terms` factors.
        weights: ValueId,
        /// Index of the first term's weight.
        offset: usize,
        /// Same shape as a term.
        out: ValueId,
    },
    /// `out = x · rms(like) / rms(x)` for each row.
    MatchMagnitude {
        /// Input.
        x: ValueId,
        /// Value with the target root mean square.
        like: ValueId,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Copies `start..start + len` of each group of `group` consecutive elements.
    Slice {
        /// Input.
        x: ValueId,
        /// Elements of a group.
        group: usize,
        /// First element.
        start: usize,
        /// Number of elements.
        len: usize,
        /// Rows × (groups · len).
        out: ValueId,
    },
    /// Interleaves the groups of two values: in each row, a group of `a`, then one of `b`, and so
    /// on.
    Concat {
        /// First value.
        a: ValueId,
        /// Second value.
        b: ValueId,
        /// Groups per row.
        groups: usize,
        /// Rows × (width of `a` + width of `b`).
        out: ValueId,
    },
    /// `out = cap · tanh(x / cap)`.
    Softcap {
        /// Input.
        x: ValueId,
        /// Bound.
        cap: f32,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Mixture of gated feed-forward experts.
    Experts {
        /// Tokens × width.
        x: ValueId,
        /// Tokens × experts: router logits.
        router: ValueId,
        /// Constants and weights.
        spec: ExpertsOp,
        /// Tokens × width.
        out: ValueId,
    },
    /// Causal convolution of each channel with the last tokens, which the state contains.
    ShortConv {
        /// Tokens × channels.
        x: ValueId,
        /// Constants.
        spec: ShortConvOp,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Selective scan (Mamba): `S ← e^(dt·a)·S + dt·x·bᵀ`, `out = S·c + skip·x` for each head.
    SelectiveScan {
        /// Tokens × (heads · head dim).
        x: ValueId,
        /// Tokens × heads: step sizes.
        dt: ValueId,
        /// Tokens × (groups · state): input projection B.
        b: ValueId,
        /// Tokens × (groups · state): output projection C.
        c: ValueId,
        /// Constants.
        spec: SelectiveScanOp,
        /// Same shape as `x`.
        out: ValueId,
    },
    /// Linear attention: each head has a matrix from keys to values, which decays and is updated
    /// and read by each token.
    LinearAttention {
        /// Tokens × (key heads · key dim).
        q: ValueId,
        /// Tokens × (key heads · key dim).
        k: ValueId,
        /// Tokens × (heads · value dim).
        v: ValueId,
        /// Decay factors of the heads or of their rows: tokens × heads (· key dim).
        decay: ValueId,
        /// Constants.
        spec: LinearAttentionOp,
        /// Same shape as `v`.
        out: ValueId,
    },
    /// Selects the output rows of the batch.
    SelectOutputs {
        /// Tokens × width.
        x: ValueId,
        /// Outputs × width.
        out: ValueId,
    },
}

/// Kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Divides by the root mean square (RMSNorm).
    Rms,
    /// Subtracts the mean and divides by the standard deviation (LayerNorm).
    Layer,
}

/// Frequencies of a rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// Radians per position of each pair, with context scaling applied.
    pub radians: Vec<f32>,
    /// Factor of cosines and sines (YaRN's attention temperature).
    pub magnitude: f32,
}

/// Constants of [`Op::Attention`].
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionOp {
    /// Index of the cache.
    pub layer: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; a divisor of `n_heads`.
    pub n_kv_heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Scale of the scores.
    pub scale: f32,
    /// Attention mask.
    pub mask: AttentionMask,
    /// Window; `None` for full attention.
    pub window: Option<Window>,
    /// `cap · tanh(score / cap)` before the softmax.
    pub softcap: Option<f32>,
    /// Attention sinks: an extra score per query head, without a value.
    pub sinks: Option<WeightId>,
    /// ALiBi: decrease of the score per position of distance, for each query head.
    pub slopes: Option<Vec<f32>>,
    /// T5: relative position biases for each query head, symmetric around distance zero. Larger
    /// distances use the outermost bias on their side.
    pub relative: Option<WeightId>,
}

impl AttentionOp {
    /// Positions visible from `position`, in a sequence of `end` positions of which the first
    /// `encoded` belong to the encoder.
    pub fn visible(&self, position: usize, end: usize, encoded: usize) -> Range<usize> {
        let all = match self.mask {
            AttentionMask::Causal => 0..position + 1,
            AttentionMask::Full => 0..end,
            AttentionMask::Cross => return 0..encoded,
            AttentionMask::CausalAfterEncoder => encoded..position + 1,
        };
        let Some(window) = self.window else {
            return all;
        };
        let last = window.last(position).saturating_add(1);
        all.start.max(window.first(position))..all.end.min(last)
    }

    /// Window behind which no later token looks; `None` if a later token may see any position.
    pub fn causal_window(&self) -> Option<Window> {
        let ends_behind = |window: &Window| match *window {
            Window::Sliding(n) | Window::Chunk(n) => n > 0,
            Window::Around(_) => false,
        };
        self.window
            .filter(|window| self.mask == AttentionMask::Causal && ends_behind(window))
    }
}

/// Attention mask, before a window restricts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// Positions up to and including the query's own.
    Causal,
    /// All positions of the sequence, which must be complete in the batch.
    Full,
    /// Cross-attention: the positions of the encoder.
    Cross,
    /// Self-attention of the decoder: positions after the encoder's, up to and including the
    /// query's own.
    CausalAfterEncoder,
}

/// Constants of [`Op::ShortConv`].
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvOp {
    /// Index of the state, which contains the last `kernel − 1` rows, oldest first.
    pub state: usize,
    /// Kernel width in tokens, including the current one.
    pub kernel: usize,
    /// Kernel × channels, beginning with the factors of the oldest token.
    pub weight: WeightId,
    /// Bias of each channel.
    pub bias: Option<WeightId>,
    /// Activation after the convolution.
    pub activation: Option<Activation>,
}

/// Constants of [`Op::SelectiveScan`].
#[derive(Clone, Debug, PartialEq)]
pub struct SelectiveScanOp {
    /// Index of the state: head dim × state elements per head.
    pub state: usize,
    /// Heads, each with its own step size.
    pub n_heads: usize,
    /// Elements of a head; 1 in Mamba 1.
    pub head_dim: usize,
    /// Groups of heads that share `b` and `c`.
    pub n_groups: usize,
    /// State elements per element of a head.
    pub n_state: usize,
    /// Negative decay rates: heads, or heads × state.
    pub a: WeightId,
    /// Skip connection: factor of each head's input.
    pub skip: WeightId,
}

/// Constants of [`Op::LinearAttention`]. `S` is the matrix of a head, from keys to values.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearAttentionOp {
    /// Index of the state: key dim × value dim elements per head.
    pub state: usize,
    /// Value heads.
    pub n_heads: usize,
    /// Query and key heads; a divisor of `n_heads`.
    pub n_key_heads: usize,
    /// Assignment of value heads to key heads.
    pub sharing: KeySharing,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Update of the matrix by a token.
    pub update: StateUpdate,
    /// RWKV 6: a token reads the matrix before its own update, plus its own value weighted by `Σ q
    /// · bonus · k`; heads × key dim.
    pub bonus: Option<WeightId>,
}

impl LinearAttentionOp {
    /// Key head of a value head.
    pub fn key_head(&self, head: usize) -> usize {
        match self.sharing {
            KeySharing::Grouped => head / (self.n_heads / self.n_key_heads),
            KeySharing::Interleaved => head % self.n_key_heads,
        }
    }
}

/// Assignment of value heads to key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySharing {
    /// Consecutive value heads share a key head.
    Grouped,
    /// Value heads cycle through the key heads.
    Interleaved,
}

/// Update of the matrix `S` of a head, after its decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateUpdate {
    /// `S + v·kᵀ`.
    Add,
    /// `S + beta·(v − S·k)·kᵀ`: replaces the value stored for the key (gated delta rule, Yang et
    /// al. 2024).
    Delta {
        /// Tokens × heads: learning rates.
        beta: ValueId,
    },
    /// `S + (Sₒ·remove)·addᵀ + v·kᵀ`, where `Sₒ` is `S` before the decay (RWKV 7).
    Rewrite {
        /// Tokens × (heads · key dim).
        remove: ValueId,
        /// Tokens × (heads · key dim).
        add: ValueId,
    },
}

/// Attention window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The last positions, including the query's own.
    Sliding(usize),
    /// Positions of the same chunk, `position / size`.
    Chunk(usize),
    /// The query's own position and this many on either side.
    Around(usize),
}

impl Window {
    /// First position visible from `position`.
    pub fn first(self, position: usize) -> usize {
        match self {
            Window::Sliding(n) => (position + 1).saturating_sub(n),
            Window::Chunk(n) => position / n.max(1) * n,
            Window::Around(n) => position.saturating_sub(n),
        }
    }

    /// Last position that may be visible from `position`.
    pub fn last(self, position: usize) -> usize {
        match self {
            Window::Sliding(_) | Window::Chunk(_) => position,
            Window::Around(n) => position.saturating_add(n),
        }
    }

    /// Maximum number of visible positions.
    pub fn span(self) -> usize {
        match self {
            Window::Sliding(n) | Window::Chunk(n) => n,
            Window::Around(n) => n.saturating_mul(2).saturating_add(1),
        }
    }
}

/// Temperature tuning: scaling of queries at large positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor of the logarithm.
    pub scale: f32,
    /// Number of positions with the same factor.
    pub period: f32,
    /// Offset added to positions.
    pub offset: f32,
}

impl Temperature {
    /// Factor of queries at `position`.
    pub fn at(&self, position: u32) -> f32 {
        let periods = ((position as f32 + self.offset) / self.period).floor();
        1.0 + self.scale * periods.ln_1p()
    }
}

/// Parameters of xIELU as they appear in the formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Curvature for positive inputs.
    pub alpha_p: f32,
    /// Factor of the exponential for negative inputs.
    pub alpha_n: f32,
    /// Linear coefficient.
    pub beta: f32,
    /// Upper bound of the exponent, below zero.
    pub epsilon: f32,
}

impl Xielu {
    /// Converts the parameters from their stored form.
    pub fn from_stored(alpha_p: f32, alpha_n: f32, beta: f32, epsilon: f32) -> Xielu {
        let softplus = |x: f32| if x > 20.0 { x } else { x.exp().ln_1p() };
        Xielu {
            alpha_p: softplus(alpha_p),
            alpha_n: beta + softplus(alpha_n),
            beta,
            epsilon,
        }
    }

    /// Value of the function at `x`.
    pub fn apply(&self, x: f32) -> f32 {
        let curve = if x > 0.0 {
            self.alpha_p * x * x
        } else {
            (x.min(self.epsilon).exp_m1() - x) * self.alpha_n
        };
        curve + self.beta * x
    }
}

/// Constants and weights of [`Op::Experts`].
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsOp {
    /// Gate projections, experts × hidden × width; `None` if experts are not gated.
    pub gate: Option<ExpertWeights>,
    /// Up-projections, experts × hidden × width.
    pub up: ExpertWeights,
    /// Down-projections, experts × width × hidden.
    pub down: ExpertWeights,
    /// Activation.
    pub activation: Activation,
    /// gpt-oss: `activation(min(gate, l)) · (clamp(up, ±l) + 1)`.
    pub glu_limit: Option<f32>,
    /// Routing.
    pub routing: Routing,
    /// LoRA adapters of the experts.
    pub adapters: Vec<ExpertAdapter>,
}

impl ExpertsOp {
    /// Weights of a projection.
    pub fn stack(&self, projection: ExpertProjection) -> Option<ExpertWeights> {
        match projection {
            ExpertProjection::Gate => self.gate,
            ExpertProjection::Up => Some(self.up),
            ExpertProjection::Down => Some(self.down),
        }
    }

    /// Adapters of a projection.
    pub fn adapters_of(
        &self,
        projection: ExpertProjection,
    ) -> impl Iterator<Item = &ExpertAdapter> {
        self.adapters
            .iter()
            .filter(move |adapter| adapter.projection == projection)
    }
}

/// Projection of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpertProjection {
    /// Gate projection.
    Gate,
    /// Up-projection.
    Up,
    /// Down-projection.
    Down,
}

impl ExpertProjection {
    /// All projections.
    pub const ALL: [ExpertProjection; 3] = [
        ExpertProjection::Gate,
        ExpertProjection::Up,
        ExpertProjection::Down,
    ];
}

/// LoRA adapter of a stack: adds `factor · scale · up[e]·(down[e]·x)`, where `scale` is the
/// sequence's scale of the adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertAdapter {
    /// Adapted projection.
    pub projection: ExpertProjection,
    /// Index of the adapter in [`crate::backend::SeqSlice::adapters`].
    pub adapter: usize,
    /// Constant factor of the adapter.
    pub factor: f32,
    /// Experts × rank × inputs.
    pub down: WeightId,
    /// Experts × outputs × rank.
    pub up: WeightId,
}

/// Stack of matrices and biases, one of each per expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertWeights {
    /// Experts × outputs × inputs.
    pub weight: WeightId,
    /// Experts × outputs.
    pub bias: Option<WeightId>,
}

/// Selection and weighting of the experts of a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Number of experts.
    pub n_experts: usize,
    /// Experts used per token.
    pub n_expert_used: usize,
    /// Function from router logits to weights.
    pub gating: Gating,
    /// Bias added to weights for the selection only.
    pub selection_bias: Option<WeightId>,
    /// Group-limited routing: only experts of the best groups are selected.
    pub groups: Option<ExpertGroups>,
    /// True if the weights of the selected experts are scaled to sum to one.
    pub renormalize: bool,
    /// Factor of all weights, applied after normalization.
    pub scale: f32,
    /// Factor of each expert's weight.
    pub expert_scale: Option<WeightId>,
    /// True if the weight multiplies the expert's input instead of its output.
    pub apply_router_weight_on_input: bool,
}

/// Group-limited routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups, all of the same size.
    pub n_groups: usize,
    /// Groups selected per token.
    pub n_groups_used: usize,
    /// Score of a group.
    pub score: GroupScore,
}

/// Score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// Maximum over its experts (DeepSeek V2).
    Best,
    /// Sum of its two best experts (DeepSeek V3).
    TwoBest,
}

/// Function from router logits to expert weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gating {
    /// Softmax over all experts, before the selection.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// Softmax over the selected experts.
    SoftmaxChosen,
    /// SparseMixer (Liu et al. 2023) without noise: each selection is weighted by a softmax over
    /// the experts whose logits are close to the best remaining one.
    SparseMixer {
        /// Maximum relative distance to the best logit.
        jitter: f32,
    },
}

impl Op {
    /// Values that the op reads.
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

    /// Value that the op writes, if any.
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

    /// Weights that the op reads.
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
