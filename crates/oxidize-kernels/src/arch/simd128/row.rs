//! Norms, softmax and other operations on one row.

use super::math::{exp, tanh};
use super::slices::{largest, map, map2, padded, sum};
use super::vector::F32x4;
use crate::ops::rope::{self, RopeLayout};

pub(crate) fn rms_norm(x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    scale_by(x, 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt(), weight);
}

pub(crate) fn layer_norm(x: &mut [f32], weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) {
    let mean = F32x4::splat(sum(x) / x.len() as f32);
    map(x, |x| x - mean);
    rms_norm(x, weight, eps);
    if let Some(bias) = bias {
        add(x, bias);
    }
}

fn scale_by(x: &mut [f32], factor: f32, weight: Option<&[f32]>) {
    match weight {
        Some(weight) => map2(x, weight, |x, w| x * F32x4::splat(factor) * w),
        None => scale(x, factor),
    }
}

pub(crate) fn softmax(x: &mut [f32]) {
    let max = max(x);
    if max == f32::NEG_INFINITY {
        return x.fill(0.0);
    }
    map(x, |x| exp(x - F32x4::splat(max)));
    scale(x, 1.0 / sum(x));
}

/// The largest number, or −∞ if there is none.
fn max(x: &[f32]) -> f32 {
    largest(x, f32::NEG_INFINITY, |x| x)
}

pub(crate) fn argmax(x: &[f32]) -> usize {
    let max = max(x);
    if max == f32::NEG_INFINITY {
        return 0;
    }
    // Comparing a block at a time vectorizes; the number is then searched in its block.
    let equal = |x: &[f32]| x.iter().fold(false, |any, &x| any | (x == max));
    let block = x.chunks(64).position(equal).unwrap_or(0);
    let start = 64 * block;
    start + x[start..].iter().position(|&x| x == max).unwrap_or(0)
}

pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    map2(x, y, |x, y| x + y);
}

pub(crate) fn mul(x: &mut [f32], y: &[f32]) {
    map2(x, y, |x, y| x * y);
}

pub(crate) fn scale(x: &mut [f32], factor: f32) {
    map(x, |x| x * F32x4::splat(factor));
}

pub(crate) fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) {
    map2(x, y, |x, y| x.add_product(y, F32x4::splat(factor)));
}

pub(crate) fn softcap(x: &mut [f32], cap: f32) {
    let (cap, inverse) = (F32x4::splat(cap), F32x4::splat(1.0 / cap));
    map(x, |x| cap * tanh(x * inverse));
}

pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut chains = [F32x4::splat(0.0); 4];
    for (x, y) in x.chunks(16).zip(y.chunks(16)) {
        if let (Ok(x), Ok(y)) = (<&[f32; 16]>::try_from(x), <&[f32; 16]>::try_from(y)) {
            let (x, y) = (x.as_chunks().0, y.as_chunks().0);
            for i in 0..4 {
                chains[i] = chains[i].add_product(F32x4::load(&x[i]), F32x4::load(&y[i]));
            }
            continue;
        }
        for (i, (x, y)) in x.chunks(4).zip(y.chunks(4)).enumerate() {
            let (x, y) = (padded(x, 0.0), padded(y, 0.0));
            chains[i] = chains[i].add_product(F32x4::load(&x), F32x4::load(&y));
        }
    }
    (chains[0] + chains[1] + (chains[2] + chains[3])).sum()
}

/// See [`crate::Kernels::rope`].
pub(crate) fn rope(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32], layout: RopeLayout) {
    let half = cos.len();
    if !half.is_multiple_of(4) {
        return rope::rope(x, head_dim, cos, sin, layout);
    }
    let angles = cos.as_chunks().0.iter().zip(sin.as_chunks().0);
    let angles = angles.map(|(cos, sin)| (F32x4::load(cos), F32x4::load(sin)));
    for head in x.chunks_exact_mut(head_dim) {
        let (vectors, _) = head[..2 * half].as_chunks_mut();
        match layout {
            RopeLayout::Halves => {
                let (first, second) = vectors.split_at_mut(half / 4);
                for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles.clone()) {
                    let (x, y) = (F32x4::load(a), F32x4::load(b));
                    (x * cos - y * sin).store(a);
                    (x * sin + y * cos).store(b);
                }
            }
            RopeLayout::Interleaved => {
                let (pairs, _) = vectors.as_chunks_mut::<2>();
                for (pair, (cos, sin)) in pairs.iter_mut().zip(angles.clone()) {
                    // Each angle twice, and the first of each two sines negative.
                    let cos = cos.interleave(cos);
                    let sin = (F32x4::splat(0.0) - sin).interleave(sin);
                    for (h, x) in pair.iter_mut().enumerate() {
                        let v = F32x4::load(x);
                        (v * cos[h] + v.swap_pairs() * sin[h]).store(x);
                    }
                }
            }
        }
    }
}
