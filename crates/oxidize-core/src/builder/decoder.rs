//! Builds the plan of a decoder from its descriptor. Encoders consist of the same layers;
//! [`super::encoder`] builds the rest of them.
//!
//! Optional norms, biases and experts are used if the file contains their tensors; the descriptor
//! defines how.

use super::{Builder, encoder};
use crate::arch::names::*;
use crate::arch::{Arch, Hparams, LayerParams};
use crate::error::Result;
use crate::graph::rope::RopeFactors;
use crate::graph::{AttentionMask, Op, OutputKind, Plan, ValueId, WeightId};
use crate::weights::{LinearWeights, NormWeights, WeightLoader};

/// Builds the plan of a model. `weights` loads the weights and checks their shapes.
pub fn build(arch: &'static Arch, hp: &Hparams, weights: &mut WeightLoader<'_>) -> Result<Plan> {
    let mut g = Builder::default();
    let embedding = weights.embedding(&TOKEN_EMBEDDING, hp.n_embd)?;
    let cross = match arch.encoder {
        Some(encoder) => encoder::build(&mut g, (encoder, arch), hp, weights, &embedding)?,
        None => Vec::new(),
    };
    let streams = stack(&mut g, arch, hp, weights, &embedding, &cross)?;
    let streams = streams.into_iter().map(|x| g.select_outputs(x)).collect();
    let mut x = super::altup::merge_streams(&mut g, hp, weights, streams)?;
    // Post-norm encoders have no final norm.
    if hp.mask != AttentionMask::Full || weights.has(&OUTPUT_NORM, 0) {
        x = g.norm(x, &weights.norm(&OUTPUT_NORM, 0, hp.n_embd, hp.epsilon)?);
    }
    if hp.mask == AttentionMask::Full || weights.has(&CLASSIFIER_OUTPUT, 0) {
        x = encoder::project(&mut g, hp, weights, x)?;
        let result = encoder::head(&mut g, hp, weights, x)?;
        return Ok(g.finish(x, result));
    }
    let output = weights.optional_linear(&OUTPUT, 0, hp.n_embd, embedding.outputs)?;
    // T5 1.0 uses the embeddings as the output projection and scales its input.
    let scale = match hp.relative {
        Some(_) if output.is_none() && !weights.has(&FFN_GATE, 0) => (hp.n_embd as f32).powf(-0.5),
        _ => hp.logit_scale,
    };
    let mut logits = g.linear(x, &output.unwrap_or(embedding));
    logits = g.scale(logits, scale);
    logits = g.softcap(logits, hp.logit_softcap);
    Ok(g.finish(x, (logits, OutputKind::Logits)))
}

/// Embeddings and all layers. With AltUp, there are several streams.
pub(super) fn stack(
    g: &mut Builder,
    arch: &Arch,
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
    embedding: &LinearWeights,
    cross: &[usize],
) -> Result<Vec<ValueId>> {
    let mut x = g.embed(embedding.weight, hp.n_embd);
    x = g.scale(x, hp.embedding_scale);
    if weights.has(&POSITION_EMBEDDING, 0) {
        let table = weights.embedding(&POSITION_EMBEDDING, hp.n_embd)?;
        let positions = g.embed_position(table.weight, arch.position_offset, hp.n_embd);
        x = g.add(x, positions);
    }
    if let Some(types) = weights.first_rows(&TOKEN_TYPES, hp.n_embd, 2)? {
        let has_two = types.len() > hp.n_embd;
        let types = weights.constant(TOKEN_TYPES.gguf, types);
        x = match has_two {
            true => g.add_segment(x, types),
            false => g.add_vector(x, types),
        };
    }
    if weights.has(&TOKEN_EMBEDDING_NORM, 0) {
        let norm = weights.norm(&TOKEN_EMBEDDING_NORM, 0, hp.n_embd, hp.epsilon)?;
        x = g.norm(x, &norm);
    }

    let ropes = rope_tables(g, hp, weights)?;
    let per_layer = super::per_layer::inputs(g, hp, weights, x)?;
    let mut streams = super::altup::split_streams(g, hp, weights, x)?;
    let mut caches = Vec::with_capacity(hp.layers.len());
    let (mut first_value, mut relative) = (None, None);
    for layer in 0..hp.layers.len() {
        streams = g.layer(|g| {
            let mut block = Block {
                g,
                arch,
                hp,
                weights: &mut *weights,
                layer,
                ropes: &ropes,
                per_layer,
                caches: &mut caches,
                first_value: &mut first_value,
                cross: cross.get(layer).copied(),
                relative: &mut relative,
            };
            match *streams.as_slice() {
                [x] => Ok(vec![block.forward(x)?]),
                _ => block.forward_altup(&streams),
            }
        })?;
    }
    Ok(streams)
}

