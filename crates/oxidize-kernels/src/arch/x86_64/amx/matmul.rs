//! The matrix product: tiles for quantised weights and many tokens, AVX-512 for everything else.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::avx2::dot;
use super::super::avx2::format::Format;
use super::super::avx2::formats::with_format;
use super::super::avx2::panel::{self, Next, Panel};
use super::super::avx512::{Vnni, matmul as avx512};
use super::tile::{self, TOKENS};
use crate::ops::matmul::{
    Activations, Epilogue, MOVED, QuantizedRows, RawRows, Scratch, WeightRows,
};
use crate::out::TileMut;

/// Up to so many tokens, AVX-512 is as fast: a tile is loaded and stored whole, however few there are.
const FEW_TOKENS: usize = 8;

/// See [`crate::Kernels::matmul`].
///
/// # Safety
/// Needs AMX and AVX-512 with VNNI; the shapes fit together.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn matmul(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller has the instructions and has checked the shapes; each arm runs the format
    // that the type names.
    unsafe {
        match acts.bytes() {
            Some(bytes) if bytes.rows() > FEW_TOKENS && !acts.is_direct(dot::TOKENS) => {
                with_format!(
                    weight.ty(),
                    F => {
                        // Tiles of 16 elements would do too little between loading and storing.
                        if F::GROUP == 32 {
                            return tiled::<F>(weight, bytes, epilogue, out, scratch);
                        }
                        avx512::matmul(weight, acts, epilogue, out, scratch)
                    },
                    avx512::matmul(weight, acts, epilogue, out, scratch)
                )
            }
            _ => avx512::matmul(weight, acts, epilogue, out, scratch),
        }
    }
}

/// # Safety
/// As [`matmul`], for a weight of the format.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tiled<F: Format>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    let one_scale = acts.is_one_scale_with(&weight);
    for first_row in (0..weight.rows()).step_by(panel::ROWS) {
        // SAFETY: as the caller says; the weight is of the format and has the row.
        unsafe {
            let panel = panel::unpack::<F, Vnni, false>(&weight, first_row, scratch);
            let multiply = match one_scale {
                true => multiply_one_scale,
                false if F::CENTRED => multiply::<true>,
                false => multiply::<false>,
            };
            each_tile(
                &weight,
                acts,
                first_row,
                &epilogue,
                &mut out,
                |acts, tokens, next| multiply(&panel, acts, tokens, next),
            );
        }
    }
    // SAFETY: as the caller says.
    unsafe { tile::release() };
}

/// Calls `multiply` with up to [`TOKENS`] tokens at a time, and writes what comes back.
///
/// # Safety
/// Needs AVX-512.
#[inline(always)]
unsafe fn each_tile(
    weight: &WeightRows<'_>,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
    multiply: impl Fn(&RawRows, Range<usize>, &mut Next) -> [[f32; panel::ROWS]; TOKENS],
) {
    let (m, acts) = (acts.rows(), acts.raw());
    // Tiles of nearly equal size, rather than full ones and a small rest.
    let tiles = m.div_ceil(TOKENS);
    let tile_tokens = m.div_ceil(tiles);
    let mut next = Next::new(weight, first_row, tiles * (acts.k / 32));
    for first in (0..m).step_by(tile_tokens) {
        let tokens = first..m.min(first + tile_tokens);
        let sums = multiply(&acts, tokens.clone(), &mut next);
        for (token, rows) in tokens.zip(&sums) {
            epilogue.write_rows(out.row(token), first_row, rows);
        }
    }
}

/// The products of a panel with some tokens, a scale for each 32 elements.
///
/// # Safety
/// As [`matmul`]; the panel has rows of `acts.k`, unpacked without signs; `CENTRED` if 128 stands for 0 and there
/// are no minima.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply<const CENTRED: bool>(
    panel: &Panel,
    acts: &RawRows,
    tokens: Range<usize>,
    next: &mut Next,
) -> [[f32; panel::ROWS]; TOKENS] {
    let (first, tokens) = (tokens.start, tokens.len());
    let mut sums = [_mm512_setzero_ps(); TOKENS];
    let groups = acts.k / 32;
    // SAFETY: all reads lie inside the panel and inside the rows of the tokens.
    unsafe {
        let quants = acts.quants.add(first * acts.quant_stride);
        let at = first * acts.group_stride;
        let (act_scales, act_sums) = (acts.scales.add(at), acts.sums.add(at));
        let act_moved = acts.moved.add(2 * at);
        tile::configure(tokens);
        let mut products = tile::Products::ZERO;
        // Two groups at a time, the last by itself where there is no other.
        for first_group in (0..groups).step_by(2) {
            let pair = 2.min(groups - first_group);
            let element = 32 * first_group;
            let (a, b) = (quants.add(element), panel.quants.add(16 * element));
            match pair {
                2 => tile::multiply_two(a, acts.quant_stride, b, &mut products),
                _ => tile::multiply_one(a, acts.quant_stride, b, &mut products),
            }
            for i in 0..pair {
                next.ask();
                let g = first_group + i;
                let scales = _mm512_load_ps(panel.scales.add(16 * g));
                for t in 0..tokens {
                    let group = t * acts.group_stride + g;
                    let mut dot = products.row(i, t);
                    if CENTRED {
                        let moved = act_moved.add(2 * group);
                        let moved = _mm512_set1_epi32(*moved + *moved.add(1));
                        dot = _mm512_add_epi32(dot, moved);
                    } else {
                        let mins = _mm512_load_ps(panel.mins.add(16 * g));
                        let act_sum = _mm512_set1_ps(*act_sums.add(group));
                        sums[t] = _mm512_fmadd_ps(mins, act_sum, sums[t]);
                    }
                    let dot = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scales);
                    let scale = _mm512_set1_ps(*act_scales.add(group));
                    sums[t] = _mm512_fmadd_ps(dot, scale, sums[t]);
                }
            }
        }
        floats(&sums)
    }
}

/// The products of a panel of rows of one scale each with tokens of one scale each: whole rows are added up
/// as integers.
///
/// # Safety
/// As [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply_one_scale(
    panel: &Panel,
    acts: &RawRows,
    tokens: Range<usize>,
    next: &mut Next,
) -> [[f32; panel::ROWS]; TOKENS] {
    let (first, tokens) = (tokens.start, tokens.len());
    let mut sums = [_mm512_setzero_ps(); TOKENS];
    // SAFETY: all reads lie inside the panel and inside the rows of the tokens.
    unsafe {
        let quants = acts.quants.add(first * acts.quant_stride);
        tile::configure(tokens);
        tile::clear();
        for g in 0..acts.k / 32 {
            next.ask();
            let (a, b) = (quants.add(32 * g), panel.quants.add(512 * g));
            tile::add_one(a, acts.quant_stride, b);
        }
        let mut products = tile::Products::ZERO;
        tile::store(&mut products);
        let scales = _mm512_load_ps(panel.scales);
        for t in 0..tokens {
            let scale = _mm512_set1_ps(*acts.scales.add((first + t) * acts.group_stride));
            // What the weights were moved up by comes off.
            let moved = _mm512_set1_epi32(MOVED * *acts.totals.add(first + t));
            let dot = _mm512_cvtepi32_ps(_mm512_add_epi32(products.row(0, t), moved));
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
        // SAFETY: 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *sum) };
    }
    out
}
