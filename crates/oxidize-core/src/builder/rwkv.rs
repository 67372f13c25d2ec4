//! RWKV 4 (Peng et al. 2023), 6 (2024) and 7 (2025): time mixing with a recurrent state, and
//! channel mixing, which is the feed-forward layer.

use super::decoder::Block;
use crate::arch::RecurrentKind;
use crate::arch::hparams::RecurrentParams;
use crate::arch::names::*;
use crate::error::Result;
use crate::graph::{
    Activation, KeySharing, LinearAttentionOp, NormKind, Op, StateUpdate, ValueId, WeightId,
};

/// Epsilon of the norm of each head.
const HEAD_EPSILON: f32 = 64e-5;
/// Added to the squared norm of a key, so that zero keys stay zero.
const KEY_EPSILON: f32 = 1e-24;
/// Logarithm of RWKV 7's fastest decay, `−e^−½`.
const DECAY: f32 = -0.606_530_66;

impl Block<'_, '_> {
    /// Average of the values so far, weighted by `e^key` with exponential decay. The state contains
    /// the weighted sum and the sum of weights of each channel.
    pub(super) fn rwkv4(&mut self, h: ValueId) -> Result<ValueId> {
        let n = self.hp.n_embd;
        let shift = self.token_shift(h);
        let mut mix = |role| -> Result<ValueId> {
            let weight = self.shift_weight(role)?;
            Ok(self.lerp(h, shift, weight))
        };
        let (xk, xv) = (mix(&TIME_MIX_LERP_K)?, mix(&TIME_MIX_LERP_V)?);
        let xr = mix(&TIME_MIX_LERP_R)?;
        let k = self.linear(xk, &TIME_MIX_KEY, n)?;
        let v = self.linear(xv, &TIME_MIX_VALUE, n)?;
        let r = self.linear(xr, &TIME_MIX_RECEPTANCE, n)?;
        let nothing = self.g.scale(k, 0.0);
        let ones = self.g.activate(nothing, Activation::Exp);
        let weights = self.g.activate(k, Activation::Exp);
        let mut constant = |role, f: fn(f32) -> f32| -> Result<WeightId> {
            let stored = self.weights.vector(role, self.layer, n)?;
            let stored = stored.ok_or_else(|| self.weights.missing(role, self.layer))?;
            let floats = stored.into_iter().map(f).collect();
            Ok(self.weights.constant(role.gguf, floats))
        };
        let decay = constant(&TIME_MIX_DECAY, |w| (-w.exp()).exp())?;
        let bonus = constant(&TIME_MIX_FIRST, f32::exp)?;
        let spec = LinearAttentionOp {
            state: self.g.state(n, 2),
            n_heads: n,
            n_key_heads: n,
            sharing: KeySharing::Grouped,
            key_dim: 1,
            value_dim: 2,
            update: StateUpdate::Add,
            bonus: Some(bonus),
        };
        let both = self.g.concat(v, ones, n);
        let decay = self.g.scale_by(ones, decay);
        let sums = self.g.map(both, |out| Op::LinearAttention {
            q: ones,
            k: weights,
            v: both,
            decay,
            spec,
            out,
        });
        let (sum, weight) = (self.g.slice(sums, 2, 0, 1), self.g.slice(sums, 2, 1, 1));
        let share = self.g.activate(weight, Activation::Reciprocal);
        let mean = self.g.mul(sum, share);
        let y = self.g.glu(r, mean, Activation::Sigmoid);
        self.linear(y, &TIME_MIX_OUTPUT, n)
    }

    /// Token-shift weight of a projection. RWKV 4 stores the weight of the current token instead of
    /// the preceding one.
    fn shift_weight(&mut self, role: &TensorRole) -> Result<WeightId> {
        let n = self.hp.n_embd;
        let kind = self.hp.recurrent.as_ref().map(|params| params.kind);
        if kind != Some(RecurrentKind::Rwkv4) {
            return self.weights.required_vector(role, self.layer, n);
        }
        let own = self.weights.vector(role, self.layer, n)?;
        let own = own.ok_or_else(|| self.weights.missing(role, self.layer))?;
        let before = own.into_iter().map(|x| 1.0 - x).collect();
        Ok(self.weights.constant(role.gguf, before))
    }

