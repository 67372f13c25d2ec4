//! Softmax attention with the variants of all families: biases, norms, RoPE or ALiBi, windows,
//! sinks, gates, and keys and values shared with an earlier layer.

use super::decoder::Block;
use crate::arch::names::*;
use crate::arch::{Mixer, QkNorm};
use crate::error::Result;
use crate::graph::{Activation, AttentionOp, CacheInfo, Op, ValueId};
use crate::weights::QkvShape;

impl Block<'_, '_> {
    /// Attention of the normalized input `h`, followed by the optional post-norm.
    pub(super) fn attention(&mut self, h: ValueId) -> Result<ValueId> {
        let n_embd = self.hp.n_embd;
        let out = match self.arch.mixer {
            Mixer::Mla => self.latent_attention(h)?,
            Mixer::Attention if self.params().n_kv_heads == 0 => {
                // Some layers of pruned models contain only the output projection.
                self.caches.push(0);
                self.linear(h, &ATTN_OUTPUT, n_embd)?
            }
            Mixer::Attention => self.softmax_attention(h)?,
        };
        self.optional_norm(out, &ATTN_POST_NORM)
    }

    fn softmax_attention(&mut self, h: ValueId) -> Result<ValueId> {
        let params = self.params().clone();
        let (q_width, k_width) = (
            params.n_heads * params.key_dim,
            params.n_kv_heads * params.key_dim,
        );
        let v_width = params.n_kv_heads * params.value_dim;
        let mut gate = None;
        let (q, cache) = if params.kv_layer == self.layer {
            let shape = QkvShape {
                inputs: self.hp.n_embd,
                n_kv_heads: params.n_kv_heads,
                q: if self.arch.gated_queries {
                    2 * q_width
                } else {
                    q_width
                },
                k: k_width,
                v: v_width,
            };
            let (q, k, v) = self.weights.qkv(self.layer, shape)?;
            let q = self.g.linear(h, &q);
            let k = self.g.linear(h, &k);
            let v = v.map(|v| self.g.linear(h, &v)).unwrap_or(k);
            let (mut q, k, mut v) = (self.clamp(q), self.clamp(k), self.clamp(v));
            if self.arch.gated_queries {
                let dim = params.key_dim;
                gate = Some(self.g.slice(q, 2 * dim, dim, dim));
                q = self.g.slice(q, 2 * dim, 0, dim);
            }
            let k = self.g.scale(k, self.hp.multipliers.key);
            let q = self.position(q, &ATTN_Q_NORM, params.n_heads)?;
            let k = self.position(k, &ATTN_K_NORM, params.n_kv_heads)?;
            if self.arch.value_norm {
                v = self.unweighted_norm(v, params.value_dim);
            }
            v = self.g.scale(v, self.hp.value_scale);
            let cache = CacheInfo {
                n_kv_heads: params.n_kv_heads,
                key_dim: params.key_dim,
                value_dim: params.value_dim,
                values_in_keys: false,
            };
            (q, self.g.store_kv(k, Some(v), cache))
        } else {
            let q = self.linear(h, &ATTN_Q, q_width)?;
            let q = self.position(q, &ATTN_Q_NORM, params.n_heads)?;
            (q, self.caches[params.kv_layer])
        };
        self.caches.push(cache);

        let q = self.scale_queries(q);
        let spec = AttentionOp {
            layer: cache,
            n_heads: params.n_heads,
            n_kv_heads: params.n_kv_heads,
            key_dim: params.key_dim,
            value_dim: params.value_dim,
            scale: params.query_scale,
            mask: self.hp.mask,
            window: params.window,
            softcap: self.hp.attention_softcap,
            sinks: self
                .weights
                .vector_weight(&ATTN_SINKS, self.layer, params.n_heads)?,
            slopes: self
                .hp
                .max_alibi_bias
                .map(|bias| alibi_slopes(params.n_heads, bias)),
            relative: self.relative_bias()?,
        };
        let mut attended = self.g.attention(q, spec);
        if let Some(gate) = gate {
            attended = self.g.glu(gate, attended, Activation::Sigmoid);
        } else if self.weights.has(&ATTN_GATE, self.layer) {
            // The gate has either one value per element or one per head.
            let (width, activation) = (self.g.width(attended), self.arch.attention_gate);
            let shape = self.weights.shape(&ATTN_GATE, self.layer);
            attended = if shape.first() == Some(&params.n_heads) {
                let gate = self.linear(h, &ATTN_GATE, params.n_heads)?;
                let gate = self.g.activate(gate, activation);
                self.g.mul(attended, gate)
            } else {
                let gate = self.linear(h, &ATTN_GATE, width)?;
                self.g.glu(gate, attended, activation)
            };
        }
        attended = self.optional_norm(attended, &ATTN_SUB_NORM)?;
        self.linear(attended, &ATTN_OUTPUT, self.hp.n_embd)
    }

