//! Loops over slices, four floats at a time; a remainder goes through a padded buffer.

use super::vector::F32x4;

/// `x = f(x)`.
#[inline(always)]
pub(crate) fn map(x: &mut [f32], f: impl Fn(F32x4) -> F32x4) {
    let (vectors, rest) = x.as_chunks_mut::<4>();
    for x in vectors {
        f(F32x4::load(x)).store(x);
    }
    if !rest.is_empty() {
        let mut last = padded(rest, 0.0);
        f(F32x4::load(&last)).store(&mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// `x = f(x, y)`; both have the same length.
#[inline(always)]
pub(crate) fn map2(x: &mut [f32], y: &[f32], f: impl Fn(F32x4, F32x4) -> F32x4) {
    let (vectors, rest) = x.as_chunks_mut::<4>();
    let (y_vectors, y_rest) = y.as_chunks::<4>();
    for (x, y) in vectors.iter_mut().zip(y_vectors) {
        f(F32x4::load(x), F32x4::load(y)).store(x);
    }
    if !rest.is_empty() {
        let mut last = padded(rest, 0.0);
        f(F32x4::load(&last), F32x4::load(&padded(y_rest, 0.0))).store(&mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Combines vectors into one, in four independent chains. They start from `fill`, with which a remainder is
/// padded.
#[inline(always)]
pub(crate) fn fold(x: &[f32], fill: f32, f: impl Fn(F32x4, F32x4) -> F32x4) -> F32x4 {
    let mut chains = [F32x4::splat(fill); 4];
    let (blocks, rest) = x.as_chunks::<16>();
    for block in blocks {
        let (vectors, _) = block.as_chunks::<4>();
        for i in 0..4 {
            chains[i] = f(chains[i], F32x4::load(&vectors[i]));
        }
    }
    for (i, x) in rest.chunks(4).enumerate() {
        chains[i] = f(chains[i], F32x4::load(&padded(x, fill)));
    }
    f(f(chains[0], chains[1]), f(chains[2], chains[3]))
}

/// `Σ x`.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    fold(x, 0.0, |a, b| a + b).sum()
}

/// The largest of `least` and all `f(x)`, ignoring NaN.
#[inline(always)]
pub(crate) fn largest(x: &[f32], least: f32, f: impl Fn(F32x4) -> F32x4) -> f32 {
    // With the operands in this order NaN is dropped.
    fold(x, least, |a, b| a.or_larger(f(b))).largest()
}

/// Up to four elements, padded with `fill`.
#[inline(always)]
pub(crate) fn padded(x: &[f32], fill: f32) -> [f32; 4] {
    let mut out = [fill; 4];
    out[..x.len()].copy_from_slice(x);
    out
}

impl F32x4 {
    /// The lanes.
    #[inline(always)]
    pub(crate) fn lanes(self) -> [f32; 4] {
        let mut out = [0.0; 4];
        self.store(&mut out);
        out
    }

    /// The sum of the lanes.
    #[inline(always)]
    pub(crate) fn sum(self) -> f32 {
        let [a, b, c, d] = self.lanes();
        (a + b) + (c + d)
    }

    /// The largest lane.
    #[inline(always)]
    pub(crate) fn largest(self) -> f32 {
        let [a, b, c, d] = self.lanes();
        a.max(b).max(c.max(d))
    }
}
