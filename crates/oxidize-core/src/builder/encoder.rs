//! Encoders: the encoder of encoder-decoder models, cross-attention to it, relative position
//! biases, and heads other than logits.

use super::Builder;
use super::decoder::{Block, stack};
use crate::arch::hparams::RelativeParams;
use crate::arch::names::*;
use crate::arch::{Arch, Hparams};
use crate::error::Result;
use crate::graph::{
    Activation, AttentionMask, AttentionOp, CacheInfo, OutputKind, ValueId, WeightId,
};
use crate::weights::{LinearWeights, WeightLoader};

/// Builds the encoder, and the keys and values of its output for each layer of the decoder. Returns
/// their caches.
pub(super) fn build(
    g: &mut Builder,
    (encoder, decoder): (&'static Arch, &'static Arch),
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
    embedding: &LinearWeights,
) -> Result<Vec<usize>> {
    weights.set_arch(encoder);
    let own = hp.of_encoder();
    let x = stack(g, encoder, &own, weights, embedding, &[])?[0];
    let x = g.norm(x, &weights.norm(&OUTPUT_NORM, 0, hp.n_embd, hp.epsilon)?);
    weights.set_arch(decoder);
    let mut caches = Vec::with_capacity(hp.layers.len());
    for (layer, params) in hp.layers.iter().enumerate() {
        let cache = CacheInfo {
            n_kv_heads: params.n_kv_heads,
            key_dim: params.key_dim,
            value_dim: params.value_dim,
            values_in_keys: false,
        };
        let widths = [cache.key_dim, cache.value_dim].map(|dim| cache.n_kv_heads * dim);
        let k = weights.linear(&CROSS_K, layer, hp.n_embd, widths[0])?;
        let v = weights.linear(&CROSS_V, layer, hp.n_embd, widths[1])?;
        let (k, v) = (g.linear(x, &k), g.linear(x, &v));
        caches.push(g.store_kv(k, Some(v), cache));
    }
    g.end_encoder();
    Ok(caches)
}

/// Result of a model without logits: scores if it has a classifier, else hidden states.
pub(super) fn head(
    g: &mut Builder,
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
    hidden: ValueId,
) -> Result<(ValueId, OutputKind)> {
    let Some(&n_labels) = weights.shape(&CLASSIFIER_OUTPUT, 0).first() else {
        return Ok((hidden, OutputKind::Hidden));
    };
    let mut x = hidden;
    if let Some(linear) = weights.optional_linear(&CLASSIFIER, 0, hp.n_embd, hp.n_embd)? {
        x = g.linear(x, &linear);
        x = g.activate(x, Activation::Tanh);
    }
    let scores = weights.linear(&CLASSIFIER_OUTPUT, 0, hp.n_embd, n_labels)?;
    Ok((g.linear(x, &scores), OutputKind::Scores))
}

/// Dense layers of sentence-transformers. There, they follow the pooling; both are linear, so the
/// order is irrelevant.
pub(super) fn project(
    g: &mut Builder,
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
    mut x: ValueId,
) -> Result<ValueId> {
    let mut width = hp.n_embd;
    for role in [&EMBEDDING_DENSE_2, &EMBEDDING_DENSE_3] {
        if let Some(&outputs) = weights.shape(role, 0).first() {
            let linear = weights.linear(role, 0, width, outputs)?;
            x = g.linear(x, &linear);
            width = outputs;
        }
    }
    Ok(x)
}

impl Block<'_, '_> {
    /// Cross-attention: `x += attention(norm(x))` over the encoder's output.
    pub(super) fn cross_attention(&mut self, x: ValueId, cache: usize) -> Result<ValueId> {
        let params = self.params().clone();
        let h = self.norm(x, &CROSS_NORM)?;
        let q = self.linear(h, &CROSS_Q, params.n_heads * params.key_dim)?;
        let spec = AttentionOp {
            layer: cache,
            n_heads: params.n_heads,
            n_kv_heads: params.n_kv_heads,
            key_dim: params.key_dim,
            value_dim: params.value_dim,
            scale: params.query_scale,
            mask: AttentionMask::Cross,
            window: None,
            softcap: None,
            sinks: None,
            slopes: None,
            relative: None,
        };
        let attended = self.g.attention(q, spec);
        let out = self.linear(attended, &CROSS_OUTPUT, self.hp.n_embd)?;
        Ok(self.add_residual(x, out))
    }

    /// Relative biases of the layer, or of the first layer if it has none.
    pub(super) fn relative_bias(&mut self) -> Result<Option<WeightId>> {
        let Some(params) = self.hp.relative else {
            return Ok(None);
        };
        let n_heads = self.params().n_heads;
        let shape = [params.n_buckets, n_heads];
        if let Some(stored) = self.weights.table(&ATTN_RELATIVE, self.layer, shape)? {
            let table = relative_table(
                &params,
                &stored,
                n_heads,
                self.hp.mask == AttentionMask::Full,
            );
            *self.relative = Some(self.weights.constant("relative bias", table));
        }
        match *self.relative {
            None => Err(self.weights.missing(&ATTN_RELATIVE, self.layer)),
            relative => Ok(relative),
        }
    }
}

/// Converts biases of buckets (buckets × heads) to biases of distances (heads × distances, from the
/// most negative to the most positive).
fn relative_table(
    params: &RelativeParams,
    stored: &[f32],
    n_heads: usize,
    bidirectional: bool,
) -> Vec<f32> {
    let reach = params.max_distance as i64;
    let of_head = |head: usize| {
        (-reach..=reach)
            .map(move |distance| stored[bucket(distance, params, bidirectional) * n_heads + head])
    };
    (0..n_heads).flat_map(of_head).collect()
}

/// Bucket of keys at a distance: one per small distance, then ranges of increasing size (Raffel et
/// al. 2019). With bidirectional attention, each direction has half of the buckets.
fn bucket(distance: i64, params: &RelativeParams, bidirectional: bool) -> usize {
    let (first, n) = match bidirectional {
        true => (
            if distance > 0 {
                params.n_buckets / 2
            } else {
                0
            },
            params.n_buckets / 2,
        ),
        false => (0, params.n_buckets),
    };
    let distance = match bidirectional {
        true => distance.unsigned_abs() as usize,
        false => (-distance).max(0) as usize,
    };
    let exact = n / 2;
    if distance < exact {
        return first + distance;
    }
    let share =
        (distance as f32 / exact as f32).ln() / (params.max_distance as f32 / exact as f32).ln();
    first + (exact + (share * (n - exact) as f32) as usize).min(n - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values computed with `transformers`.
    #[test]
    fn buckets_match_t5() {
        let params = RelativeParams {
            n_buckets: 32,
            max_distance: 128,
        };
        let both = |distance| bucket(distance, &params, true);
        assert_eq!(
            [0, -1, -7, -8, -20, -127, -500].map(both),
            [0, 1, 7, 8, 10, 15, 15]
        );
        assert_eq!([1, 7, 8, 20, 500].map(both), [17, 23, 24, 26, 31]);
        let past = |distance| bucket(distance, &params, false);
        assert_eq!(
            [3, 0, -1, -15, -16, -40, -127, -500].map(past),
            [0, 0, 1, 15, 16, 23, 31, 31]
        );
    }
}
