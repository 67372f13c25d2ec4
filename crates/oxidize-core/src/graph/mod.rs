//! The plan: what a model computes, as a flat list of [`Op`]s that a backend compiles whole.
//!
//! [`decoder`] builds it from a descriptor, with [`attention`], [`mla`], [`recurrent`], [`mamba`],
//! [`delta_net`], [`rwkv`], [`ffn`], [`moe`], [`per_layer`] and [`altup`] for the parts of a layer,
//! and [`encoder`] for what is not a decoder; [`op`] defines the operations.

mod altup;
mod attention;
pub mod decoder;
mod delta_net;
mod encoder;
mod ffn;
mod mamba;
mod mla;
mod moe;
pub mod op;
mod per_layer;
mod recurrent;
pub mod rope;
mod rwkv;

use crate::error::Result;
pub use op::{
    Activation, AttentionOp, ExpertAdapter, ExpertGroups, ExpertHalf, ExpertWeights, ExpertsOp,
    Gating, GroupScore, KeySharing, LinearAttentionOp, NormKind, Op, RopeFrequencies, RopeLayout,
    Routing, Sees, SelectiveScanOp, ShortConvOp, StateUpdate, Temperature, Window, Xielu,
};
pub use rope::Rope;

/// A value that flows through a plan: an index into [`Plan::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A weight of the model: an index into [`crate::model::Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// What the number of rows of a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One row for each token of the batch.
    Tokens,
    /// One row for each token that the batch wants results for.
    Outputs,
}

/// The shape of a value: only its number of rows depends on the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// What a row is.
    pub rows: Rows,
    /// Elements in a row.
    pub width: usize,
}

/// The key and value widths of one layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheInfo {
    /// Heads in it.
    pub n_kv_heads: usize,
    /// Elements of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Whether values are the first elements of the keys, and not kept a second time (MLA).
    pub values_in_keys: bool,
}

impl CacheInfo {
    /// Elements that the cache keeps of a value head beside its key.
    pub fn kept_value_dim(&self) -> usize {
        if self.values_in_keys {
            0
        } else {
            self.value_dim
        }
    }
}

/// What a recurrent layer keeps of a sequence, however long that is: zeros before its first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// Heads that do not know of each other.
    pub n_heads: usize,
    /// Elements of one.
    pub len: usize,
}

/// What the result of a plan is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gives {
    /// Logits of the next token.
    #[default]
    Logits,
    /// Hidden states, from which embeddings are made.
    Hidden,
    /// Scores of a classifier.
    Scores,
}

/// All that a model computes for one batch, symbolic in its tokens and in the context.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In the order they run.
    pub ops: Vec<Op>,
    /// The shape of each value.
    pub values: Vec<ValueInfo>,
    /// The caches that the ops name by index.
    pub caches: Vec<CacheInfo>,
    /// The states that recurrent ops name by index.
    pub states: Vec<StateInfo>,
    /// How many of the ops, the first ones, are an encoder's: what they leave in caches is what the
    /// rest looks at.
    pub n_encoder_ops: usize,
    /// The ops of each layer, for splitting a model over devices.
    pub layers: Vec<std::ops::Range<usize>>,
    /// The value that `Session::logits` gives out.
    pub result: Option<ValueId>,
    /// What that is.
    pub gives: Gives,
    /// The value that the result is made of at the very end: what embeddings are taken from.
    pub hidden: Option<ValueId>,
}

impl Plan {
    /// The plan that ends with the hidden states instead of going on to logits.
    pub fn for_embeddings(&self) -> Option<Plan> {
        let hidden = self.hidden?;
        let makes_hidden = |op: &Op| op.output() == Some(hidden);
        let n_ops = self.ops.iter().rposition(makes_hidden)? + 1;
        let ops = self.ops[..n_ops].to_vec();
        let used = ops
            .iter()
            .flat_map(|op| op.inputs().into_iter().chain(op.output()));
        let n_values = used.map(|value| value.0 as usize + 1).max()?;
        Some(Plan {
            ops,
            values: self.values[..n_values].to_vec(),
            result: Some(hidden),
            gives: Gives::Hidden,
            ..self.clone()
        })
    }

    /// Whether a sequence can only be computed whole, because its tokens see those after them.
    pub fn is_bidirectional(&self) -> bool {
        let ops = self.ops.iter().skip(self.n_encoder_ops);
        ops.into_iter()
            .any(|op| matches!(op, Op::Attention { spec, .. } if spec.sees == Sees::All))
    }

