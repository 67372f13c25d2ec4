//! Matrix product kernels of AMX: tiles for quantized weights and many tokens, AVX-512 for everything else.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::avx2::format::Format;
use super::super::avx2::gemm_i16::QuantizeI16;
use super::super::avx2::panel::{self, Panel, Prefetcher};
use super::super::avx512::formats::GemvFormat;
use super::super::avx512::gemm::Matmul512;
use super::super::matmul::MatmulIsa;
use super::SignedBytes;
use super::tile::{self, TOKENS};
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, RawRows, Scratch, WeightRows};
use crate::out::TileMut;

/// Number of tokens up to which AVX-512 is as fast: a tile is loaded and stored whole, however few tokens it
/// holds.
const AVX512_TOKENS: usize = 8;

/// Kernels in tile registers, in addition to those of AVX-512.
pub(super) struct MatmulTiles;

// SAFETY: the methods need AMX with INT8, AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C.
unsafe impl MatmulIsa for MatmulTiles {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn gemv<F: GemvFormat>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
    ) {
        // SAFETY: AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C are enabled here. The weight is of
        // format `F`, `acts` has rows of `weight.k()` 8-bit integers, and `out` is `acts.rows()` ×
        // `weight.rows()`.
        unsafe { Matmul512::gemv::<F>(weight, acts, epilogue, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn gemm<F: Format>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C are enabled here, and the trait's caller
        // has AMX with INT8. The weight is of format `F`, `acts` has rows of `weight.k()` 8-bit integers, and
        // `out` is `acts.rows()` × `weight.rows()`.
        unsafe {
            match acts.rows() <= AVX512_TOKENS {
                true => Matmul512::gemm::<F>(weight, acts, epilogue, out, scratch),
                false => gemm_tiles::<F>(weight, acts, epilogue, out, scratch),
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn gemm_i16<F: QuantizeI16>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C are enabled here. The weight is of
        // format `F`, `acts` has rows of `weight.k()` 16-bit integers, and `out` is `acts.rows()` ×
        // `weight.rows()`.
        unsafe { Matmul512::gemm_i16::<F>(weight, acts, epilogue, out, scratch) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn matmul_f32(
        weight: WeightRows<'_>,
        acts: &Activations<'_>,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C are enabled here. `acts` has rows of
        // `weight.k()` elements, and `out` is `acts.rows()` × `weight.rows()`.
        unsafe { Matmul512::matmul_f32(weight, acts, epilogue, out, scratch) }
    }
}

/// # Safety
/// As [`MatmulIsa::gemm`], with the instructions of [`MatmulTiles`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn gemm_tiles<F: Format>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // Tiles take signed bytes, so that unsigned ones must be below 128 or be recentered on 0.
    const { assert!(F::SYMMETRIC || F::BITS < 8) };
    let row_scales = acts.uses_row_scales(&weight);
    for first_row in (0..weight.rows()).step_by(panel::ROWS) {
        // SAFETY: the weight is of format `F` and has row `first_row`; the multiplication chosen is that for
        // panels of `F`, and reads them and rows of `acts`, which are as long.
        unsafe {
            let panel = panel::unpack::<F, SignedBytes, false>(&weight, first_row, scratch);
            let multiply = match (row_scales, F::GROUP, F::SYMMETRIC) {
                (true, ..) => multiply_row_scales,
                (_, 16, true) => multiply::<16, true>,
                (_, 16, false) => multiply::<16, false>,
                (_, _, true) => multiply::<32, true>,
                (_, _, false) => multiply::<32, false>,
            };
            for_each_tile(
                &weight,
                acts,
                first_row,
                &epilogue,
                &mut out,
                |acts, tokens, prefetcher| multiply(&panel, acts, tokens, prefetcher),
            );
        }
    }
    // SAFETY: the machine has AMX; the registers hold nothing that is still needed.
    unsafe { tile::release() };
}

/// Calls `multiply` with up to [`TOKENS`] tokens at a time, and writes the products that it returns.
///
/// # Safety
/// Needs AVX-512 F; `out` has a row for each token.
#[inline(always)]
unsafe fn for_each_tile(
    weight: &WeightRows<'_>,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
    multiply: impl Fn(&RawRows, Range<usize>, &mut Prefetcher) -> [[f32; panel::ROWS]; TOKENS],
) {
    let (m, acts) = (acts.rows(), acts.raw());
    // Tiles of nearly equal size instead of full ones and a small remainder.
    let tiles = m.div_ceil(TOKENS);
    let tile_tokens = m.div_ceil(tiles);
    let mut prefetcher = Prefetcher::new(weight, first_row, tiles * (acts.k / 32));
    for first in (0..m).step_by(tile_tokens) {
        let tokens = first..m.min(first + tile_tokens);
        let sums = multiply(&acts, tokens.clone(), &mut prefetcher);
        for (token, rows) in tokens.zip(&sums) {
            epilogue.write_rows(out.row(token), first_row, rows);
        }
    }
}

/// Products of a panel with some tokens, with a scale for each `GROUP` elements.
///
/// # Safety
/// Needs the instructions of [`MatmulTiles`]. The panel was unpacked as [`SignedBytes`] and has rows of
/// `acts.k` elements, with minima unless `SYMMETRIC`; `acts` has the tokens, at most [`TOKENS`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply<const GROUP: usize, const SYMMETRIC: bool>(
    panel: &Panel,
    acts: &RawRows,
    tokens: Range<usize>,
    prefetcher: &mut Prefetcher,
) -> [[f32; panel::ROWS]; TOKENS] {
    let groups = acts.k / GROUP;
    let pairs = groups.div_ceil(2);
    let mut sums = [_mm512_setzero_ps(); TOKENS];
    // SAFETY: the machine has AMX, which is configured for `GROUP` elements before its use. Groups run to
    // `acts.k / GROUP`, and the panel and each token's row have as many.
    unsafe {
        let quants = acts.quants.add(tokens.start * acts.quant_stride);
        tile::configure::<GROUP>(tokens.len());
        // Tile instructions have a long latency: the products of a pair of groups are begun before those of
        // the preceding pair are used.
        let mut products = [const { tile::TileSums::ZERO }; 2];
        for pair in 0..=pairs {
            if pair < pairs {
                let element = 2 * pair * GROUP;
                let (a, b) = (quants.add(element), panel.quants.add(16 * element));
                let out = &mut products[pair % 2];
                match groups - 2 * pair {
                    1 => tile::multiply_one(a, acts.quant_stride, b, out),
                    _ => tile::multiply_two::<GROUP>(a, acts.quant_stride, b, out),
                }
            }
            let Some(last) = pair.checked_sub(1) else {
                continue;
            };
            for _ in 0..GROUP / 16 {
                prefetcher.prefetch();
            }
            let products = &products[last % 2];
            match groups - 2 * last {
                1 => {
                    add::<1, GROUP, SYMMETRIC>(panel, acts, &tokens, 2 * last, products, &mut sums);
                }
                _ => {
                    add::<2, GROUP, SYMMETRIC>(panel, acts, &tokens, 2 * last, products, &mut sums);
                }
            }
        }
        floats(&sums)
    }
}

/// Adds the products of `N` groups from `first` on, times their scales, to the sums of the tokens.
///
/// # Safety
/// As [`multiply`]; the panel and the tokens have the groups.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn add<const N: usize, const GROUP: usize, const SYMMETRIC: bool>(
    panel: &Panel,
    acts: &RawRows,
    tokens: &Range<usize>,
    first: usize,
    products: &tile::TileSums,
    sums: &mut [__m512; TOKENS],
) {
    let zero = _mm512_setzero_ps();
    let (mut scales, mut mins) = ([zero; N], [zero; N]);
    // SAFETY: AVX-512 is enabled here. The panel's 16 scales and minima of each group are aligned to 64
    // bytes, and each token has a scale and a sum for each of the groups.
    unsafe {
        for i in 0..N {
            scales[i] = _mm512_load_ps(panel.scales.add(16 * (first + i)));
            if !SYMMETRIC {
                mins[i] = _mm512_load_ps(panel.mins.add(16 * (first + i)));
            }
        }
        // Activations have a scale for each 32 elements, and sums for each 32 and each 16.
        let (first, act_sums) = match GROUP {
            16 => (first / 2, acts.half_sums),
            _ => (first, acts.sums),
        };
        let per_group = 32 / GROUP;
        let at = tokens.start * acts.group_stride + first;
        for (t, sum) in sums[..tokens.len()].iter_mut().enumerate() {
            let group = at + t * acts.group_stride;
            let mut dot = zero;
            for i in 0..N {
                let product = _mm512_cvtepi32_ps(products.row(i, t));
                dot = match i % per_group {
                    0 => _mm512_mul_ps(product, scales[i]),
                    _ => _mm512_fmadd_ps(product, scales[i], dot),
                };
                if i % per_group == per_group - 1 {
                    let scale = _mm512_set1_ps(*acts.scales.add(group + i / per_group));
                    *sum = _mm512_fmadd_ps(dot, scale, *sum);
                }
                if !SYMMETRIC {
                    let act_sum = _mm512_set1_ps(*act_sums.add(per_group * group + i));
                    *sum = _mm512_fmadd_ps(mins[i], act_sum, *sum);
                }
            }
        }
    }
}

/// Products of a panel of rows of one scale each with tokens of one scale each: whole rows are added up as
/// integers.
///
/// # Safety
/// As [`multiply`], for rows and tokens of one scale each.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply_row_scales(
    panel: &Panel,
    acts: &RawRows,
    tokens: Range<usize>,
    prefetcher: &mut Prefetcher,
) -> [[f32; panel::ROWS]; TOKENS] {
    let (first, tokens) = (tokens.start, tokens.len());
    let mut sums = [_mm512_setzero_ps(); TOKENS];
    // SAFETY: the machine has AMX, which is configured for groups of 32. Groups run to `acts.k / 32`, and the
    // panel and each token's row have as many, and at least one scale.
    unsafe {
        let quants = acts.quants.add(first * acts.quant_stride);
        tile::configure::<32>(tokens);
        tile::clear();
        for g in 0..acts.k / 32 {
            prefetcher.prefetch();
            let (a, b) = (quants.add(32 * g), panel.quants.add(512 * g));
            tile::add_one(a, acts.quant_stride, b);
        }
        let mut products = tile::TileSums::ZERO;
        tile::store(&mut products);
        let scales = _mm512_load_ps(panel.scales);
        for t in 0..tokens {
            let scale = _mm512_set1_ps(*acts.scales.add((first + t) * acts.group_stride));
            let dot = _mm512_cvtepi32_ps(products.row(0, t));
            sums[t] = _mm512_mul_ps(dot, _mm512_mul_ps(scales, scale));
        }
        floats(&sums)
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn floats(sums: &[__m512; TOKENS]) -> [[f32; panel::ROWS]; TOKENS] {
    let mut out = [[0.0; panel::ROWS]; TOKENS];
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: each row of `out` has room for 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *sum) };
    }
    out
}
