//! What encoders have of their own: the part of an encoder-decoder that reads the prompt, the
//! attention of its decoder to what was read, biases by distance, and heads that make no logits.

use super::decoder::{Block, stack};
use super::{Activation, AttentionOp, Builder, CacheInfo, Gives, Sees, ValueId, WeightId};
use crate::arch::hparams::RelativeParams;
use crate::arch::names::*;
use crate::arch::{Arch, Hparams};
use crate::error::Result;
use crate::model::{LinearWeights, WeightLoader};

/// Writes down the encoder, and the keys and values that each layer of the decoder has of what it
/// read; returns their caches.
pub(super) fn read_prompt(
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

/// What a model without logits gives: scores where it has a classifier, else its hidden states.
pub(super) fn head(
    g: &mut Builder,
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
    hidden: ValueId,
) -> Result<(ValueId, Gives)> {
    let Some(&n_labels) = weights.shape(&CLASSIFIER_OUTPUT, 0).first() else {
        return Ok((hidden, Gives::Hidden));
    };
    let mut x = hidden;
    if let Some(linear) = weights.optional_linear(&CLASSIFIER, 0, hp.n_embd, hp.n_embd)? {
        x = g.linear(x, &linear);
        x = g.activate(x, Activation::Tanh);
    }
    let scores = weights.linear(&CLASSIFIER_OUTPUT, 0, hp.n_embd, n_labels)?;
    Ok((g.linear(x, &scores), Gives::Scores))
}

/// What sentence-transformers put behind some models. It comes after the pooling there; both are
/// linear, so that the order does not matter.
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
    /// `x += attention(norm(x))` over what the encoder has read.
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
            sees: Sees::Encoded,
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

    /// The layer's biases by distance; those of the first layer where it has none of its own.
    pub(super) fn relative_bias(&mut self) -> Result<Option<WeightId>> {
        let Some(params) = self.hp.relative else {
            return Ok(None);
        };
        let n_heads = self.params().n_heads;
        let shape = [params.n_buckets, n_heads];
        if let Some(stored) = self.weights.table(&ATTN_RELATIVE, self.layer, shape)? {
            let table = relative_table(&params, &stored, n_heads, self.hp.sees == Sees::All);
            *self.relative = Some(self.weights.constant("relative bias", table));
        }
        match *self.relative {
            None => Err(self.weights.missing(&ATTN_RELATIVE, self.layer)),
            relative => Ok(relative),
        }
    }
}

/// From biases of buckets (buckets × heads) to those of distances (heads × distances, from the
/// farthest before to the farthest after).
fn relative_table(
    params: &RelativeParams,
    stored: &[f32],
    n_heads: usize,
    both_ways: bool,
) -> Vec<f32> {
    let reach = params.max_distance as i64;
    let of_head = |head: usize| {
        (-reach..=reach)
            .map(move |distance| stored[bucket(distance, params, both_ways) * n_heads + head])
    };
    (0..n_heads).flat_map(of_head).collect()
}

/// The bucket of keys at a distance: one each for near ones, then ever wider ones (Raffel et al.
/// 2019). Where both directions are seen, each has half of them.
fn bucket(distance: i64, params: &RelativeParams, both_ways: bool) -> usize {
    let (first, n) = match both_ways {
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
    let distance = match both_ways {
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

    /// Values of the function in `transformers`.
    #[test]
    fn buckets_are_those_of_t5() {
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