    /// The shape of `value`.
    pub fn value(&self, value: ValueId) -> ValueInfo {
        self.values[value.0 as usize]
    }

    /// The op after which each value is dead, by value.
    pub fn last_uses(&self) -> Vec<usize> {
        let mut last = vec![0; self.values.len()];
        for (index, op) in self.ops.iter().enumerate() {
            for value in op.inputs().into_iter().chain(op.output()) {
                last[value.0 as usize] = index;
            }
        }
        if let Some(result) = self.result {
            last[result.0 as usize] = self.ops.len();
        }
        last
    }
}

/// Appends ops to a plan; each method returns the value it makes.
#[derive(Default)]
pub(crate) struct Builder {
    plan: Plan,
}

impl Builder {
    fn new_value(&mut self, rows: Rows, width: usize) -> ValueId {
        let id = ValueId(self.plan.values.len() as u32);
        self.plan.values.push(ValueInfo { rows, width });
        id
    }

    /// A new value of the shape of `x`.
    fn like(&mut self, x: ValueId) -> ValueId {
        let info = self.plan.value(x);
        self.new_value(info.rows, info.width)
    }

    pub(crate) fn width(&self, x: ValueId) -> usize {
        self.plan.value(x).width
    }

    pub(crate) fn embed(&mut self, table: WeightId, width: usize) -> ValueId {
        let out = self.new_value(Rows::Tokens, width);
        self.plan.ops.push(Op::Embed { table, out });
        out
    }

    pub(crate) fn embed_position(
        &mut self,
        table: WeightId,
        offset: usize,
        width: usize,
    ) -> ValueId {
        let out = self.new_value(Rows::Tokens, width);
        let op = Op::EmbedPosition { table, offset, out };
        self.plan.ops.push(op);
        out
    }

    pub(crate) fn rope_table(&mut self, rope: Rope) -> ValueId {
        let out = self.new_value(Rows::Tokens, rope.dims / 2 * 2);
        self.plan.ops.push(Op::RopeTable { rope, out });
        out
    }

    pub(crate) fn norm(&mut self, x: ValueId, norm: &crate::model::NormWeights) -> ValueId {
        let out = self.like(x);
        self.plan.ops.push(Op::Norm {
            kind: norm.kind,
            x,
            weight: norm.weight,
            bias: norm.bias,
            epsilon: norm.epsilon,
            width: norm.width,
            out,
        });
        out
    }

    pub(crate) fn linear(&mut self, x: ValueId, linear: &crate::model::LinearWeights) -> ValueId {
        let rows = self.plan.value(x).rows;
        let out = self.new_value(rows, linear.outputs);
        self.plan.ops.push(Op::Linear {
            x,
            weight: linear.weight,
            bias: linear.bias,
            out,
        });
        out
    }

    /// Each of `n_heads` heads of `x` times its own matrix.
    pub(crate) fn head_linear(&mut self, x: ValueId, stack: WeightId, width: usize) -> ValueId {
        let rows = self.plan.value(x).rows;
        let out = self.new_value(rows, width);
        let weight = stack;
        self.plan.ops.push(Op::HeadLinear { x, weight, out });
        out
    }

    pub(crate) fn rope(
        &mut self,
        x: ValueId,
        table: ValueId,
        head_dim: usize,
        layout: RopeLayout,
    ) -> ValueId {
        let out = self.like(x);
        self.plan.ops.push(Op::Rope {
            x,
            table,
            head_dim,
            layout,
            out,
        });
        out
    }

    /// Adds a cache and fills it with `k` and `v`; returns its index.
    pub(crate) fn store_kv(&mut self, k: ValueId, v: Option<ValueId>, cache: CacheInfo) -> usize {
        let layer = self.plan.caches.len();
        self.plan.caches.push(cache);
        self.plan.ops.push(Op::StoreKv { layer, k, v });
        layer
    }

    pub(crate) fn attention(&mut self, q: ValueId, spec: AttentionOp) -> ValueId {
        let out = self.new_value(Rows::Tokens, spec.n_heads * spec.value_dim);
        self.plan.ops.push(Op::Attention { q, spec, out });
        out
    }

    pub(crate) fn activate(&mut self, x: ValueId, activation: Activation) -> ValueId {
        let out = self.like(x);
        self.plan.ops.push(Op::Activate { x, activation, out });
        out
    }

    pub(crate) fn glu(&mut self, gate: ValueId, up: ValueId, activation: Activation) -> ValueId {
        let out = self.like(gate);
        self.plan.ops.push(Op::Glu {
            gate,
            up,
            activation,
            out,
        });
        out
    }

