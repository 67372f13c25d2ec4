//! Formulas of the reference backend.

use crate::graph::{Activation, NormKind, RopeFrequencies, RopeLayout};
use crate::math::erf;

pub(super) fn rope_table(frequencies: &RopeFrequencies, positions: &[u32]) -> Vec<f32> {
    let pairs = frequencies.radians.len();
    let mut out = Vec::with_capacity(positions.len() * 2 * pairs);
    for &position in positions {
        let angles = frequencies.radians.iter().map(|f| position as f32 * f);
        out.extend(
            angles
                .clone()
                .map(|angle| angle.cos() * frequencies.magnitude),
        );
        out.extend(angles.map(|angle| angle.sin() * frequencies.magnitude));
    }
    out
}

pub(super) fn rope(
    x: &[f32],
    table: &[f32],
    width: usize,
    dims: usize,
    head_dim: usize,
    layout: RopeLayout,
) -> Vec<f32> {
    let mut out = x.to_vec();
    for (row, table) in out.chunks_exact_mut(width).zip(table.chunks_exact(dims)) {
        let (cos, sin) = table.split_at(dims / 2);
        for head in row.chunks_exact_mut(head_dim) {
            for i in 0..dims / 2 {
                let (a, b) = match layout {
                    RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                    RopeLayout::Halves => (i, i + dims / 2),
                };
                let (x, y) = (head[a], head[b]);
                head[a] = x * cos[i] - y * sin[i];
                head[b] = x * sin[i] + y * cos[i];
            }
        }
    }
    out
}

pub(super) fn norm(
    kind: NormKind,
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    epsilon: f32,
    width: usize,
) -> Vec<f32> {
    let mut out = x.to_vec();
    for (index, group) in out.chunks_exact_mut(width).enumerate() {
        // A vector is as long as one group, or as a whole row.
        let of_group = |all: &'_ [f32]| -> Vec<f32> {
            all[index % (all.len() / width) * width..][..width].to_vec()
        };
        if kind == NormKind::Layer {
            let mean = (group.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64) as f32;
            group.iter_mut().for_each(|x| *x -= mean);
        }
        let square = group
            .iter()
            .map(|&x| f64::from(x) * f64::from(x))
            .sum::<f64>()
            / width as f64;
        let factor = 1.0 / (square as f32 + epsilon).sqrt();
        group.iter_mut().for_each(|x| *x *= factor);
        if let Some(weight) = weight.map(of_group) {
            group.iter_mut().zip(weight).for_each(|(x, w)| *x *= w);
        }
        if let Some(bias) = bias.map(of_group) {
            add_to(group, &bias);
        }
    }
    out
}

pub(super) fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => {
            (f64::from(x) * 0.5 * (1.0 + erf(f64::from(x) / 2f64.sqrt()))) as f32
        }
        Activation::GeluQuick => x / (1.0 + (-1.702 * x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0) * x.max(0.0),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Activation::Reciprocal => 1.0 / x,
        Activation::Exp => x.exp(),
    }
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum::<f64>() as f32
}

pub(super) fn add_to(row: &mut [f32], other: &[f32]) {
    row.iter_mut().zip(other).for_each(|(x, y)| *x += y);
}
