//! Q8_1: Q8_0 with the sum of its values, the activation format of formats with a minimum.
//!
//! `w = d · q`. With `s`, a dot product with `d · q + m` need not sum the activations.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::packing::{dot_i8, scale_into};
use super::q8_0::quantize_i8;
use super::{Block, Dot, Quantize, TensorType};

/// A block of 32 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_1 {
    /// Scale.
    pub d: F16Le,
    /// `d` times the sum of `qs`.
    pub s: F16Le,
    /// Values.
    pub qs: [i8; 32],
}

assert_layout!(Q8_1, 36);

impl Q8_1 {
    /// Returns the integer dot product with the levels of a block of weights.
    #[inline(always)]
    pub(super) fn dot_levels(&self, levels: &[i8; 32]) -> i32 {
        dot_i8(levels, &self.qs)
    }
}

impl Block for Q8_1 {
    const TYPE: TensorType = TensorType::Q8_1;
    const LEN: usize = 32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        scale_into(out, self.d.to_f32(), &self.qs);
    }
}

impl Dot for Q8_1 {
    type Activation = Q8_1;

    #[inline]
    fn dot(&self, activations: &[Q8_1]) -> f32 {
        let a = &activations[0];
        self.d.to_f32() * a.d.to_f32() * a.dot_levels(&self.qs) as f32
    }
}

impl Quantize for Q8_1 {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], _: Option<&[f32]>) -> Self {
        let (d, qs) = quantize_i8(src);
        let sum: i32 = qs.iter().map(|q| i32::from(*q)).sum();
        // As in ggml, the sum uses the scale before it is rounded to half precision.
        Q8_1 {
            d: F16Le::from_f32(d),
            s: F16Le::from_f32(sum as f32 * d),
            qs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn sum_is_of_quantized_values() {
        let mut src = [0.0; 32];
        (src[0], src[1], src[2]) = (-127.0, 2.5, 0.25);
        let block = Q8_1::quantize(&src);
        assert_eq!((block.d.to_f32(), block.s.to_f32()), (1.0, -124.0));
        assert_eq!(floats(&block)[..4], [-127.0, 3.0, 0.0, 0.0]);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q8_1>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q8_1>(0.0055);
    }
}
