//! Q4_0: 32 weights of 4 bits, symmetric, with one scale.
//!
//! `w = d · (q − 8)`. Byte `i` holds weight `i` in its low nibble and weight `i + 16` in its high nibble.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::packing::{nibbles, pack_nibbles, scale_into};
use super::q8_0::Q8_0;
use super::search::scale::{inverse_or_zero, level, max_abs_signed, round_clamp};
use super::search::scale_x16::{Blocks, LANES, quantize_single};
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 32 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_0 {
    /// Scale.
    pub d: F16Le,
    /// Two weights per byte.
    pub qs: [u8; 16],
}

assert_layout!(Q4_0, 18);

impl Q4_0 {
    /// Returns the weights in units of `d`: −8 to 7.
    #[inline(always)]
    fn levels(&self) -> [i8; 32] {
        nibbles(&self.qs).map(|q| q as i8 - 8)
    }
}

impl Block for Q4_0 {
    const TYPE: TensorType = TensorType::Q4_0;
    const LEN: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        scale_into(out, self.d.to_f32(), &self.levels());
    }
}

impl Dot for Q4_0 {
    type Activation = Q8_0;

    #[inline]
    fn dot(&self, activations: &[Q8_0]) -> f32 {
        let a = &activations[0];
        self.d.to_f32() * a.d.to_f32() * a.dot_levels(&self.levels()) as f32
    }
}

impl Quantize for Q4_0 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        quantize_single(src, importance)
    }

    #[inline(always)]
    fn quantize_blocks(src: &[f32], importance: Option<&[f32]>, out: &mut [Self]) {
        quantize_symmetric(src, importance, 8, out, |d, q| Q4_0 {
            d,
            qs: pack_nibbles(q),
        });
    }
}

impl ScalarQuantized for Q4_0 {
    const GROUP: usize = 32;

    fn scale_and_offset(&self, _: usize) -> (f32, f32) {
        (self.d.to_f32(), 0.0)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&self.levels());
    }

    fn write_levels(&mut self, levels: &[i8]) {
        let q = std::array::from_fn(|i| (levels[i] + 8) as u8);
        self.qs = pack_nibbles(&q);
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, -8.0, 7.0)
    }
}

/// Quantizes blocks of Q4_0 and Q5_0, with levels `−half` to `half − 1`. `make` builds a block from its scale
/// and codes.
#[inline(always)]
pub(super) fn quantize_symmetric<B>(
    src: &[f32],
    importance: Option<&[f32]>,
    half: i32,
    out: &mut [B],
    make: impl Fn(F16Le, &[u8; 32]) -> B,
) {
    let (low, high) = (-half as f32, (half - 1) as f32);
    let mut q = [0; 32];
    if importance.is_none() {
        // The largest element gets the lowest level: bit-identical with ggml.
        for (block, src) in out.iter_mut().zip(src.chunks_exact(32)) {
            let d = max_abs_signed(src) / low;
            let inverse = inverse_or_zero(d);
            for (q, x) in q.iter_mut().zip(src) {
                *q = ((x * inverse + (half as f32 + 0.5)) as u8).min(2 * half as u8 - 1);
            }
            *block = make(F16Le::from_f32(d), &q);
        }
        return;
    }
    for (n, (out, src)) in out
        .chunks_mut(LANES)
        .zip(src.chunks(32 * LANES))
        .enumerate()
    {
        let blocks = Blocks::weighted(src, importance, n * LANES);
        let scales = blocks.best_scales(&[low, high], |x| round_clamp(x, low, high));
        for ((block, src), d) in out.iter_mut().zip(src.chunks_exact(32)).zip(scales) {
            let d = F16Le::from_f32(d);
            let inverse = inverse_or_zero(d.to_f32());
            for (q, x) in q.iter_mut().zip(src) {
                *q = (level(*x, inverse, -half, half - 1) + half) as u8;
            }
            *block = make(d, &q);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut qs = [0x88; 16];
        qs[0] = 0x0f;
        qs[15] = 0x9a;
        let out = floats(&Q4_0 {
            d: F16Le::from_f32(0.5),
            qs,
        });
        assert_eq!(
            [out[0], out[16], out[15], out[31], out[1]],
            [3.5, -4.0, 1.0, 0.5, 0.0]
        );
    }

    #[test]
    fn largest_element_gets_lowest_level() {
        let mut src = [0.0; 32];
        src[3] = 4.0;
        src[20] = -3.0;
        let block = Q4_0::quantize(&src);
        assert_eq!(block.d.to_f32(), -0.5);
        assert_eq!([block.qs[3], block.qs[4]], [0x80, 0xe8]);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q4_0>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q4_0>(0.09);
    }
}
