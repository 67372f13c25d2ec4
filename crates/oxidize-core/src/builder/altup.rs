//! Gemma 3n: AltUp (Baykal et al. 2023) keeps several residual streams. It predicts all of them,
//! runs the layer on one and corrects the others by the prediction error. LAuReL (Menghani et al.
//! 2024) is a low-rank path parallel to attention.

use super::Builder;
use super::decoder::Block;
use crate::arch::Hparams;
use crate::arch::hparams::AltUpParams;
use crate::arch::names::*;
use crate::error::Result;
use crate::graph::{Activation, Op, ValueId};
use crate::weights::WeightLoader;
use std::f32::consts::FRAC_1_SQRT_2;

/// Streams that enter the first layer: `x`, with AltUp followed by its projections.
pub(super) fn split_streams(
    g: &mut Builder,
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
    x: ValueId,
) -> Result<Vec<ValueId>> {
    let mut streams = vec![x];
    if let Some(altup) = hp.altup {
        let further = altup.n_streams - 1;
        for linear in weights.numbered(&ALTUP_PROJECTION, further, hp.n_embd, hp.n_embd)? {
            let projected = g.linear(x, &linear);
            streams.push(match_magnitude(g, projected, x));
        }
    }
    Ok(streams)
}

/// Mean of the projected streams, after the last layer.
pub(super) fn merge_streams(
    g: &mut Builder,
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
    streams: Vec<ValueId>,
) -> Result<ValueId> {
    let mut sum = streams[0];
    if hp.altup.is_some() {
        let further = streams.len() - 1;
        let projections = weights.numbered(&ALTUP_UNEMBED, further, hp.n_embd, hp.n_embd)?;
        for (&stream, linear) in streams[1..].iter().zip(&projections) {
            let projected = g.linear(stream, linear);
            let matched = match_magnitude(g, projected, streams[0]);
            sum = g.add(sum, matched);
        }
    }
    Ok(g.scale(sum, 1.0 / streams.len() as f32))
}

fn match_magnitude(g: &mut Builder, x: ValueId, like: ValueId) -> ValueId {
    g.map(x, |out| Op::MatchMagnitude { x, like, out })
}

impl Block<'_, '_> {
    pub(super) fn forward_altup(&mut self, streams: &[ValueId]) -> Result<Vec<ValueId>> {
        let active = self.hp.altup.map_or(0, |AltUpParams { active, .. }| active);
        let predicted = self.predict(streams, active)?;

        let x = predicted[active];
        let h = self.norm(x, &ATTN_NORM)?;
        let shortcut = self.laurel(h)?;
        let attended = self.attention(h)?;
        let x = self.g.add(x, attended);
        let x = self.g.add(x, shortcut);
        let x = self.g.scale(x, FRAC_1_SQRT_2);
        let h = self.norm(x, &FFN_NORM)?;
        let fed = self.feed_forward(h, x)?;
        let x = self.g.add(x, fed);

        let mut corrected = self.correct(&predicted, active, x)?;
        let scale = self
            .weights
            .vector_weight(&ALTUP_CORRECT_SCALE, self.layer, self.hp.n_embd)?;
        let mut first = corrected[active];
        if let Some(weight) = scale {
            first = self.g.map(first, |out| Op::ScaleBy {
                x: first,
                weight,
                out,
            });
        }
        if let Some(own) = self.per_layer {
            let added = self.per_layer_input(first, own)?;
            for stream in &mut corrected[1..] {
                *stream = self.g.add(*stream, added);
            }
        }
        Ok(corrected)
    }

    /// Predicted streams: each stream plus a weighted sum of all.
    fn predict(&mut self, streams: &[ValueId], active: usize) -> Result<Vec<ValueId>> {
        let n = streams.len();
        let modalities = self.modalities(streams[active], n)?;
        let coefficients = self.linear(modalities, &ALTUP_PREDICT, n * n)?;
        let predict = |(i, &stream)| {
            let mixed = self.g.weighted_sum(streams.to_vec(), coefficients, i * n);
            self.g.add(mixed, stream)
        };
        Ok(streams.iter().enumerate().map(predict).collect())
    }

    /// Corrected streams: each prediction plus a multiple of the active stream's prediction error.
    fn correct(
        &mut self,
        predicted: &[ValueId],
        active: usize,
        computed: ValueId,
    ) -> Result<Vec<ValueId>> {
        let n = predicted.len();
        let modalities = self.modalities(computed, n)?;
        let mut linear = self.weights.linear(&ALTUP_CORRECT, self.layer, n, n)?;
        linear.bias = Some(self.weights.constant("one", vec![1.0; n]));
        let coefficients = self.g.linear(modalities, &linear);
        let opposite = self.g.scale(predicted[active], -1.0);
        let innovation = self.g.add(computed, opposite);
        let correct = |(i, &stream)| {
            let correction = self.g.weighted_sum(vec![innovation], coefficients, i);
            self.g.add(stream, correction)
        };
        Ok(predicted.iter().enumerate().map(correct).collect())
    }

    /// Modalities, from which the coefficients are computed.
    fn modalities(&mut self, x: ValueId, n: usize) -> Result<ValueId> {
        let h = self.norm(x, &ALTUP_ROUTER_NORM)?;
        let h = self.g.scale(h, 1.0 / self.hp.n_embd as f32);
        let routed = self.linear(h, &ALTUP_ROUTER, n)?;
        Ok(self.g.activate(routed, Activation::Tanh))
    }

    /// LAuReL: `h + norm(up · down · h)`.
    fn laurel(&mut self, h: ValueId) -> Result<ValueId> {
        let shape = self.weights.shape(&LAUREL_DOWN, self.layer);
        let rank = shape.first().copied().unwrap_or(0);
        let low = self.linear(h, &LAUREL_DOWN, rank)?;
        let up = self.linear(low, &LAUREL_UP, self.hp.n_embd)?;
        let up = self.norm(up, &LAUREL_NORM)?;
        Ok(self.g.add(h, up))
    }
}