    pub(super) fn rwkv6(&mut self, h: ValueId, params: &RecurrentParams) -> Result<ValueId> {
        let n = self.hp.n_embd;
        let shift = self.token_shift(h);
        // Token-shift weights depend on the token through low-rank projections.
        let own = self
            .weights
            .required_vector(&TIME_MIX_LERP_X, self.layer, n)?;
        let mixed = self.lerp(h, shift, own);
        let rank = self.weights.low_rank(&TIME_MIX_W1, self.layer, n)? / 5;
        let low = self.linear(mixed, &TIME_MIX_W1, 5 * rank)?;
        let low = self.g.activate(low, Activation::Tanh);
        let up = self.weights.experts(&TIME_MIX_W2, self.layer, 5, rank, n)?;
        let by_token = self.g.head_linear(low, up.weight, 5 * n);
        let weights = self.weights.shift_weights(RWKV6_SHIFTS, self.layer, n)?;
        let mut mix = |i: usize| {
            let weight = self.g.slice(by_token, 5 * n, i * n, n);
            let shifted = self.g.mul(weight, shift);
            let x = self.lerp(h, shift, weights[i]);
            self.g.add(x, shifted)
        };
        let [xw, xk, xv, xr, xg] = [0, 1, 2, 3, 4].map(&mut mix);

        let r = self.linear(xr, &TIME_MIX_RECEPTANCE, n)?;
        let k = self.linear(xk, &TIME_MIX_KEY, n)?;
        let v = self.linear(xv, &TIME_MIX_VALUE, n)?;
        let g = self.linear(xg, &TIME_MIX_GATE, n)?;
        let w = self.low_rank(
            xw,
            [&TIME_MIX_DECAY_W1, &TIME_MIX_DECAY_W2],
            Some(Activation::Tanh),
            Some(&TIME_MIX_DECAY),
        )?;
        let w = self.g.activate(w, Activation::Exp);
        let w = self.g.scale(w, -1.0);
        let decay = self.g.activate(w, Activation::Exp);
        let bonus = self.weights.flat_vector(&TIME_MIX_FIRST, self.layer, n)?;
        let y = self.wkv([r, k, v, decay], StateUpdate::Add, Some(bonus), params);
        let y = self.head_group_norm(y, params)?;
        let y = self.g.glu(g, y, Activation::Silu);
        self.linear(y, &TIME_MIX_OUTPUT, n)
    }

    pub(super) fn rwkv7(&mut self, h: ValueId, params: &RecurrentParams) -> Result<ValueId> {
        let n = self.hp.n_embd;
        let shift = self.token_shift(h);
        let weights = self.weights.shift_weights(RWKV7_SHIFTS, self.layer, n)?;
        let [xr, xw, xk, xv, xa, xg] = [0, 1, 2, 3, 4, 5].map(|i| self.lerp(h, shift, weights[i]));

        let r = self.linear(xr, &TIME_MIX_RECEPTANCE, n)?;
        let k = self.linear(xk, &TIME_MIX_KEY, n)?;
        let v = self.linear(xv, &TIME_MIX_VALUE, n)?;
        let v = self.mix_first_value(v, xv)?;
        let w = self.low_rank(
            xw,
            [&TIME_MIX_W1, &TIME_MIX_W2],
            Some(Activation::Tanh),
            Some(&TIME_MIX_W0),
        )?;
        let w = self.g.activate(w, Activation::Sigmoid);
        let w = self.g.scale(w, DECAY);
        let decay = self.g.activate(w, Activation::Exp);
        let a = self.low_rank(xa, [&TIME_MIX_A1, &TIME_MIX_A2], None, Some(&TIME_MIX_A0))?;
        let rate = self.g.activate(a, Activation::Sigmoid);
        let gate = self.low_rank(
            xg,
            [&TIME_MIX_G1, &TIME_MIX_G2],
            Some(Activation::Sigmoid),
            None,
        )?;

        // The removal key is separate; the added key is scaled by the learning rate.
        let vector = |role: &TensorRole, block: &mut Self| {
            block.weights.required_vector(role, block.layer, n)
        };
        let by_key = vector(&TIME_MIX_K_K, self)?;
        let removed = self.g.scale_by(k, by_key);
        let removed = self.normalize_heads(removed, params.state_dim, 1.0, KEY_EPSILON);
        let by_rate = vector(&TIME_MIX_K_A, self)?;
        let scaled = self.g.scale_by(k, by_rate);
        let opposite = self.g.scale(scaled, -1.0);
        let kept = self.g.mul(scaled, rate);
        let k = self.g.add(k, kept);
        let k = self.g.add(k, opposite);
        let update = StateUpdate::Rewrite {
            add: self.g.mul(removed, rate),
            remove: self.g.scale(removed, -1.0),
        };
        let y = self.wkv([r, k, v, decay], update, None, params);
        let y = self.head_group_norm(y, params)?;

        // Bonus: each head's own value, weighted by the product of its query and key.
        let heads = self.weights.head_rows(
            &TIME_MIX_R_K,
            self.layer,
            (params.n_heads, params.state_dim),
        )?;
        let agreed = self.g.mul(r, k);
        let agreed = self.g.head_linear(agreed, heads, params.n_heads);
        let own = self.g.mul(v, agreed);
        let y = self.g.add(y, own);
        let y = self.g.mul(y, gate);
        self.linear(y, &TIME_MIX_OUTPUT, n)
    }

