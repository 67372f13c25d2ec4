//! Q2_K: 16 groups of 16 weights of 2 bits, with a 4-bit scale and minimum each.
//!
//! `w = d · scale · q − dmin · min`. Each 32 bytes of `qs` hold 128 weights in four 2-bit planes.

use bytemuck::{Pod, Zeroable};

use super::error_weights::error_weights;
use super::fields::F16Le;
use super::packing::{pack_two_bits, two_bits};
use super::q8_k::Q8_K;
use super::search::block::AffineScales;
use super::search::ggml_compat::AffineSearch;
use super::search::scale::round_clamp;
use super::{Block, Dot, Quantize, ScalarQuantized, TensorType};

/// A block of 256 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Q2_K {
    /// Scale in the low nibble, minimum in the high nibble.
    pub scales: [u8; 16],
    /// Four weights per byte.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: F16Le,
    /// Scale of the minimums.
    pub dmin: F16Le,
}

assert_layout!(Q2_K, 84);

impl Block for Q2_K {
    const TYPE: TensorType = TensorType::Q2_K;
    const LEN: usize = 256;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let q = two_bits(&self.qs);
        let groups = out.chunks_exact_mut(16).zip(q.chunks_exact(16));
        for ((out, q), scale) in groups.zip(self.scales) {
            let scaled = d * f32::from(scale & 15);
            let min = dmin * f32::from(scale >> 4);
            for (out, q) in out.iter_mut().zip(q) {
                *out = scaled * f32::from(*q) - min;
            }
        }
    }
}

impl Dot for Q2_K {
    type Activation = Q8_K;

    #[inline]
    fn dot(&self, activations: &[Q8_K]) -> f32 {
        let a = &activations[0];
        let scales = self.scales.map(|s| i32::from(s & 15));
        let mins = self.scales.map(|s| s >> 4);
        let sum = a.dot_levels(&two_bits(&self.qs).map(|q| q as i8), &scales);
        let scaled = self.d.to_f32() * sum as f32;
        a.d.get() * (scaled - self.dmin.to_f32() * a.dot_mins(&mins) as f32)
    }
}

impl Quantize for Q2_K {
    #[inline(always)]
    fn quantize_weighted(src: &[f32], importance: Option<&[f32]>) -> Self {
        let affine = match importance {
            Some(_) => {
                let w: [f32; 256] = error_weights(src, importance);
                AffineScales::<16>::new::<16>(src, &w, 3.0, 15.0)
            }
            None => AffineScales::<16>::ggml_compat::<16>(src, &magnitudes(src), GGML_SEARCH),
        };
        Q2_K {
            scales: std::array::from_fn(|i| affine.scales[i] | affine.mins[i] << 4),
            qs: pack_two_bits(&affine.levels(src, 3)),
            d: affine.d,
            dmin: affine.dmin,
        }
    }
}

/// Parameters of ggml's search for scales and minimums, used without importance.
const GGML_SEARCH: AffineSearch = AffineSearch {
    max_level: 3.0,
    max_scale: 15.0,
    first: -0.5,
    steps: 15,
    absolute: true,
};

/// Error weights of ggml without importance: the magnitudes of the weights.
#[inline(always)]
fn magnitudes(x: &[f32]) -> [f32; 256] {
    let mut w = [0.0; 256];
    for (w, x) in w.iter_mut().zip(x) {
        *w = x.abs();
    }
    w
}

impl ScalarQuantized for Q2_K {
    const GROUP: usize = 16;

    fn scale_and_offset(&self, group: usize) -> (f32, f32) {
        let scale = self.scales[group];
        let min = self.dmin.to_f32() * f32::from(scale >> 4);
        (self.d.to_f32() * f32::from(scale & 15), -min)
    }

    fn read_levels(&self, out: &mut [i8]) {
        out.copy_from_slice(&two_bits(&self.qs).map(|q| q as i8));
    }

    fn write_levels(&mut self, levels: &[i8]) {
        self.qs = pack_two_bits(&std::array::from_fn(|i| levels[i] as u8));
    }

    #[inline(always)]
    fn nearest_level(x: f32) -> f32 {
        round_clamp(x, 0.0, 3.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{check_dot, check_quantize, floats};

    #[test]
    fn known_block() {
        let mut block = Q2_K::zeroed();
        (block.d, block.dmin) = (F16Le::from_f32(0.5), F16Le::from_f32(0.25));
        // Weight 161 is the second 2 bits of byte 33, in group 10.
        block.qs[33] = 0b00_00_11_00;
        block.scales[10] = 0x23;
        let out = floats(&block);
        assert_eq!([out[161], out[160], out[33]], [3.0 * 1.5 - 0.5, -0.5, 0.0]);
    }

    #[test]
    fn dot_matches_dequantized() {
        check_dot::<Q2_K>();
    }

    #[test]
    fn quantization_error_is_bounded() {
        check_quantize::<Q2_K>(0.3);
    }
}
