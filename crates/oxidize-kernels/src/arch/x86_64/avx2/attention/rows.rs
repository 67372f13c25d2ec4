//! Conversion of rows of the cache to floats.

use std::arch::x86_64::*;

use super::super::float::{F16, F32, FloatFormat};
use super::super::format::{half_at, nibbles};
use crate::ops::attention::KvType;

/// Converts a stored row, eight floats at a time: calls `put(i, x)` with the elements from `i` on.
///
/// # Safety
/// Needs AVX2 and F16C; `row` has `dim` elements of type `ty`, a multiple of 8, in whole blocks.
#[inline(always)]
pub(super) unsafe fn convert(
    ty: KvType,
    row: *const u8,
    dim: usize,
    mut put: impl FnMut(usize, __m256),
) {
    // SAFETY: the caller has AVX2 and F16C. Floats are read eight at a time up to `dim`, which 8 divides;
    // quantized rows have `dim / 32` whole blocks of 34 or 18 bytes.
    unsafe {
        match ty {
            KvType::F32 => (0..dim)
                .step_by(8)
                .for_each(|i| put(i, F32::load(row.add(4 * i)))),
            KvType::F16 => (0..dim)
                .step_by(8)
                .for_each(|i| put(i, F16::load(row.add(2 * i)))),
            KvType::Q8_0 => {
                for g in 0..dim / 32 {
                    let block = row.add(34 * g);
                    let scale = _mm256_set1_ps(half_at(block));
                    for i in 0..4 {
                        let bytes = _mm_loadl_epi64(block.add(2 + 8 * i).cast());
                        let x = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                        put(32 * g + 8 * i, _mm256_mul_ps(x, scale));
                    }
                }
            }
            KvType::Q4_0 => {
                for g in 0..dim / 32 {
                    let block = row.add(18 * g);
                    let scale = _mm256_set1_ps(half_at(block));
                    let bytes = _mm256_sub_epi8(nibbles(block.add(2)), _mm256_set1_epi8(8));
                    let halves = [
                        _mm256_castsi256_si128(bytes),
                        _mm256_extracti128_si256::<1>(bytes),
                    ];
                    for i in 0..4 {
                        let half = halves[i / 2];
                        let eight = if i % 2 == 0 {
                            half
                        } else {
                            _mm_srli_si128::<8>(half)
                        };
                        let x = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
                        put(32 * g + 8 * i, _mm256_mul_ps(x, scale));
                    }
                }
            }
        }
    }
}
