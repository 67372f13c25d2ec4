//! Feed-forward layers: gated or plain, dense or with experts, with pre-norms or post-norms.

use super::decoder::Block;
use crate::arch::names::*;
use crate::arch::{ActivationRule, RecurrentLayers, RecurrentSpec};
use crate::error::Result;
use crate::graph::{Activation, Op, ValueId, Xielu};

impl Block<'_, '_> {
    pub(super) fn has_feed_forward(&self) -> bool {
        let exclusive = |spec: RecurrentSpec| spec.layers == RecurrentLayers::Exclusive;
        let may_lack = self.arch.pruned || self.arch.recurrent.is_some_and(exclusive);
        self.params().n_ff > 0 || self.has_experts() || !may_lack
    }

    /// Feed-forward layer of the normalized input `h`, followed by the optional post-norm. Gemma
    /// 4's router reads `x`, which is not normalized.
    pub(super) fn feed_forward(&mut self, h: ValueId, x: ValueId) -> Result<ValueId> {
        let out = if self.weights.has(&CHANNEL_MIX_KEY, self.layer) {
            self.channel_mix(h)?
        } else if !self.has_experts() {
            self.dense(h)?
        } else if self.weights.has(&FFN_NORM_EXPERTS, self.layer) {
            self.dense_and_experts(h, x)?
        } else {
            let routed = self.experts(h, h)?;
            self.add_shared_experts(h, routed)?
        };
        self.optional_norm(out, &FFN_POST_NORM)
    }

    pub(super) fn dense(&mut self, h: ValueId) -> Result<ValueId> {
        let n_ff = self.params().n_ff;
        let hidden = self.hidden([&FFN_GATE, &FFN_UP, &FFN_GATE_UP], h, n_ff)?;
        let hidden = self.optional_norm(hidden, &FFN_SUB_NORM)?;
        let out = self.linear(hidden, &FFN_DOWN, self.hp.n_embd)?;
        Ok(self.g.scale(out, self.hp.multipliers.ffn_down))
    }

    /// `activation(gate · h) · (up · h)`, or `activation(up · h)` without a gate.
    pub(super) fn hidden(
        &mut self,
        roles: [&TensorRole; 3],
        h: ValueId,
        n_ff: usize,
    ) -> Result<ValueId> {
        let n_embd = self.hp.n_embd;
        let (gate, up) = self.weights.gate_up(roles, self.layer, n_embd, n_ff)?;
        let Some(gate) = gate else {
            let up = self.g.linear(h, &up);
            return self.activate(up);
        };
        let mut gate = self.g.linear(h, &gate);
        gate = self.g.scale(gate, self.hp.multipliers.ffn_gate);
        if let Some(deviations) = self.params().sparsity {
            let unbiased = self.arch.unbiased_sparsity;
            gate = self.g.map(gate, |out| Op::Sparsify {
                x: gate,
                deviations,
                unbiased,
                out,
            });
        }
        let up = self.g.linear(h, &up);
        let activation = match self.arch.activation {
            ActivationRule::ReluOrGatedGelu => Activation::GeluTanh,
            _ => self.hp.activation,
        };
        Ok(self.g.glu(gate, up, activation))
    }

    fn activate(&mut self, x: ValueId) -> Result<ValueId> {
        if self.arch.activation != ActivationRule::Xielu {
            return Ok(self.g.activate(x, self.hp.activation));
        }
        let spec = match self.params().xielu {
            Some(spec) => spec,
            None => {
                let parameter = |role: &TensorRole| {
                    let vector = self.weights.vector(role, self.layer, 1)?;
                    let missing = || self.weights.missing(role, self.layer);
                    vector.map(|v| v[0]).ok_or_else(missing)
                };
                Xielu::from_stored(
                    parameter(&FFN_XIELU_ALPHA_P)?,
                    parameter(&FFN_XIELU_ALPHA_N)?,
                    parameter(&FFN_XIELU_BETA)?,
                    parameter(&FFN_XIELU_EPSILON)?,
                )
            }
        };
        Ok(self.g.map(x, |out| Op::Xielu { x, spec, out }))
    }
}
