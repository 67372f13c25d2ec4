//! Builds the plan of a model from its architecture descriptor.
//!
//! [`decoder`] iterates over the layers. [`attention`], [`mla`], [`recurrent`], [`mamba`],
//! [`delta_net`], [`rwkv`], [`ffn`], [`moe`], [`per_layer`] and [`altup`] build parts of a layer;
//! [`encoder`] builds what only encoders have.

mod altup;
mod attention;
mod decoder;
mod delta_net;
mod encoder;
mod ffn;
mod mamba;
mod mla;
mod moe;
mod per_layer;
mod recurrent;
mod rwkv;

pub use decoder::build;

use crate::error::Result;
use crate::graph::{
    Activation, AttentionOp, CacheInfo, ExpertsOp, Op, OutputKind, Plan, Rope, RopeLayout, Rows,
    StateInfo, ValueId, ValueInfo, WeightId,
};
use crate::weights::{LinearWeights, NormWeights};

/// Appends ops to a plan. Methods return the value of the new op.
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

    /// New value with the shape of `x`.
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

    pub(crate) fn norm(&mut self, x: ValueId, norm: &NormWeights) -> ValueId {
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

    pub(crate) fn linear(&mut self, x: ValueId, linear: &LinearWeights) -> ValueId {
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

    /// Multiplies each head of `x` by its matrix in the stack.
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

    /// Adds a cache and stores `k` and `v` in it; returns its index.
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

    /// `a · b`, where each element of `b` multiplies a group of consecutive elements of `a`.
    pub(crate) fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let out = self.like(a);
        self.plan.ops.push(Op::Mul { a, b, out });
        out
    }

    /// `x · weight` for each row.
    pub(crate) fn scale_by(&mut self, x: ValueId, weight: WeightId) -> ValueId {
        self.map(x, |out| Op::ScaleBy { x, weight, out })
    }

    /// `x + weight` for each row.
    pub(crate) fn add_vector(&mut self, x: ValueId, weight: WeightId) -> ValueId {
        self.map(x, |out| Op::AddVector { x, weight, out })
    }

    /// `x + table[segment]` for a table of two rows.
    pub(crate) fn add_segment(&mut self, x: ValueId, table: WeightId) -> ValueId {
        self.map(x, |out| Op::AddSegment { x, table, out })
    }

    /// Adds a recurrent state; returns its index.
    pub(crate) fn state(&mut self, n_heads: usize, len: usize) -> usize {
        self.plan.states.push(StateInfo { n_heads, len });
        self.plan.states.len() - 1
    }

    /// `factor · x`; no op if the factor is one.
    pub(crate) fn scale(&mut self, x: ValueId, factor: f32) -> ValueId {
        if factor == 1.0 {
            return x;
        }
        let out = self.like(x);
        self.plan.ops.push(Op::Scale { x, factor, out });
        out
    }

    /// Op with one input and an output of the same shape.
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

    /// Elements `start..start + len` of each group.
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

    /// Interleaves the groups of two values.
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

    /// Runs `body` and records its ops as one layer.
    pub(crate) fn layer<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let start = self.plan.ops.len();
        let out = body(self)?;
        self.plan.layers.push(start..self.plan.ops.len());
        Ok(out)
    }

    /// Marks all ops so far as the encoder's.
    pub(crate) fn end_encoder(&mut self) {
        self.plan.n_encoder_ops = self.plan.ops.len();
    }

    pub(crate) fn finish(
        mut self,
        hidden: ValueId,
        (result, output): (ValueId, OutputKind),
    ) -> Plan {
        self.plan.hidden = Some(hidden);
        self.plan.output = output;
        self.plan.result = Some(result);
        self.plan
    }
}
