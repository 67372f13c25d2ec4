//! The matrix product in floats, with panels of 32 rows; a few tokens take the AVX2 kernel, which
//! keeps up with memory.

use std::arch::x86_64::*;

use super::super::avx2::float as avx2;
use crate::ops::matmul::{Activations, Epilogue, Scratch, WeightRows};
use crate::out::TileMut;

/// Tokens of a tile.
const TOKENS: usize = 12;

/// Rows of a panel.
const ROWS: usize = 32;

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
        if acts.rows() <= avx2::DIRECT_TOKENS {
            return avx2::direct(weight, acts, epilogue, out, scratch);
        }
        avx2::tiled::<ROWS, TOKENS>(
            weight,
            acts,
            epilogue,
            out,
            scratch,
            |n, panel, len, acts, stride, sums| match n {
                1 => tile::<1>(panel, len, acts, stride, sums),
                2 => tile::<2>(panel, len, acts, stride, sums),
                3 => tile::<3>(panel, len, acts, stride, sums),
                4 => tile::<4>(panel, len, acts, stride, sums),
                5 => tile::<5>(panel, len, acts, stride, sums),
                6 => tile::<6>(panel, len, acts, stride, sums),
                7 => tile::<7>(panel, len, acts, stride, sums),
                8 => tile::<8>(panel, len, acts, stride, sums),
                9 => tile::<9>(panel, len, acts, stride, sums),
                10 => tile::<10>(panel, len, acts, stride, sums),
                11 => tile::<11>(panel, len, acts, stride, sums),
                _ => tile::<12>(panel, len, acts, stride, sums),
            },
        );
    }
}

/// Adds the products of a panel `[len][32]` with `T` tokens.
///
/// # Safety
/// Needs AVX-512; the panel and each token have `len` elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tile<const T: usize>(
    panel: *const f32,
    len: usize,
    acts: *const f32,
    stride: usize,
    sums: &mut [[f32; ROWS]; TOKENS],
) {
    // SAFETY: as the caller says.
    unsafe {
        let mut acc: [[__m512; 2]; T] = std::array::from_fn(|t| {
            std::array::from_fn(|h| _mm512_loadu_ps(sums[t].as_ptr().add(16 * h)))
        });
        let acts: [*const f32; T] = std::array::from_fn(|t| acts.add(t * stride));
        for i in 0..len {
            let w: [__m512; 2] =
                std::array::from_fn(|h| _mm512_loadu_ps(panel.add(i * ROWS + 16 * h)));
            for t in 0..T {
                let a = _mm512_set1_ps(*acts[t].add(i));
                for h in 0..2 {
                    acc[t][h] = _mm512_fmadd_ps(w[h], a, acc[t][h]);
                }
            }
        }
        for t in 0..T {
            for h in 0..2 {
                _mm512_storeu_ps(sums[t].as_mut_ptr().add(16 * h), acc[t][h]);
            }
        }
    }
}
