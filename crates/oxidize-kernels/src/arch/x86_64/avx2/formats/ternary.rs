//! The ternary formats: TQ1_0 and TQ2_0. `w = d · (q − 1)`.

use std::arch::x86_64::*;

use super::super::format::{Format, Scales, bytes32, half_at};
use super::k_quants::bit_pairs;

pub(crate) struct Tq2_0;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Tq2_0 {
    const CHUNK_BYTES: usize = 66;
    const GROUP: usize = 32;
    const BITS: u32 = 2;
    const MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let d = unsafe { half_at(chunk.add(64)) };
        (out.scale, out.min) = ([d; 16], [-d; 16]);
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe { bit_pairs(chunk, group) }
    }
}

pub(crate) struct Tq1_0;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Tq1_0 {
    const CHUNK_BYTES: usize = 54;
    const GROUP: usize = 32;
    const BITS: u32 = 2;
    const MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let d = unsafe { half_at(chunk.add(52)) };
        (out.scale, out.min) = ([d; 16], [-d; 16]);
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        /// 3ⁿ: multiplied by it, a byte has digit n on top.
        const POWERS: [i16; 5] = [1, 3, 9, 27, 81];
        // The first 32 bytes have digit 0 of 32 weights, then digit 1, …: five groups. The next 16
        // bytes have five digits of 16 weights, and the last four bytes four digits of 4.
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe {
            if group < 5 {
                return digit(bytes32(chunk), _mm256_set1_epi16(POWERS[group]));
            }
            let bytes = _mm_loadu_si128(chunk.add(32).cast());
            let first = 2 * (group - 5);
            if group < 7 {
                let powers = _mm256_set_m128i(
                    _mm_set1_epi16(POWERS[first + 1]),
                    _mm_set1_epi16(POWERS[first]),
                );
                return digit(_mm256_set_m128i(bytes, bytes), powers);
            }
            let last = _mm_set1_epi32(chunk.add(48).cast::<i32>().read_unaligned());
            let powers =
                _mm256_setr_epi16(81, 81, 81, 81, 81, 81, 81, 81, 1, 1, 3, 3, 9, 9, 27, 27);
            digit(_mm256_set_m128i(last, bytes), powers)
        }
    }
}

/// The base-3 digit of each byte that `power`, one for two bytes, moves to the top.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn digit(bytes: __m256i, power: __m256i) -> __m256i {
    let low = _mm256_set1_epi16(0x00ff);
    let three = _mm256_set1_epi16(3);
    // (byte · power mod 256) · 3 / 256, in 16-bit lanes for even and odd bytes.
    let top = |x: __m256i| {
        let digits = _mm256_and_si256(_mm256_mullo_epi16(x, power), low);
        _mm256_srli_epi16::<8>(_mm256_mullo_epi16(digits, three))
    };
    let even = top(_mm256_and_si256(bytes, low));
    let odd = top(_mm256_srli_epi16::<8>(bytes));
    _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd))
}
