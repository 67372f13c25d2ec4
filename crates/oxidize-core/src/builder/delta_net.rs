//! Gated delta networks (Yang et al. 2024): Qwen's with a decay per head, Kimi's with a decay per
//! row of the state.

use super::decoder::Block;
use crate::arch::hparams::RecurrentParams;
use crate::arch::names::*;
use crate::error::Result;
use crate::graph::{Activation, LinearAttentionOp, NormKind, Op, StateUpdate, ValueId};
use crate::weights::{LinearWeights, RowSlice};

/// Added to the squared norm of a key.
const EPSILON: f32 = 1e-6;

/// Projections of a layer.
struct Projections {
    q: LinearWeights,
    k: LinearWeights,
    v: LinearWeights,
    z: LinearWeights,
    beta: LinearWeights,
    alpha: LinearWeights,
}

impl Block<'_, '_> {
    pub(super) fn delta_net(&mut self, h: ValueId, params: &RecurrentParams) -> Result<ValueId> {
        let RecurrentParams {
            inner,
            n_heads,
            n_groups,
            state_dim: key_dim,
            ..
        } = *params;
        let keys = n_groups * key_dim;
        let projections = self.delta_projections(params)?;
        let [q, k, v, z] = [projections.q, projections.k, projections.v, projections.z]
            .map(|linear| self.g.linear(h, &linear));
        let mut conv = |x: ValueId, start: usize, len: usize| {
            let (shape, range) = ((2 * keys + inner, params.kernel), start..start + len);
            self.conv(x, &SSM_CONV, shape, range, Some(Activation::Silu))
        };
        let q = conv(q, 0, keys)?;
        let k = conv(k, keys, keys)?;
        let v = conv(v, 2 * keys, inner)?;

        let beta = self.g.linear(h, &projections.beta);
        let mut alpha = projections.alpha;
        self.weights
            .add_bias(&mut alpha, &SSM_DT_BIAS, self.layer)?;
        let alpha = self.g.linear(h, &alpha);
        let rates = self
            .weights
            .decay_rates(&SSM_A, self.layer, &[n_heads], 1)?;
        let decay = self.decay(alpha, rates);
        let y = self.delta_rule([q, k, v, decay, beta], params);
        let shape = (1, inner / n_heads);
        let norm = self.weights.group_norm(
            &SSM_NORM,
            self.layer,
            NormKind::Rms,
            shape,
            self.hp.epsilon,
        )?;
        let y = self.g.norm(y, &norm);
        let y = self.g.glu(z, y, Activation::Silu);
        self.linear(y, &SSM_OUT, self.hp.n_embd)
    }

    /// Loads the projections, which are either separate tensors or grouped by key head in one
    /// matrix.
    fn delta_projections(&mut self, params: &RecurrentParams) -> Result<Projections> {
        let RecurrentParams {
            inner,
            n_heads,
            n_groups,
            state_dim: key_dim,
            ..
        } = *params;
        let (n_embd, layer) = (self.hp.n_embd, self.layer);
        let keys = n_groups * key_dim;
        // Rows of one projection in a matrix grouped by key head.
        let by_key_head = |start: usize, len: usize, stride: usize| RowSlice {
            start,
            len,
            stride,
            runs: n_groups,
        };
        let [q, k, v, z] = if self.weights.has(&DELTA_QKVZ, layer) {
            let (values, stride) = (inner / n_groups, (2 * keys + 2 * inner) / n_groups);
            let parts = [
                (0, key_dim),
                (key_dim, key_dim),
                (2 * key_dim, values),
                (2 * key_dim + values, values),
            ]
            .map(|(start, len)| by_key_head(start, len, stride));
            let shape = (n_embd, stride * n_groups);
            self.weights.split(&DELTA_QKVZ, layer, shape, parts)?
        } else {
            let parts = [(0, keys), (keys, keys), (2 * keys, inner)]
                .map(|(at, len)| RowSlice::range(at, len));
            let shape = (n_embd, 2 * keys + inner);
            let [q, k, v] = self.weights.split(&DELTA_QKV, layer, shape, parts)?;
            let z = self.weights.linear(&DELTA_GATE, layer, n_embd, inner)?;
            [q, k, v, z]
        };
        let [beta, alpha] = if self.weights.has(&DELTA_BETA_ALPHA, layer) {
            let each = n_heads / n_groups;
            let parts = [0, each].map(|start| by_key_head(start, each, 2 * each));
            let shape = (n_embd, 2 * n_heads);
            self.weights.split(&DELTA_BETA_ALPHA, layer, shape, parts)?
        } else {
            [
                self.weights.linear(&DELTA_BETA, layer, n_embd, n_heads)?,
                self.weights.linear(&DELTA_ALPHA, layer, n_embd, n_heads)?,
            ]
        };
        Ok(Projections {
            q,
            k,
            v,
            z,
            beta,
            alpha,
        })
    }