    /// Applies norm and RoPE to queries or keys, in the order of the family.
    fn position(&mut self, x: ValueId, norm: &TensorRole, n_heads: usize) -> Result<ValueId> {
        let (dim, rope) = (self.params().key_dim, self.params().rope);
        let x = match self.arch.qk_norm {
            QkNorm::BeforeRope => self.head_norm(x, norm, n_heads)?,
            _ => x,
        };
        let x = match rope {
            Some(rope) => self.g.rope(x, self.ropes[rope], dim, self.hp.rope_layout),
            None => x,
        };
        Ok(match self.arch.qk_norm {
            QkNorm::BeforeRope => x,
            QkNorm::AfterRope => self.head_norm(x, norm, n_heads)?,
            QkNorm::UnweightedAfterRope(_) if rope.is_none() => x,
            _ if self.hp.unweighted_qk_norm => self.unweighted_norm(x, dim),
            _ => x,
        })
    }

    /// Norm of each head or of all heads, if the model has one.
    fn head_norm(&mut self, x: ValueId, role: &TensorRole, n_heads: usize) -> Result<ValueId> {
        if !self.weights.has(role, self.layer) {
            return Ok(x);
        }
        let shape = (n_heads, self.params().key_dim);
        let norm = self
            .weights
            .head_norm(role, self.layer, shape, self.hp.epsilon)?;
        Ok(self.g.norm(x, &norm))
    }

    /// Temperature tuning of queries, in layers that use it.
    pub(super) fn scale_queries(&mut self, q: ValueId) -> ValueId {
        match self.hp.temperature {
            Some(spec) if self.params().temperature => {
                self.g.map(q, |out| Op::Temperature { x: q, spec, out })
            }
            _ => q,
        }
    }
}

/// ALiBi slopes (Press et al. 2022): a geometric series. If the number of heads is not a power of
/// two, slopes of the next finer series are appended.
fn alibi_slopes(n_heads: usize, max_bias: f32) -> Vec<f32> {
    let whole = if n_heads.is_power_of_two() {
        n_heads
    } else {
        n_heads.next_power_of_two() / 2
    };
    let slope = |step: usize, of: usize| 2f32.powf(-max_bias * step as f32 / of as f32);
    let coarse = (1..=whole).map(|step| slope(step, whole));
    let fine = (0..).map(|i| slope(2 * i + 1, 2 * whole));
    coarse.chain(fine).take(n_heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_match_the_paper() {
        assert_eq!(alibi_slopes(2, 8.0), [0.0625, 0.00390625]);
        let twelve = alibi_slopes(12, 8.0);
        assert_eq!(twelve[..8], alibi_slopes(8, 8.0));
        assert_eq!(twelve[8], alibi_slopes(16, 8.0)[0]);
        assert_eq!(twelve[9], alibi_slopes(16, 8.0)[2]);
    }
}
