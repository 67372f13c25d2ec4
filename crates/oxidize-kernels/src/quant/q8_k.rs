//! Q8_K: 256 values of 8 bits, the activation format of every 256-weight format.
//!
//! `w = d · q`. With `bsums`, dot products with minimums need not sum the activations.

use bytemuck::{Pod, Zeroable};

use super::fields::{F32Le, I16Le};
use super::packing::{dot_i8, scale_into};
use super::search::scale::{level, max_abs_signed};
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_K {
    /// Scale.
    pub d: F32Le,
    /// Values.
    pub qs: [i8; 256],
    /// Sums of `qs` over groups of 16.
    pub bsums: [I16Le; 16],
}

assert_layout!(Q8_K, 292);

impl Q8_K {
    /// Returns the integer dot product with a block of weights: `G` groups of levels with a scale each.
    /// Does not overflow for levels and scales of 8 bits.
    #[inline(always)]
    pub(super) fn dot_levels<const G: usize>(&self, levels: &[i8; 256], scales: &[i32; G]) -> i32 {
        let groups = levels
            .chunks_exact(256 / G)
            .zip(self.qs.chunks_exact(256 / G));
        groups
            .zip(scales)
            .map(|((levels, qs), scale)| scale * dot_i8(levels, qs))
            .sum()
    }

    /// Returns the integer dot product with `G` minimums, one per group of weights.
    #[inline(always)]
    pub(super) fn dot_mins<const G: usize>(&self, mins: &[u8; G]) -> i32 {
        let groups = self.bsums.chunks_exact(16 / G).zip(mins);
        groups
            .map(|(sums, min)| {
                i32::from(*min) * sums.iter().map(|s| i32::from(s.get())).sum::<i32>()
            })
            .sum()
    }
}

impl Block for Q8_K {
    const TYPE: TensorType = TensorType::Q8_K;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        scale_into(out, self.d.get(), &self.qs);
    }
}

impl Dot for Q8_K {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        self.d.get() * a.d.get() * a.dot_levels(&self.qs, &[1]) as f32
    }
}

impl Quantize for Q8_K {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], _: Option<&[f32]>) -> Self {
        let mut block = Q8_K::zeroed();
        let extreme = max_abs_signed(src);
        if extreme == 0.0 {
            return block;
        }
        // The largest element becomes -127, so the scale may be negative.
        let inverse = -127.0 / extreme;
        for (q, x) in block.qs.iter_mut().zip(src) {
            *q = level(*x, inverse, -127, 127) as i8;
        }
        for (sum, qs) in block.bsums.iter_mut().zip(block.qs.chunks_exact(16)) {
            *sum = qs.iter().map(|q| i16::from(*q)).sum::<i16>().into();
        }
        block.d = (1.0 / inverse).into();
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn bsums_match_values() {
        let mut src = [0.0; 256];
        (src[0], src[15], src[16], src[255]) = (127.0, 2.5, -3.5, 40.0);
        let block = Q8_K::quantize(&src);
        assert_eq!(block.d.get(), -1.0);
        assert_eq!([0, 15, 16, 255].map(|i| block.qs[i]), [-127, -2, 4, -40]);
        assert_eq!(
            [0, 1, 2, 15].map(|i| block.bsums[i].get()),
            [-129, 4, 0, -40]
        );
        assert_eq!([0, 15, 16].map(|i| floats(&block)[i]), [127.0, 2.0, -4.0]);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q8_K>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q8_K>(0.0075);
    }
}
