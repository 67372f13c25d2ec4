//! The matrix product: tiles for quantised weights and many tokens, AVX-512 for everything else.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::avx2::dot;
use super::super::avx2::format::Format;
use super::super::avx2::formats::with_format;
use super::super::avx2::panel::{self, Next, Panel};
use super::super::avx512::matmul as avx512;
use super::Tiles;
use super::tile::{self, TOKENS};
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, RawRows, Scratch, WeightRows};
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
                    F => tiled::<F>(weight, bytes, epilogue, out, scratch),
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
    // Where 0 is no byte of its own, none may look negative.
    const { assert!(F::CENTRED || F::BITS < 8) };
    let one_scale = acts.is_one_scale_with(&weight);
    for first_row in (0..weight.rows()).step_by(panel::ROWS) {
        // SAFETY: as the caller says; the weight is of the format and has the row.
        unsafe {
            let panel = panel::unpack::<F, Tiles, false>(&weight, first_row, scratch);
            let multiply = match (one_scale, F::GROUP, F::CENTRED) {
                (true, ..) => multiply_one_scale,
                (_, 16, true) => multiply::<16, true>,
                (_, 16, false) => multiply::<16, false>,
                (_, _, true) => multiply::<32, true>,
                (_, _, false) => multiply::<32, false>,
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

/// The products of a panel with some tokens, a scale for each `GROUP` elements.
///
/// # Safety
/// As [`matmul`]; the panel has rows of `acts.k`, as [`Tiles`] want them; `CENTRED` if there are no minima.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply<const GROUP: usize, const CENTRED: bool>(
    panel: &Panel,
    acts: &RawRows,
    tokens: Range<usize>,
    next: &mut Next,
) -> [[f32; panel::ROWS]; TOKENS] {
    let groups = acts.k / GROUP;
    let pairs = groups.div_ceil(2);
    let mut sums = [_mm512_setzero_ps(); TOKENS];
    // SAFETY: all reads lie inside the panel and inside the rows of the tokens.
    unsafe {
        let quants = acts.quants.add(tokens.start * acts.quant_stride);
        tile::configure::<GROUP>(tokens.len());
        // Tiles are slow to answer: the products of a pair of groups are asked for before those of the pair before it
        // are used.
        let mut products = [const { tile::Products::ZERO }; 2];
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
                next.ask();
            }
            let products = &products[last % 2];
            match groups - 2 * last {
                1 => {
                    add::<1, GROUP, CENTRED>(panel, acts, &tokens, 2 * last, products, &mut sums);
                }
                _ => {
                    add::<2, GROUP, CENTRED>(panel, acts, &tokens, 2 * last, products, &mut sums);
                }
            }
        }
        floats(&sums)
    }
}

/// Adds the products of `N` groups from `first` on, times their scales, to the sums of the tokens.
///
/// # Safety
/// As [`multiply`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn add<const N: usize, const GROUP: usize, const CENTRED: bool>(
    panel: &Panel,
    acts: &RawRows,
    tokens: &Range<usize>,
    first: usize,
    products: &tile::Products,
    sums: &mut [__m512; TOKENS],
) {
    let zero = _mm512_setzero_ps();
    let (mut scales, mut mins) = ([zero; N], [zero; N]);
    // SAFETY: as the caller says.
    unsafe {
        for i in 0..N {
            scales[i] = _mm512_load_ps(panel.scales.add(16 * (first + i)));
            if !CENTRED {
                mins[i] = _mm512_load_ps(panel.mins.add(16 * (first + i)));
            }
        }
        // Activations have a scale for each 32, and sums for each 32 and each 16.
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
                if !CENTRED {
                    let act_sum = _mm512_set1_ps(*act_sums.add(per_group * group + i));
                    *sum = _mm512_fmadd_ps(mins[i], act_sum, *sum);
                }
            }
        }
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
        tile::configure::<32>(tokens);
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
        // SAFETY: 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *sum) };
    }
    out
}
