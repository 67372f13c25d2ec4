//! The integer tile kernel: a panel of 16 rows times a tile of tokens.
//!
//! One instruction (`vpdpbusd`) multiplies four bytes of 16 rows with four bytes of a token and adds the
//! products. A group of weights stays in eight registers while it is multiplied with each token.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::avx2::panel::{Panel, Prefetcher};
use super::gemm::TileKernel;
use crate::ops::matmul::{RawRows, ZERO_POINT};

/// A panel of unsigned bytes. `HALVES`: true if 16 elements share a scale, false if 32 do. `SYMMETRIC`: true
/// if 128 stands for 0 and there are no minima. `PACKED`: true if pairs of groups share their bytes.
pub(crate) struct BytePanel<const HALVES: bool, const SYMMETRIC: bool, const PACKED: bool>(
    pub(crate) Panel,
);

// SAFETY: `tile` reads only inside the panel and inside the rows of the tokens.
unsafe impl<const HALVES: bool, const SYMMETRIC: bool, const PACKED: bool> TileKernel
    for BytePanel<HALVES, SYMMETRIC, PACKED>
{
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        prefetcher: &mut Prefetcher,
    ) -> [__m512; T] {
        // SAFETY: AVX-512 F, BW, DQ, VL and VNNI are enabled here. The panel has this layout and rows of
        // `acts.k` elements, and `first + T` is at most the tokens of `acts`.
        unsafe { tile::<HALVES, SYMMETRIC, PACKED, T>(&self.0, acts, first, prefetcher) }
    }
}

/// A panel of unsigned bytes, of rows of one scale each, for tokens of one scale each.
pub(crate) struct RowScalePanel(pub(crate) Panel);

// SAFETY: `tile` reads only inside the panel and inside the rows of the tokens.
unsafe impl TileKernel for RowScalePanel {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        prefetcher: &mut Prefetcher,
    ) -> [__m512; T] {
        // SAFETY: the instructions are enabled here. Steps run to `acts.k / 4`, and the panel and each
        // token's row have as many; a row of either has at least one scale, and the panel is aligned to 64
        // bytes.
        unsafe {
            let quants: [*const i8; T] =
                std::array::from_fn(|t| acts.quants.add((first + t) * acts.quant_stride));
            // The panel is offset by 128, which comes off first.
            let mut dots: [__m512i; T] = std::array::from_fn(|t| {
                _mm512_set1_epi32(ZERO_POINT * *acts.totals.add(first + t))
            });
            for step in 0..acts.k / 4 {
                if step % 8 == 0 {
                    prefetcher.prefetch();
                }
                let weights = _mm512_load_si512(self.0.quants.add(64 * step).cast());
                for t in 0..T {
                    let four = quants[t].add(4 * step).cast::<i32>().read_unaligned();
                    dots[t] = _mm512_dpbusd_epi32(dots[t], weights, _mm512_set1_epi32(four));
                }
            }
            let scales = _mm512_load_ps(self.0.scales);
            std::array::from_fn(|t| {
                let scale = _mm512_set1_ps(*acts.scales.add((first + t) * acts.group_stride));
                _mm512_mul_ps(_mm512_cvtepi32_ps(dots[t]), _mm512_mul_ps(scales, scale))
            })
        }
    }
}

/// See [`TileKernel`].
///
/// # Safety
/// Needs AVX-512 F and VNNI. The panel has this layout and rows of `acts.k` elements, and `acts` has tokens
/// `first` to `first + T − 1`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tile<const HALVES: bool, const SYMMETRIC: bool, const PACKED: bool, const T: usize>(
    panel: &Panel,
    acts: &RawRows,
    first: usize,
    prefetcher: &mut Prefetcher,
) -> [__m512; T] {
    let mut sums = [_mm512_setzero_ps(); T];
    // SAFETY: the instructions are enabled here. Groups run to `acts.k / 32`, and the panel and each token's
    // row have as many of every array that is read; the arrays of a panel are aligned to 64 bytes.
    unsafe {
        let quants: [*const i8; T] =
            std::array::from_fn(|t| acts.quants.add((first + t) * acts.quant_stride));
        let at = first * acts.group_stride;
        let (act_scales, act_sums) = (acts.scales.add(at), acts.sums.add(at));
        let (act_half_sums, act_zero_point_sums) =
            (acts.half_sums.add(2 * at), acts.zero_point_sums.add(2 * at));
        for g in 0..acts.k / 32 {
            prefetcher.prefetch();
            let load = |p: *const f32, i: usize| _mm512_load_ps(p.add(16 * i));
            // High nibbles stay where they are, which makes them 16 times as large.
            let nibble = _mm512_set1_epi8(if g % 2 == 0 { 0x0f } else { -0x10 });
            let weights = |step: usize| {
                if !PACKED {
                    return _mm512_load_si512(panel.quants.add(512 * g + 64 * step).cast());
                }
                let both = _mm512_load_si512(panel.quants.add(512 * (g / 2) + 64 * step).cast());
                _mm512_and_si512(both, nibble)
            };
            // All tokens in each step, so that no product depends on the one before it.
            let products = |steps: Range<usize>| {
                let mut dots: [__m512i; T] = std::array::from_fn(|t| {
                    let sums = act_zero_point_sums.add(2 * (t * acts.group_stride + g));
                    match (SYMMETRIC, steps.len()) {
                        (false, _) => _mm512_setzero_si512(),
                        (true, 4) => _mm512_set1_epi32(*sums.add(steps.start / 4)),
                        (true, _) => _mm512_add_epi32(
                            _mm512_set1_epi32(*sums),
                            _mm512_set1_epi32(*sums.add(1)),
                        ),
                    }
                });
                for step in steps {
                    let weights = weights(step);
                    for t in 0..T {
                        let four = quants[t].add(32 * g + 4 * step).cast::<i32>();
                        let four = _mm512_set1_epi32(four.read_unaligned());
                        dots[t] = _mm512_dpbusd_epi32(dots[t], weights, four);
                    }
                }
                dots
            };
            if HALVES {
                let mut dots = [_mm512_setzero_ps(); T];
                for i in 0..2 {
                    let scales = load(panel.scales, 2 * g + i);
                    for (t, dot) in products(4 * i..4 * i + 4).into_iter().enumerate() {
                        dots[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scales, dots[t]);
                    }
                    if SYMMETRIC {
                        continue;
                    }
                    let mins = load(panel.mins, 2 * g + i);
                    for t in 0..T {
                        let sum = *act_half_sums.add(2 * (t * acts.group_stride + g) + i);
                        sums[t] = _mm512_fmadd_ps(mins, _mm512_set1_ps(sum), sums[t]);
                    }
                }
                for t in 0..T {
                    let scale = _mm512_set1_ps(*act_scales.add(t * acts.group_stride + g));
                    sums[t] = _mm512_fmadd_ps(dots[t], scale, sums[t]);
                }
                continue;
            }
            let scales = load(panel.scales, g);
            for (t, dot) in products(0..8).into_iter().enumerate() {
                let group = t * acts.group_stride + g;
                let dot = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scales);
                let scale = _mm512_set1_ps(*act_scales.add(group));
                sums[t] = _mm512_fmadd_ps(dot, scale, sums[t]);
                if !SYMMETRIC {
                    let sum = _mm512_set1_ps(*act_sums.add(group));
                    sums[t] = _mm512_fmadd_ps(load(panel.mins, g), sum, sums[t]);
                }
            }
        }
    }
    sums
}
