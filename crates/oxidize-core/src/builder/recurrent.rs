//! Recurrent layers: common parts, and the gated short convolution of LFM2.

use super::decoder::Block;
use crate::arch::RecurrentKind;
use crate::arch::hparams::RecurrentParams;
use crate::arch::names::*;
use crate::error::Result;
use crate::graph::{Activation, Op, ShortConvOp, ValueId, WeightId};
use crate::weights::{NormWeights, RowSlice};
use std::ops::Range;

impl Block<'_, '_> {
    /// Recurrent part of a layer, of the normalized input `h`.
    pub(super) fn recurrent(&mut self, h: ValueId) -> Result<ValueId> {
        let Some(params) = self.hp.recurrent.clone() else {
            return Err(self.weights.missing(&SSM_IN, self.layer));
        };
        match params.kind {
            RecurrentKind::ShortConv => self.gated_conv(h, &params),
            RecurrentKind::Mamba => self.mamba(h, &params),
            RecurrentKind::Mamba2 => self.mamba2(h, &params),
            RecurrentKind::DeltaNet => self.delta_net(h, &params),
            RecurrentKind::KimiDelta => self.kimi_delta(h, &params),
            RecurrentKind::Rwkv4 => self.rwkv4(h),
            RecurrentKind::Rwkv6 => self.rwkv6(h, &params),
            RecurrentKind::Rwkv7 => self.rwkv7(h, &params),
        }
    }

    /// `out · (c · conv(b · x))`.
    fn gated_conv(&mut self, h: ValueId, params: &RecurrentParams) -> Result<ValueId> {
        let n = self.hp.n_embd;
        let parts = [0, 1, 2].map(|i| RowSlice::range(i * n, n));
        let [b, c, x] = self
            .weights
            .split(&SHORTCONV_IN, self.layer, (n, 3 * n), parts)?;
        let (b, c) = (self.g.linear(h, &b), self.g.linear(h, &c));
        let x = self.g.linear(h, &x);
        let x = self.g.mul(b, x);
        let shape = (n, params.kernel);
        let x = self.conv(x, &SHORTCONV_CONV, shape, 0..n, None)?;
        let x = self.g.mul(c, x);
        self.linear(x, &SHORTCONV_OUT, n)
    }

    /// Convolution with some channels of a tensor of `(channels, kernel)`.
    pub(super) fn conv(
        &mut self,
        x: ValueId,
        role: &TensorRole,
        shape: (usize, usize),
        channels: Range<usize>,
        activation: Option<Activation>,
    ) -> Result<ValueId> {
        let (weight, bias) = self.weights.conv(role, self.layer, shape, channels)?;
        Ok(self.short_conv(x, shape.1, (weight, bias), activation))
    }

    /// Token shift of RWKV: the preceding row minus the current one.
    pub(super) fn token_shift(&mut self, x: ValueId) -> ValueId {
        let n = self.g.width(x);
        let mut taps = vec![1.0; n];
        taps.resize(2 * n, -1.0);
        let weight = self.weights.constant("token shift", taps);
        self.short_conv(x, 2, (weight, None), None)
    }

    fn short_conv(
        &mut self,
        x: ValueId,
        kernel: usize,
        (weight, bias): (WeightId, Option<WeightId>),
        activation: Option<Activation>,
    ) -> ValueId {
        let spec = ShortConvOp {
            state: self.g.state(1, (kernel - 1) * self.g.width(x)),
            kernel,
            weight,
            bias,
            activation,
        };
        self.g.map(x, |out| Op::ShortConv { x, spec, out })
    }

    /// Scales each head of `dim` elements to the Euclidean norm `scale`.
    pub(super) fn normalize_heads(
        &mut self,
        x: ValueId,
        dim: usize,
        scale: f32,
        epsilon: f32,
    ) -> ValueId {
        // The Euclidean norm is √dim times the root mean square.
        let root = (dim as f32).sqrt();
        let weight = self.weights.constant("head scale", vec![scale / root; dim]);
        let norm = NormWeights {
            kind: crate::graph::NormKind::Rms,
            weight: Some(weight),
            bias: None,
            epsilon: epsilon / dim as f32,
            width: dim,
        };
        self.g.norm(x, &norm)
    }
}