/// RoPE tables that layers use.
fn rope_tables(
    g: &mut Builder,
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
) -> Result<Vec<ValueId>> {
    if hp.layers.iter().all(|layer| layer.rope.is_none()) {
        return Ok(Vec::new());
    }
    let mut tables = Vec::with_capacity(hp.ropes.len());
    for (index, rope) in hp.ropes.iter().enumerate() {
        let (mut rope, pairs) = (rope.clone(), rope.dims / 2);
        // Frequency factors in tensors apply to full layers, which use the first RoPE.
        if index == 0 {
            let short = weights.vector(&ROPE_FACTORS_SHORT, 0, pairs)?;
            let long = weights.vector(&ROPE_FACTORS_LONG, 0, pairs)?;
            if let (Some(short), Some(long)) = (short, long) {
                rope.factors = RopeFactors::ByContext {
                    short,
                    long,
                    original_context: hp.rope_original_context,
                };
            } else if let Some(factors) = weights.vector(&ROPE_FREQS, 0, pairs)? {
                rope.factors = RopeFactors::Fixed(factors);
            }
        }
        tables.push(g.rope_table(rope));
    }
    Ok(tables)
}

/// Layer under construction.
pub(super) struct Block<'a, 'w> {
    pub(super) g: &'a mut Builder,
    pub(super) arch: &'a Arch,
    pub(super) hp: &'a Hparams,
    pub(super) weights: &'a mut WeightLoader<'w>,
    pub(super) layer: usize,
    pub(super) ropes: &'a [ValueId],
    /// Per-layer embeddings of all layers.
    pub(super) per_layer: Option<ValueId>,
    /// Caches of the preceding layers.
    pub(super) caches: &'a mut Vec<usize>,
    /// RWKV 7: the values of the first layer.
    pub(super) first_value: &'a mut Option<ValueId>,
    /// Cache of the encoder's keys and values for this layer.
    cross: Option<usize>,
    /// T5: relative biases of this or an earlier layer.
    pub(super) relative: &'a mut Option<WeightId>,
}

impl Block<'_, '_> {
    fn forward(&mut self, x: ValueId) -> Result<ValueId> {
        let mut x = if self.hp.parallel {
            self.parallel(x)?
        } else {
            self.sequential(x)?
        };
        if let Some(own) = self.per_layer {
            let added = self.per_layer_input(x, own)?;
            x = self.g.add(x, added);
        }
        if let Some(scale) = self.weights.vector(&LAYER_SCALE, self.layer, 1)? {
            x = self.g.scale(x, scale[0]);
        }
        if let Some(n) = self.hp.halve_every
            && (self.layer + 1).is_multiple_of(n)
            && self.weights.is_gguf()
        {
            x = self.g.scale(x, 0.5);
        }
        Ok(x)
    }

    /// `x += mixer(norm(x))`, then `x += feed_forward(norm(x))`.
    fn sequential(&mut self, mut x: ValueId) -> Result<ValueId> {
        if self.params().n_heads > 0 || self.params().recurrent {
            let h = self.pre_norm(x, &ATTN_NORM)?;
            let mixed = self.mixer(h)?;
            x = self.add_residual(x, mixed);
            x = self.post_norm(x, &ATTN_SUM_NORM)?;
        } else {
            self.caches.push(0);
        }
        if let Some(cache) = self.cross {
            x = self.cross_attention(x, cache)?;
        }
        if self.has_feed_forward() {
            let h = self.pre_norm(x, &FFN_NORM)?;
            let fed = self.feed_forward(h, x)?;
            x = self.add_residual(x, fed);
            x = self.post_norm(x, &FFN_SUM_NORM)?;
        }
        Ok(x)
    }

