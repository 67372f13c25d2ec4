//! The decoder: one function reads a descriptor and writes down what the model computes.
//!
//! Which norms, biases and experts a layer has is told by the tensors that are there; how they
//! are used, by the descriptor.

use super::{AttentionOp, Builder, CacheInfo, ExpertsOp, Plan, ValueId};
use crate::arch::names::*;
use crate::arch::{Arch, Hparams};
use crate::error::Result;
use crate::graph::rope;
use crate::model::WeightLoader;

/// Builds the plan of a model, taking each weight from `weights`, which checks its shape.
pub fn build(arch: &Arch, hp: &Hparams, weights: &mut WeightLoader<'_>) -> Result<Plan> {
    let mut g = Builder::default();
    let embedding = weights.embedding(&TOKEN_EMBEDDING, hp.n_embd)?;
    let mut x = g.embed(embedding.weight, hp.n_embd);
    x = g.scale(x, hp.embedding_scale);

    let mut ropes = Vec::with_capacity(hp.ropes.len());
    for params in &hp.ropes {
        let factors = weights.vector(&ROPE_FREQS, params.dims / 2)?;
        let frequencies = rope::frequencies(
            params.dims,
            params.base,
            &params.scaling,
            factors.as_deref(),
        );
        ropes.push(g.rope_table(frequencies));
    }

    for layer in 0..hp.layers.len() {
        x = g.layer(|g| {
            let mut block = Block {
                g,
                arch,
                hp,
                weights: &mut *weights,
                layer,
            };
            let attended = block.attention(x, &ropes)?;
            let x = block.g.add(x, attended);
            let fed = block.feed_forward(x)?;
            Ok(block.g.add(x, fed))
        })?;
    }

    x = g.select_outputs(x);
    x = g.norm(x, &weights.norm(&OUTPUT_NORM, 0, hp.n_embd, hp.epsilon)?);
    let output = weights.optional_linear(&OUTPUT, 0, hp.n_embd, embedding.outputs)?;
    let mut logits = g.linear(x, &output.unwrap_or(embedding));
    logits = g.softcap(logits, hp.logit_softcap);
    Ok(g.finish(logits))
}

/// One layer under construction.
struct Block<'a, 'w> {
    g: &'a mut Builder,
    arch: &'a Arch,
    hp: &'a Hparams,
    weights: &'a mut WeightLoader<'w>,
    layer: usize,
}

impl Block<'_, '_> {
    fn attention(&mut self, x: ValueId, ropes: &[ValueId]) -> Result<ValueId> {
        let hp = self.hp;
        let params = &hp.layers[self.layer];
        let (q_width, k_width) = (params.n_heads * hp.key_dim, params.n_kv_heads * hp.key_dim);
        let v_width = params.n_kv_heads * hp.value_dim;

        let h = self.norm(x, &ATTN_NORM)?;
        let mut q = self.linear(h, &ATTN_Q, hp.n_embd, q_width)?;
        let mut k = self.linear(h, &ATTN_K, hp.n_embd, k_width)?;
        let v = self.linear(h, &ATTN_V, hp.n_embd, v_width)?;
        q = self.head_norm(q, &ATTN_Q_NORM)?;
        k = self.head_norm(k, &ATTN_K_NORM)?;
        q = self
            .g
            .rope(q, ropes[params.rope], hp.key_dim, hp.rope_layout);
        k = self
            .g
            .rope(k, ropes[params.rope], hp.key_dim, hp.rope_layout);

        let (n_kv_heads, key_dim, value_dim) = (params.n_kv_heads, hp.key_dim, hp.value_dim);
        let cache = self.g.store_kv(
            k,
            v,
            CacheInfo {
                n_kv_heads,
                key_dim,
                value_dim,
            },
        );
        let spec = AttentionOp {
            layer: cache,
            n_heads: params.n_heads,
            n_kv_heads,
            key_dim,
            value_dim,
            scale: hp.query_scale,
            window: params.window,
            softcap: hp.attention_softcap,
        };
        let attended = self.g.attention(q, spec);
        let out = self.linear(
            attended,
            &ATTN_OUTPUT,
            params.n_heads * value_dim,
            hp.n_embd,
        )?;
        self.optional_norm(out, &ATTN_POST_NORM)
    }

    fn feed_forward(&mut self, x: ValueId) -> Result<ValueId> {
        let n_embd = self.hp.n_embd;
        let n_ff = self.hp.layers[self.layer].n_ff;
        let h = self.norm(x, &FFN_NORM)?;
        let out = if self.hp.n_experts > 0 && self.weights.has(&FFN_ROUTER, self.layer) {
            self.experts(h, n_ff)?
        } else {
            let gate = self.linear(h, &FFN_GATE, n_embd, n_ff)?;
            let up = self.linear(h, &FFN_UP, n_embd, n_ff)?;
            let hidden = self.g.glu(gate, up, self.arch.activation);
            self.linear(hidden, &FFN_DOWN, n_ff, n_embd)?
        };
        self.optional_norm(out, &FFN_POST_NORM)
    }

    fn experts(&mut self, h: ValueId, n_ff: usize) -> Result<ValueId> {
        let (n_embd, n_experts) = (self.hp.n_embd, self.hp.n_experts);
        let router = self.linear(h, &FFN_ROUTER, n_embd, n_experts)?;
        let mut stack = |role, inputs, outputs| {
            self.weights
                .experts(role, self.layer, n_experts, inputs, outputs)
        };
        let spec = ExpertsOp {
            gate: stack(&FFN_GATE_EXPERTS, n_embd, n_ff)?,
            up: stack(&FFN_UP_EXPERTS, n_embd, n_ff)?,
            down: stack(&FFN_DOWN_EXPERTS, n_ff, n_embd)?,
            n_experts,
            n_used: self.hp.n_experts_used,
            gating: self.arch.moe.gating,
            renormalize: self.arch.moe.renormalize,
            activation: self.arch.activation,
        };
        Ok(self.g.experts(h, router, spec))
    }

    fn norm(&mut self, x: ValueId, role: &TensorRole) -> Result<ValueId> {
        let norm = self
            .weights
            .norm(role, self.layer, self.hp.n_embd, self.hp.epsilon)?;
        Ok(self.g.norm(x, &norm))
    }

    fn optional_norm(&mut self, x: ValueId, role: &TensorRole) -> Result<ValueId> {
        if self.weights.has(role, self.layer) {
            self.norm(x, role)
        } else {
            Ok(x)
        }
    }

    /// A norm over each head, where the model has one.
    fn head_norm(&mut self, x: ValueId, role: &TensorRole) -> Result<ValueId> {
        if !self.weights.has(role, self.layer) {
            return Ok(x);
        }
        let norm = self
            .weights
            .norm(role, self.layer, self.hp.key_dim, self.hp.epsilon)?;
        Ok(self.g.norm(x, &norm))
    }

    fn linear(
        &mut self,
        x: ValueId,
        role: &TensorRole,
        inputs: usize,
        outputs: usize,
    ) -> Result<ValueId> {
        let linear = self.weights.linear(role, self.layer, inputs, outputs)?;
        Ok(self.g.linear(x, &linear))
    }
}
