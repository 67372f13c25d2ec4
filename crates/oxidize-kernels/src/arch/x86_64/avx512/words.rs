//! The product of weights of 16-bit floats with many tokens, in integers of 16 bits: the panels of
//! AVX2, multiplied by `vpdpwssd`.

use std::arch::x86_64::*;

use super::super::avx2::panel::{Next, ROWS};
use super::super::avx2::words::{Rounded, WordPanel, each_panel};
use super::matmul::{TileKernel, multiply_panel};
use crate::ops::matmul::{Epilogue, QuantizedRows, RawRows, Scratch, WORD_GROUP, WeightRows};
use crate::out::TileMut;

/// The product with all tokens, panel by panel.
///
/// # Safety
/// Needs AVX-512 with VNNI; the shapes fit together, and the weight is of the format.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn matmul<F: Rounded>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller says.
    unsafe {
        each_panel::<F>(&weight, scratch, |panel, first_row| {
            multiply_panel(panel, &weight, acts, first_row, &epilogue, &mut out);
        });
    }
}

// SAFETY: reads only inside the panel and inside the rows of the tokens.
unsafe impl TileKernel for WordPanel {
    const STEP: usize = WORD_GROUP;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        next: &mut Next,
    ) -> [__m512; T] {
        let mut sums = [_mm512_setzero_ps(); T];
        // SAFETY: as the caller says.
        unsafe {
            let tokens: [*const i16; T] =
                std::array::from_fn(|t| acts.words.add((first + t) * acts.quant_stride));
            for g in 0..acts.k.div_ceil(WORD_GROUP) {
                next.ask();
                let mut dots = [_mm512_setzero_si512(); T];
                for pair in g * WORD_GROUP / 2..(g + 1) * WORD_GROUP / 2 {
                    let weights = _mm512_load_si512(self.words.add(2 * ROWS * pair).cast());
                    for t in 0..T {
                        let act = tokens[t].add(2 * pair).cast::<i32>().read_unaligned();
                        dots[t] = _mm512_dpwssd_epi32(dots[t], weights, _mm512_set1_epi32(act));
                    }
                }
                let weight_scale = _mm512_load_ps(self.scales.add(ROWS * g));
                for t in 0..T {
                    let scale = *acts.scales.add((first + t) * acts.group_stride + g);
                    let scale = _mm512_mul_ps(weight_scale, _mm512_set1_ps(scale));
                    sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t]), scale, sums[t]);
                }
            }
        }
        sums
    }
}
