//! Gemma 3n's several streams: AltUp (Baykal et al. 2023) predicts all of them, lets the layer
//! compute on one, and corrects the others by what it learned; LAuReL (Menghani et al. 2024) is a
//! low-rank path beside attention.

use super::decoder::Block;
use super::{Activation, Builder, Op, ValueId};
use crate::arch::Hparams;
use crate::arch::hparams::AltUpParams;
use crate::arch::names::*;
use crate::error::Result;
use crate::model::WeightLoader;
use std::f32::consts::FRAC_1_SQRT_2;

/// The streams that layers work on: `x` alone, or, with AltUp, projections of it as well.
pub(super) fn open(
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

/// The mean of all streams, projected back.
pub(super) fn close(
    g: &mut Builder,
    hp: &Hparams,
    weights: &mut WeightLoader<'_>,
    streams: Vec<ValueId>,
) -> Result<ValueId> {
    let mut sum = streams[0];
    if hp.altup.is_some() {
        let further = streams.len() - 1;
        let back = weights.numbered(&ALTUP_UNEMBED, further, hp.n_embd, hp.n_embd)?;
        for (&stream, linear) in streams[1..].iter().zip(&back) {
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

    /// What the streams will be: each plus a mixture of all.
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

    /// The predictions, moved by how far the active one was off.
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
            let moved = self.g.weighted_sum(vec![innovation], coefficients, i);
            self.g.add(stream, moved)
        };
        Ok(predicted.iter().enumerate().map(correct).collect())
    }

    /// What coefficients are computed from.
    fn modalities(&mut self, x: ValueId, n: usize) -> Result<ValueId> {
        let h = self.norm(x, &ALTUP_ROUTER_NORM)?;
        let h = self.g.scale(h, 1.0 / self.hp.n_embd as f32);
        let routed = self.linear(h, &ALTUP_ROUTER, n)?;
        Ok(self.g.activate(routed, Activation::Tanh))
    }

    /// `h + norm(up · down · h)`, of low rank.
    fn laurel(&mut self, h: ValueId) -> Result<ValueId> {
        let shape = self.weights.shape(&LAUREL_DOWN, self.layer);
        let rank = shape.first().copied().unwrap_or(0);
        let low = self.linear(h, &LAUREL_DOWN, rank)?;
        let back = self.linear(low, &LAUREL_UP, self.hp.n_embd)?;
        let back = self.norm(back, &LAUREL_NORM)?;
        Ok(self.g.add(h, back))
    }
}
