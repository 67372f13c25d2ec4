//! The matrix product in floats: the code of AVX2 with wider registers, and panels of 32 rows.

use std::arch::x86_64::*;

use super::super::avx2::float as avx2;
use super::super::avx2::float_rows::{GEMV_TOKENS, gemv};
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
/// Needs AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C; `acts` has rows of `weight.k()` elements,
/// and `out` a row for each of them and a column for each row of the weight.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn matmul(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C are enabled here, which is all that
    // `__m256`, `__m512` and `multiply` need; `acts` has rows of `weight.k()` elements, and `out` is
    // `acts.rows()` × `weight.rows()`.
    unsafe {
        if acts.uses_gemv(GEMV_TOKENS) {
            // For one token the narrower registers are faster.
            return match acts.rows() {
                _ if acts.is_batch_invariant() => {
                    gemv::<__m256>(weight, acts, epilogue, out, scratch)
                }
                1 => gemv::<__m256>(weight, acts, epilogue, out, scratch),
                _ => gemv::<__m512>(weight, acts, epilogue, out, scratch),
            };
        }
        avx2::gemm::<ROWS, TOKENS>(weight, acts, epilogue, out, scratch, multiply);
    }
}

/// The [`avx2::Multiply`] of AVX-512: panels of [`ROWS`] rows, up to [`TOKENS`] tokens.
///
/// # Safety
/// Needs AVX-512 F; pointers have the sizes that [`avx2::Multiply`] says, with [`ROWS`] for `R`, and `n` is 1
/// to [`TOKENS`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn multiply(
    n: usize,
    panel: *const f32,
    len: usize,
    rows: &[*const f32; TOKENS],
    sums: &[*mut f32; TOKENS],
) {
    // SAFETY: AVX-512 F is enabled here; each arm reads `n` of the pointers, of the sizes that
    // `avx2::Multiply` says.
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
