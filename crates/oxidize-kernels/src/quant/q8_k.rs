//! Q8_K: 256 values of 8 bits, the activations of every 256-weight format.
//!
//! `w = d · q`. `bsums` spares dot products with minima the sums over the activations.

use bytemuck::{Pod, Zeroable};

use super::fields::{F32Le, I16Le};
use super::packing::{dot_i8, scale_into};
use super::scale_search::{largest, level};
use super::{Block, Dot, Quantize, TensorType};

/// A block of 256 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_K {
    /// Scale.
    pub d: F32Le,
    /// Values.
    pub qs: [i8; 256],
    /// Sums of `qs` by groups of 16.
    pub bsums: [I16Le; 16],
}

assert_layout!(Q8_K, 292);

impl Q8_K {
    /// The integer dot product with the levels of a block of weights, where the weights are `G`
    /// groups with a scale each. Fits for levels and scales of 8 bits.
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

    /// The integer dot product with `G` minima, each of a group of weights.
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
        let extreme = largest(src);
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
    fn sums_go_with_the_values() {
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
    fn dot_is_that_of_the_floats() {
        check_dot::<Q8_K>();
    }

    #[test]
    fn floats_survive() {
        check_quantize::<Q8_K>(0.0075);
    }
}
