//! The matrix product in floats: the code of AVX2 with wider vectors, and panels of 32 rows.

use std::arch::x86_64::*;

use super::super::avx2::float as avx2;
use super::super::avx2::float_rows::{DIRECT_TOKENS, direct};
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
            1 => tile::<1>(panel, len, rows, sums),
            2 => tile::<2>(panel, len, rows, sums),
            3 => tile::<3>(panel, len, rows, sums),
            4 => tile::<4>(panel, len, rows, sums),
            5 => tile::<5>(panel, len, rows, sums),
            6 => tile::<6>(panel, len, rows, sums),
            7 => tile::<7>(panel, len, rows, sums),
            8 => tile::<8>(panel, len, rows, sums),
            9 => tile::<9>(panel, len, rows, sums),
            10 => tile::<10>(panel, len, rows, sums),
            11 => tile::<11>(panel, len, rows, sums),
            _ => tile::<12>(panel, len, rows, sums),
        }
    }
}

/// # Safety
/// As [`multiply`], for `T` tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tile<const T: usize>(
    panel: *const f32,
    len: usize,
    rows: &[*const f32; TOKENS],
    sums: &[*mut f32; TOKENS],
) {
    // SAFETY: as the caller says.
    unsafe {
        let rows: [*const f32; T] = std::array::from_fn(|t| rows[t]);
        let mut acc: [[__m512; 2]; T] =
            std::array::from_fn(|t| std::array::from_fn(|h| _mm512_loadu_ps(sums[t].add(16 * h))));
        for i in 0..len {
            let w: [__m512; 2] =
                std::array::from_fn(|h| _mm512_loadu_ps(panel.add(i * ROWS + 16 * h)));
            for t in 0..T {
                let a = _mm512_set1_ps(*rows[t].add(i));
                for h in 0..2 {
                    acc[t][h] = _mm512_fmadd_ps(w[h], a, acc[t][h]);
                }
            }
        }
        for t in 0..T {
            for h in 0..2 {
                _mm512_storeu_ps(sums[t].add(16 * h), acc[t][h]);
            }
        }
    }
}