    pub(crate) fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let out = self.like(a);
        self.plan.ops.push(Op::Add { a, b, out });
        out
    }

    /// `a · b`, where an element of `b` may stand for several neighbours of `a`.
    pub(crate) fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let out = self.like(a);
        self.plan.ops.push(Op::Mul { a, b, out });
        out
    }

    /// `x · weight`, element by element.
    pub(crate) fn scale_by(&mut self, x: ValueId, weight: WeightId) -> ValueId {
        self.map(x, |out| Op::ScaleBy { x, weight, out })
    }

    /// `x + weight`, the same for every row.
    pub(crate) fn add_vector(&mut self, x: ValueId, weight: WeightId) -> ValueId {
        self.map(x, |out| Op::AddVector { x, weight, out })
    }

    /// `x + table[segment]`, where the table has two rows.
    pub(crate) fn add_segment(&mut self, x: ValueId, table: WeightId) -> ValueId {
        self.map(x, |out| Op::AddSegment { x, table, out })
    }

    /// Adds a state; returns its index.
    pub(crate) fn state(&mut self, n_heads: usize, len: usize) -> usize {
        self.plan.states.push(StateInfo { n_heads, len });
        self.plan.states.len() - 1
    }

    /// `factor · x`; nothing at all where the factor is one.
    pub(crate) fn scale(&mut self, x: ValueId, factor: f32) -> ValueId {
        if factor == 1.0 {
            return x;
        }
        let out = self.like(x);
        self.plan.ops.push(Op::Scale { x, factor, out });
        out
    }

    /// An op of one input whose output has the same shape.
    pub(crate) fn map(&mut self, x: ValueId, op: impl FnOnce(ValueId) -> Op) -> ValueId {
        let out = self.like(x);
        self.plan.ops.push(op(out));
        out
    }

    /// `Σᵢ weights[offset + i] · terms[i]`.
    pub(crate) fn weighted_sum(
        &mut self,
        terms: Vec<ValueId>,
        weights: ValueId,
        offset: usize,
    ) -> ValueId {
        let out = self.like(terms[0]);
        self.plan.ops.push(Op::WeightedSum {
            terms,
            weights,
            offset,
            out,
        });
        out
    }

    /// `start..start + len` of each group.
    pub(crate) fn slice(&mut self, x: ValueId, group: usize, start: usize, len: usize) -> ValueId {
        let info = self.plan.value(x);
        let out = self.new_value(info.rows, info.width / group * len);
        self.plan.ops.push(Op::Slice {
            x,
            group,
            start,
            len,
            out,
        });
        out
    }

    /// The groups of two values, side by side.
    pub(crate) fn concat(&mut self, a: ValueId, b: ValueId, groups: usize) -> ValueId {
        let (rows, width) = (self.plan.value(a).rows, self.width(a) + self.width(b));
        let out = self.new_value(rows, width);
        self.plan.ops.push(Op::Concat { a, b, groups, out });
        out
    }

    pub(crate) fn softcap(&mut self, x: ValueId, cap: Option<f32>) -> ValueId {
        let Some(cap) = cap else { return x };
        let out = self.like(x);
        self.plan.ops.push(Op::Softcap { x, cap, out });
        out
    }

    pub(crate) fn experts(&mut self, x: ValueId, router: ValueId, spec: ExpertsOp) -> ValueId {
        let out = self.like(x);
        self.plan.ops.push(Op::Experts {
            x,
            router,
            spec,
            out,
        });
        out
    }

    pub(crate) fn select_outputs(&mut self, x: ValueId) -> ValueId {
        let width = self.width(x);
        let out = self.new_value(Rows::Outputs, width);
        self.plan.ops.push(Op::SelectOutputs { x, out });
        out
    }

    /// Runs `body`, and notes the ops it adds as one layer.
    pub(crate) fn layer<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let start = self.plan.ops.len();
        let out = body(self)?;
        self.plan.layers.push(start..self.plan.ops.len());
        Ok(out)
    }

    /// Notes that all ops so far are the encoder's.
    pub(crate) fn end_encoder(&mut self) {
        self.plan.n_encoder_ops = self.plan.ops.len();
    }

    pub(crate) fn finish(mut self, hidden: ValueId, (result, gives): (ValueId, Gives)) -> Plan {
        self.plan.hidden = Some(hidden);
        self.plan.gives = gives;
        self.plan.result = Some(result);
        self.plan
    }
}
