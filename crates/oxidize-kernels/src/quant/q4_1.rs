//! Q4_1: 32 weights of 4 bits, with a scale and a minimum.
//!
//! `w = d · q + m`. Byte `i` holds weight `i` in its low nibble and weight `i + 16` in its high nibble.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::packing::{nibbles, pack_nibbles};
use super::q8_1::Q8_1;
use super::search::scale::{inverse_or_zero, level, round_clamp};
use super::search::scale_x16::{Blocks, LANES, quantize_single};
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_1 {
    /// Scale.
    pub d: F16Le,
    /// Minimum.
    pub m: F16Le,
    /// Two weights per byte.
    pub qs: [u8; 16],
}

assert_layout!(Q4_1, 20);

impl Block for Q4_1 {
    const TYPE: TensorType = TensorType::Q4_1;
    const LEN: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (out, q) in out.iter_mut().zip(nibbles(&self.qs)) {
            *out = d * f32::from(q) + m;
        }
    }
}

impl Dot for Q4_1 {
    type Activation = Q8_1;

    #[inline]
    fn dot(&self, activations: &[Q8_1]) -> f32 {
        let a = &activations[0];
        let sum = a.dot_levels(&nibbles(&self.qs).map(|q| q as i8));
        self.d.to_f32() * a.d.to_f32() * sum as f32 + self.m.to_f32() * a.s.to_f32()
    }
}

impl Quantize for Q4_1 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        quantize_single(src, importance)
    }

    #[inline(always)]
    fn quantize_blocks(src: &[f32], importance: Option<&[f32]>, out: &mut [Self]) {
        quantize_affine(src, importance, 15, out, |d, m, q| Q4_1 {
            d,
            m,
            qs: pack_nibbles(q),
        });
    }
}

impl ScalarQuantized for Q4_1 {
    const GROUP: usize = 32;

    fn scale_and_offset(&self, _: usize) -> (f32, f32) {
        (self.d.to_f32(), self.m.to_f32())
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&nibbles(&self.qs).map(|q| q as i8));
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let q = std::array::from_fn(|i| levels[i] as u8);
        self.qs = pack_nibbles(&q);
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, 0.0, 15.0)
    }
}

/// Quantizes blocks of Q4_1 and Q5_1, with levels 0 to `last`. `make` builds a block from its scale, minimum
/// and codes.
#[inline(always)]
pub(super) fn quantize_affine<B>(
    src: &[f32],
    importance: Option<&[f32]>,
    last: u8,
    out: &mut [B],
    make: impl Fn(F16Le, F16Le, &[u8; 32]) -> B,
) {
    let mut q = [0; 32];
    if importance.is_none() {
        // Bit-identical with ggml.
        for (block, src) in out.iter_mut().zip(src.chunks_exact(32)) {
            let (min, max) = min_max(src);
            let d = (max - min) / f32::from(last);
            let inverse = inverse_or_zero(d);
            for (q, x) in q.iter_mut().zip(src) {
                *q = (((x - min) * inverse + 0.5) as u8).min(last);
            }
            *block = make(F16Le::from_f32(d), F16Le::from_f32(min), &q);
        }
        return;
    }
    for (n, (out, src)) in out
        .chunks_mut(LANES)
        .zip(src.chunks(32 * LANES))
        .enumerate()
    {
        let blocks = Blocks::weighted(src, importance, n * LANES);
        let fits = blocks.best_affine(f32::from(last));
        for ((block, src), fit) in out.iter_mut().zip(src.chunks_exact(32)).zip(fits) {
            let (d, m) = (F16Le::from_f32(fit.scale), F16Le::from_f32(fit.min));
            let (inverse, min) = (inverse_or_zero(d.to_f32()), m.to_f32());
            for (q, x) in q.iter_mut().zip(src) {
                *q = level(x - min, inverse, 0, i32::from(last)) as u8;
            }
            *block = make(d, m, &q);
        }
    }
}

/// Returns the least and the greatest element, ignoring NaN.
fn min_max(src: &[f32]) -> (f32, f32) {
    let (mut min, mut max) = (f32::MAX, f32::MIN);
    for x in src {
        // Not `f32::min`, which may return either of 0 and -0.
        min = if *x < min { *x } else { min };
        max = if *x > max { *x } else { max };
    }
    (min, max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut qs = [0; 16];
        qs[2] = 0xf1;
        let out = floats(&Q4_1 {
            d: F16Le::from_f32(0.25),
            m: F16Le::from_f32(-1.0),
            qs,
        });
        assert_eq!([out[2], out[18], out[0]], [-0.75, 2.75, -1.0]);
    }

    #[test]
    fn representable_values_round_trip() {
        let src: [f32; 32] = std::array::from_fn(|i| (i / 2) as f32 - 3.0);
        let block = Q4_1::quantize(&src);
        assert_eq!((block.d.to_f32(), block.m.to_f32()), (1.0, -3.0));
        assert_eq!(floats(&block), src);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q4_1>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q4_1>(0.09);
    }
}
