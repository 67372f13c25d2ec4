//! Multi-head latent attention (DeepSeek V2) in the absorbed form. The cache contains one
//! compressed vector and one rotated key per token, shared by all heads. The up-projections are
//! applied to queries and results instead of the cache.

use super::decoder::Block;
use crate::arch::hparams::MlaParams;
use crate::arch::names::*;
use crate::error::Result;
use crate::graph::{AttentionMask, AttentionOp, CacheInfo, ValueId};

impl Block<'_, '_> {
    pub(super) fn latent_attention(&mut self, h: ValueId) -> Result<ValueId> {
        let Some(MlaParams {
            q_rank,
            kv_rank,
            nope_dim,
            rope_dim,
            value_dim,
        }) = self.hp.mla
        else {
            return Err(self.weights.missing(&ATTN_KV_A, self.layer));
        };
        let params = self.params().clone();
        let n_heads = params.n_heads;
        let (w_k, w_v) =
            self.weights
                .latent_heads(self.layer, n_heads, kv_rank, (nope_dim, value_dim))?;

        // Queries consist of a part for the compressed keys and a part with RoPE.
        let q_width = n_heads * (nope_dim + rope_dim);
        let q = match q_rank {
            Some(rank) if self.weights.has(&ATTN_Q_A, self.layer) => {
                let compressed = self.linear(h, &ATTN_Q_A, rank)?;
                let compressed = self.norm(compressed, &ATTN_Q_A_NORM)?;
                self.linear(compressed, &ATTN_Q_B, q_width)?
            }
            _ => self.linear(h, &ATTN_Q, q_width)?,
        };
        let q_nope = self.g.slice(q, nope_dim + rope_dim, 0, nope_dim);
        let q_rope = self.g.slice(q, nope_dim + rope_dim, nope_dim, rope_dim);
        let q_latent = self.g.head_linear(q_nope, w_k, n_heads * kv_rank);
        let q_rope = self.rotate(q_rope, rope_dim);
        let q = self.g.concat(q_latent, q_rope, n_heads);
        let q = self.scale_queries(q);

        // Keys; their first part serves as the value.
        let kv = self.linear(h, &ATTN_KV_A, kv_rank + rope_dim)?;
        let latent = self.g.slice(kv, kv_rank + rope_dim, 0, kv_rank);
        let latent = self.norm(latent, &ATTN_KV_A_NORM)?;
        let k_rope = self.g.slice(kv, kv_rank + rope_dim, kv_rank, rope_dim);
        let k_rope = self.rotate(k_rope, rope_dim);
        let k = self.g.concat(latent, k_rope, 1);
        let cache = CacheInfo {
            n_kv_heads: 1,
            key_dim: kv_rank + rope_dim,
            value_dim: kv_rank,
            values_in_keys: true,
        };
        let cache = self.g.store_kv(k, None, cache);
        self.caches.push(cache);

        let spec = AttentionOp {
            layer: cache,
            n_heads,
            n_kv_heads: 1,
            key_dim: kv_rank + rope_dim,
            value_dim: kv_rank,
            scale: params.query_scale,
            mask: AttentionMask::Causal,
            window: params.window,
            softcap: None,
            sinks: None,
            slopes: None,
            relative: None,
        };
        let attended = self.g.attention(q, spec);
        let values = self.g.head_linear(attended, w_v, n_heads * value_dim);
        self.linear(values, &ATTN_OUTPUT, self.hp.n_embd)
    }

    fn rotate(&mut self, x: ValueId, dim: usize) -> ValueId {
        match self.params().rope {
            Some(rope) => self.g.rope(x, self.ropes[rope], dim, self.hp.rope_layout),
            None => x,
        }
    }
}
