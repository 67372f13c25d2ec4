//! GEMM of weights of 16-bit floats with many tokens, in 16-bit integers: the panels of AVX2, multiplied by
//! `vpdpwssd`.

use std::arch::x86_64::*;

use super::super::avx2::gemm_i16::{I16Panel, QuantizeI16, for_each_panel};
use super::super::avx2::panel::{Prefetcher, ROWS};
use super::gemm::{TileKernel, multiply_panel};
use crate::ops::matmul::{Epilogue, I16_GROUP, QuantizedRows, RawRows, Scratch, WeightRows};
use crate::out::TileMut;

/// The product with all tokens, panel by panel.
///
/// # Safety
/// Needs AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C. The weight is of format `F`, `acts` has rows
/// of `weight.k()` 16-bit integers, and `out` a row for each of them and a column for each row of the weight.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn matmul<F: QuantizeI16>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the instructions are enabled here; each panel has rows of `weight.k()` elements, as `acts` has.
    unsafe {
        for_each_panel::<F>(&weight, scratch, |panel, first_row| {
            multiply_panel(panel, &weight, acts, first_row, &epilogue, &mut out);
        });
    }
}

// SAFETY: `tile` reads only inside the panel and inside the rows of the tokens.
unsafe impl TileKernel for I16Panel {
    const STEP: usize = I16_GROUP;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        prefetcher: &mut Prefetcher,
    ) -> [__m512; T] {
        let mut sums = [_mm512_setzero_ps(); T];
        // SAFETY: the instructions are enabled here. Groups run to `acts.k`, rounded up; the panel and each
        // token's row have as many, padded with zeros, and the panel is aligned to 64 bytes.
        unsafe {
            let tokens: [*const i16; T] =
                std::array::from_fn(|t| acts.quants_i16.add((first + t) * acts.quant_stride));
            for g in 0..acts.k.div_ceil(I16_GROUP) {
                prefetcher.prefetch();
                let mut dots = [_mm512_setzero_si512(); T];
                for pair in g * I16_GROUP / 2..(g + 1) * I16_GROUP / 2 {
                    let weights = _mm512_load_si512(self.quants.add(2 * ROWS * pair).cast());
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