    /// Attention, a recurrent part or both, of the normalized input `h`.
    fn mixer(&mut self, h: ValueId) -> Result<ValueId> {
        if self.params().n_heads == 0 {
            self.caches.push(0);
            return self.recurrent(h);
        }
        let multipliers = &self.hp.multipliers;
        let (before, after) = (multipliers.attention_in, multipliers.attention_out);
        let scaled = self.g.scale(h, before);
        let attended = self.attention(scaled)?;
        let attended = self.g.scale(attended, after);
        if !self.params().recurrent {
            return Ok(attended);
        }
        let recurred = self.recurrent(h)?;
        Ok(self.g.add(attended, recurred))
    }

    /// `x += attention(norm(x)) + feed_forward(norm'(x))`, where both norms may be the same.
    fn parallel(&mut self, x: ValueId) -> Result<ValueId> {
        let h = self.pre_norm(x, &ATTN_NORM)?;
        let attended = self.attention(h)?;
        let h = if self.weights.has(&FFN_NORM, self.layer) {
            self.norm(x, &FFN_NORM)?
        } else {
            h
        };
        let fed = self.feed_forward(h, x)?;
        let x = self.add_residual(x, attended);
        Ok(self.add_residual(x, fed))
    }

    pub(super) fn add_residual(&mut self, x: ValueId, added: ValueId) -> ValueId {
        let added = self.g.scale(added, self.hp.residual_scale);
        self.g.add(x, added)
    }

    pub(super) fn params(&self) -> &LayerParams {
        &self.hp.layers[self.layer]
    }

    pub(super) fn pre_norm(&mut self, x: ValueId, role: &TensorRole) -> Result<ValueId> {
        // In ModernBERT, the norm of the embeddings replaces the first norm of the first layer.
        let normalized = self.layer == 0 && self.weights.has(&TOKEN_EMBEDDING_NORM, 0);
        if !self.arch.pre_norm || normalized && !self.weights.has(role, 0) {
            Ok(x)
        } else {
            self.norm(x, role)
        }
    }

    /// Norm after a residual connection, in families without pre-norms. Other families use the
    /// tensor's name for a different norm.
    fn post_norm(&mut self, x: ValueId, role: &TensorRole) -> Result<ValueId> {
        match self.arch.pre_norm {
            true => Ok(x),
            false => self.optional_norm(x, role),
        }
    }

    pub(super) fn norm(&mut self, x: ValueId, role: &TensorRole) -> Result<ValueId> {
        let width = self.g.width(x);
        let norm = self
            .weights
            .norm(role, self.layer, width, self.hp.epsilon)?;
        Ok(self.g.norm(x, &norm))
    }

    pub(super) fn optional_norm(&mut self, x: ValueId, role: &TensorRole) -> Result<ValueId> {
        if self.weights.has(role, self.layer) {
            self.norm(x, role)
        } else {
            Ok(x)
        }
    }

    /// Norm of groups of `width` elements, without weights.
    pub(super) fn unweighted_norm(&mut self, x: ValueId, width: usize) -> ValueId {
        let norm = NormWeights::unweighted(self.arch.norm, width, self.hp.epsilon);
        self.g.norm(x, &norm)
    }

    pub(super) fn linear(
        &mut self,
        x: ValueId,
        role: &TensorRole,
        outputs: usize,
    ) -> Result<ValueId> {
        let inputs = self.g.width(x);
        let linear = self.weights.linear(role, self.layer, inputs, outputs)?;
        Ok(self.g.linear(x, &linear))
    }

    /// Clamps queries, keys or values, in models with such a bound.
    pub(super) fn clamp(&mut self, x: ValueId) -> ValueId {
        match self.hp.qkv_limit {
            Some(limit) => self.g.map(x, |out| Op::Clamp { x, limit, out }),
            None => x,
        }
    }
}
