//! The matrix product in floats: the code of AVX2 with wider vectors, and panels of 32 rows.

use std::arch::x86_64::*;

use super::super::avx2::float as avx2;
use super::super::avx2::float_rows::{DIRECT_TOKENS, direct};
use super::super::avx2::vector::tile;
use crate::ops::matmul::{Activations, Epilogue, Scratch, WeightRows};
use crate::out::TileMut;

/// Tokens of a tile.
pub(crate) const TOKENS: usize = 12;

/// Rows of a panel.
pub(crate) const ROWS: usize = 32;

/// See [`crate::Kernels::matmul`].
///
/// # Safety
/// Needs AVX-512; the shapes fit together.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn matmul(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller says.
    unsafe {
        if acts.is_direct(DIRECT_TOKENS) {
            // For one token the narrower vectors read faster.
            return match acts.rows() {
                _ if acts.are_alone() => direct::<__m256>(weight, acts, epilogue, out, scratch),
                1 => direct::<__m256>(weight, acts, epilogue, out, scratch),
                _ => direct::<__m512>(weight, acts, epilogue, out, scratch),
            };
        }
        avx2::tiled::<ROWS, TOKENS>(weight, acts, epilogue, out, scratch, multiply);
    }
}

/// The [`avx2::Multiply`] of AVX-512: panels of [`ROWS`] rows, up to [`TOKENS`] tokens.
///
/// # Safety
/// Needs AVX-512; the sizes are as [`avx2::Multiply`] says.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn multiply(
    n: usize,
    panel: *const f32,
    len: usize,
    rows: &[*const f32; TOKENS],
    sums: &[*mut f32; TOKENS],
) {
    // SAFETY: as the caller says.
    unsafe {
        match n {
            1 => tile::<__m512, 1, _>(panel, len, rows, sums),
            2 => tile::<__m512, 2, _>(panel, len, rows, sums),
            3 => tile::<__m512, 3, _>(panel, len, rows, sums),
            4 => tile::<__m512, 4, _>(panel, len, rows, sums),
            5 => tile::<__m512, 5, _>(panel, len, rows, sums),
            6 => tile::<__m512, 6, _>(panel, len, rows, sums),
            7 => tile::<__m512, 7, _>(panel, len, rows, sums),
            8 => tile::<__m512, 8, _>(panel, len, rows, sums),
            9 => tile::<__m512, 9, _>(panel, len, rows, sums),
            10 => tile::<__m512, 10, _>(panel, len, rows, sums),
            11 => tile::<__m512, 11, _>(panel, len, rows, sums),
            _ => tile::<__m512, 12, _>(panel, len, rows, sums),
        }
    }
}