    /// Mixes the first layer's values into those of later layers.
    fn mix_first_value(&mut self, v: ValueId, xv: ValueId) -> Result<ValueId> {
        let Some(first) = *self.first_value else {
            *self.first_value = Some(v);
            for role in [&TIME_MIX_V0, &TIME_MIX_V1, &TIME_MIX_V2] {
                self.weights.ignore(role, self.layer)?;
            }
            return Ok(v);
        };
        let share = self.low_rank(xv, [&TIME_MIX_V1, &TIME_MIX_V2], None, Some(&TIME_MIX_V0))?;
        let opposite = self.g.scale(v, -1.0);
        let difference = self.g.add(first, opposite);
        let mixed = self.g.glu(share, difference, Activation::Sigmoid);
        Ok(self.g.add(v, mixed))
    }

    /// Channel mixing, the feed-forward layer of RWKV.
    pub(super) fn channel_mix(&mut self, h: ValueId) -> Result<ValueId> {
        let n = self.hp.n_embd;
        let shift = self.token_shift(h);
        let own = self.shift_weight(&CHANNEL_MIX_LERP_K)?;
        let xk = self.lerp(h, shift, own);
        let n_ff = self.weights.shape(&CHANNEL_MIX_KEY, self.layer);
        let n_ff = n_ff.first().copied().unwrap_or(0);
        let k = self.linear(xk, &CHANNEL_MIX_KEY, n_ff)?;
        let k = self.g.activate(k, Activation::ReluSquared);
        let v = self.linear(k, &CHANNEL_MIX_VALUE, n)?;
        if !self.weights.has(&CHANNEL_MIX_RECEPTANCE, self.layer) {
            return Ok(v);
        }
        let own = self.shift_weight(&CHANNEL_MIX_LERP_R)?;
        let xr = self.lerp(h, shift, own);
        let r = self.linear(xr, &CHANNEL_MIX_RECEPTANCE, n)?;
        Ok(self.g.glu(r, v, Activation::Sigmoid))
    }

    /// `x + weight · shift`.
    fn lerp(&mut self, x: ValueId, shift: ValueId, weight: WeightId) -> ValueId {
        let back = self.g.scale_by(shift, weight);
        self.g.add(x, back)
    }

    /// `up · f(down · x) + bias`.
    fn low_rank(
        &mut self,
        x: ValueId,
        [down, up]: [&TensorRole; 2],
        activation: Option<Activation>,
        bias: Option<&TensorRole>,
    ) -> Result<ValueId> {
        let n = self.hp.n_embd;
        let rank = self.weights.low_rank(down, self.layer, n)?;
        let mut low = self.linear(x, down, rank)?;
        if let Some(activation) = activation {
            low = self.g.activate(low, activation);
        }
        let mut up = self.weights.linear(up, self.layer, rank, n)?;
        if let Some(bias) = bias {
            self.weights.add_bias(&mut up, bias, self.layer)?;
        }
        Ok(self.g.linear(low, &up))
    }

    fn wkv(
        &mut self,
        [q, k, v, decay]: [ValueId; 4],
        update: StateUpdate,
        bonus: Option<WeightId>,
        params: &RecurrentParams,
    ) -> ValueId {
        let (n_heads, dim) = (params.n_heads, params.state_dim);
        let spec = LinearAttentionOp {
            state: self.g.state(n_heads, dim * dim),
            n_heads,
            n_key_heads: n_heads,
            sharing: KeySharing::Grouped,
            key_dim: dim,
            value_dim: dim,
            update,
            bonus,
        };
        self.g.map(v, |out| Op::LinearAttention {
            q,
            k,
            v,
            decay,
            spec,
            out,
        })
    }

    /// Layer norm of each head.
    fn head_group_norm(&mut self, y: ValueId, params: &RecurrentParams) -> Result<ValueId> {
        let shape = (params.n_heads, params.state_dim);
        let norm = self.weights.group_norm(
            &TIME_MIX_NORM,
            self.layer,
            NormKind::Layer,
            shape,
            HEAD_EPSILON,
        )?;
        Ok(self.g.norm(y, &norm))
    }
}