    /// Kimi's variant: separate convolutions, low-rank gates, a sigmoid gate of the result.
    pub(super) fn kimi_delta(&mut self, h: ValueId, params: &RecurrentParams) -> Result<ValueId> {
        let RecurrentParams {
            inner,
            n_heads,
            state_dim: dim,
            ..
        } = *params;
        let mut project = |linear: &TensorRole, conv: &TensorRole| {
            let x = self.linear(h, linear, inner)?;
            let shape = (inner, params.kernel);
            self.conv(x, conv, shape, 0..inner, Some(Activation::Silu))
        };
        let q = project(&ATTN_Q, &KIMI_Q_CONV)?;
        let k = project(&ATTN_K, &KIMI_K_CONV)?;
        let v = project(&ATTN_V, &KIMI_V_CONV)?;
        let beta = self.linear(h, &DELTA_BETA, n_heads)?;
        let mut up = self.weights.linear(&KIMI_F_B, self.layer, dim, inner)?;
        self.weights.add_bias(&mut up, &SSM_DT_BIAS, self.layer)?;
        let low = self.linear(h, &KIMI_F_A, dim)?;
        let alpha = self.g.linear(low, &up);
        let rates = self
            .weights
            .decay_rates(&SSM_A, self.layer, &[n_heads], dim)?;
        let decay = self.decay(alpha, rates);
        let y = self.delta_rule([q, k, v, decay, beta], params);
        let norm = self.weights.group_norm(
            &SSM_NORM,
            self.layer,
            NormKind::Rms,
            (1, dim),
            self.hp.epsilon,
        )?;
        let y = self.g.norm(y, &norm);
        let low = self.linear(h, &KIMI_G_A, dim)?;
        let gate = self.linear(low, &KIMI_G_B, inner)?;
        let y = self.g.glu(gate, y, Activation::Sigmoid);
        self.linear(y, &ATTN_OUTPUT, self.hp.n_embd)
    }

    /// `e^(rate · softplus(x))`.
    fn decay(&mut self, x: ValueId, rates: crate::graph::WeightId) -> ValueId {
        let x = self.g.activate(x, Activation::Softplus);
        let x = self.g.scale_by(x, rates);
        self.g.activate(x, Activation::Exp)
    }

    fn delta_rule(
        &mut self,
        [q, k, v, decay, beta]: [ValueId; 5],
        params: &RecurrentParams,
    ) -> ValueId {
        let (n_heads, key_dim) = (params.n_heads, params.state_dim);
        let value_dim = params.inner / n_heads;
        let scale = 1.0 / (key_dim as f32).sqrt();
        let q = self.normalize_heads(q, key_dim, scale, EPSILON);
        let k = self.normalize_heads(k, key_dim, 1.0, EPSILON);
        let beta = self.g.activate(beta, Activation::Sigmoid);
        let spec = LinearAttentionOp {
            state: self.g.state(n_heads, key_dim * value_dim),
            n_heads,
            n_key_heads: params.n_groups,
            sharing: params.sharing,
            key_dim,
            value_dim,
            update: StateUpdate::Delta { beta },
            bonus: None,
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
}
