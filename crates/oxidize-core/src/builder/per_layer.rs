//! Per-layer embeddings (Gemma 3n and 4): looked up once, combined with a projection of the token
//! embedding, and added through a gate at the end of each layer.

use super::Builder;
use super::decoder::Block;
use crate::arch::Hparams;
use crate::arch::names::*;
use crate::error::Result;
use crate::graph::ValueId;
use crate::weights::WeightLoader;
use std::f32::consts::FRAC_1_SQRT_2;

/// Per-layer embeddings of all layers; `None` if the model has none.
pub(super) fn inputs(
    g: &mut Builder,
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
    x: ValueId,
) -> Result<Option<ValueId>> {
    let width = hp.n_embd_per_layer;
    if width == 0 && !weights.has(&PER_LAYER_EMBEDDING, 0) {
        return Ok(None);
    }
    let all = hp.layers.len() * width;
    let table = weights.embedding(&PER_LAYER_EMBEDDING, all)?;
    let looked_up = g.embed(table.weight, all);
    let looked_up = g.scale(looked_up, (width as f32).sqrt());
    let projection = weights.linear(&PER_LAYER_PROJECTION, 0, hp.n_embd, all)?;
    let projected = g.linear(x, &projection);
    let projected = g.scale(projected, 1.0 / (hp.n_embd as f32).sqrt());
    let norm = weights.norm(&PER_LAYER_NORM, 0, width, hp.epsilon)?;
    let projected = g.norm(projected, &norm);
    let both = g.add(projected, looked_up);
    Ok(Some(g.scale(both, FRAC_1_SQRT_2)))
}

impl Block<'_, '_> {
    /// Contribution of the layer's embedding to the residual stream `x`.
    pub(super) fn per_layer_input(&mut self, x: ValueId, all: ValueId) -> Result<ValueId> {
        let (width, n_layers) = (self.hp.n_embd_per_layer, self.hp.layers.len());
        let own = self
            .g
            .slice(all, n_layers * width, self.layer * width, width);
        let gate = self.linear(x, &PER_LAYER_GATE, width)?;
        let gated = self.g.glu(gate, own, self.hp.activation);
        let out = self.linear(gated, &PER_LAYER_OUTPUT, self.hp.n_embd)?;
        self.norm(out, &PER_LAYER_POST_NORM)
    }
}
