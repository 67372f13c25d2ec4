//! Mixtures of experts: router, routed experts, shared experts.

use super::decoder::Block;
use crate::arch::names::*;
use crate::error::Result;
use crate::graph::{Activation, ExpertsOp, Routing, ValueId};
use crate::weights::{LinearWeights, NormWeights};

impl Block<'_, '_> {
    pub(super) fn has_experts(&self) -> bool {
        self.hp.moe.is_some() && self.weights.has(&FFN_ROUTER, self.layer)
    }

    /// Output of the experts that the router selects for `router_input`.
    pub(super) fn experts(&mut self, h: ValueId, router_input: ValueId) -> Result<ValueId> {
        let Some(moe) = self.hp.moe.clone() else {
            return Err(self.weights.missing(&FFN_ROUTER, self.layer));
        };
        let (n_embd, n_experts) = (self.hp.n_embd, moe.n_experts);
        let logits = self.linear(router_input, &FFN_ROUTER, n_experts)?;
        let (gate, up) = self
            .weights
            .expert_gate_up(self.layer, n_experts, n_embd, moe.n_ff)?;
        let down =
            self.weights
                .experts(&FFN_DOWN_EXPERTS, self.layer, n_experts, moe.n_ff, n_embd)?;
        let mut vector =
            |role: &TensorRole| self.weights.vector_weight(role, self.layer, n_experts);
        let spec = ExpertsOp {
            gate,
            up,
            down,
            activation: self.hp.activation,
            glu_limit: self.arch.glu_limit,
            routing: Routing {
                n_experts,
                n_expert_used: moe.n_expert_used,
                gating: moe.gating,
                selection_bias: vector(&FFN_SELECTION_BIAS)?,
                groups: moe.groups,
                renormalize: moe.renormalize,
                scale: moe.scale,
                expert_scale: vector(&FFN_EXPERT_SCALE)?,
                apply_router_weight_on_input: self.arch.moe.apply_router_weight_on_input,
            },
            adapters: Vec::new(),
        };
        Ok(self.g.experts(h, logits, spec))
    }

    /// Adds the output of the shared experts, if the layer has any.
    pub(super) fn add_shared_experts(&mut self, h: ValueId, routed: ValueId) -> Result<ValueId> {
        let shape = self.weights.shape(&FFN_DOWN_SHARED, self.layer);
        let Some(&n_ff) = shape.last() else {
            return Ok(routed);
        };
        let roles = [&FFN_GATE_SHARED, &FFN_UP_SHARED, &FFN_GATE_UP_SHARED];
        let hidden = self.hidden(roles, h, n_ff)?;
        let mut shared = self.linear(hidden, &FFN_DOWN_SHARED, self.hp.n_embd)?;
        if self.weights.has(&FFN_SHARED_GATE, self.layer) {
            let gate = self.shared_gate()?;
            let gate = self.g.linear(h, &gate);
            let gate = self.g.activate(gate, Activation::Sigmoid);
            shared = self.g.weighted_sum(vec![shared], gate, 0);
        }
        Ok(self.g.add(routed, shared))
    }

    /// Loads the gate of the shared experts: a matrix of one row, which some files store as a
    /// vector.
    fn shared_gate(&mut self) -> Result<LinearWeights> {
        let n_embd = self.hp.n_embd;
        let shape = self.weights.shape(&FFN_SHARED_GATE, self.layer);
        if shape.len() > 1 {
            return self.weights.linear(&FFN_SHARED_GATE, self.layer, n_embd, 1);
        }
        let missing = self.weights.missing(&FFN_SHARED_GATE, self.layer);
        let vector = self
            .weights
            .vector_weight(&FFN_SHARED_GATE, self.layer, n_embd)?;
        Ok(LinearWeights {
            weight: vector.ok_or(missing)?,
            bias: None,
            outputs: 1,
        })
    }

    /// Gemma 4: a dense layer and experts in parallel, with separate norms.
    pub(super) fn dense_and_experts(&mut self, h: ValueId, x: ValueId) -> Result<ValueId> {
        let n_embd = self.hp.n_embd;
        let dense = self.dense(h)?;
        let dense = self.norm(dense, &FFN_POST_NORM_DENSE)?;

        let mut router_norm = NormWeights::unweighted(self.arch.norm, n_embd, self.hp.epsilon);
        if let Some(mut scale) = self.weights.vector(&FFN_ROUTER_SCALE, self.layer, n_embd)? {
            let root = (n_embd as f32).sqrt();
            scale.iter_mut().for_each(|s| *s /= root);
            let name = FFN_ROUTER_SCALE.gguf;
            router_norm.weight = Some(self.weights.constant(name, scale));
        }
        let router_input = self.g.norm(x, &router_norm);
        let h = self.norm(x, &FFN_NORM_EXPERTS)?;
        let routed = self.experts(h, router_input)?;
        let routed = self.norm(routed, &FFN_POST_NORM_EXPERTS)?;
        Ok(self.g.add(dense, routed))
    }
}
