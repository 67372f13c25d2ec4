//! The formats with evenly spaced levels: Q4_0, Q4_1, Q4_K and Q6_K.

use std::arch::x86_64::*;

use super::super::super::avx2::format::Format;
use super::super::super::avx2::formats as avx2;
use super::super::dot::{ChunkScales, Format512};

/// A format with blocks of 32.
macro_rules! blocks {
    ($name:ident, quants |$a:ident, $b:ident| $quants:expr) => {
        pub(crate) struct $name;

        // SAFETY: the methods need the instructions of `Format512`, and read only inside the span.
        unsafe impl Format512 for $name {
            type Avx2 = avx2::$name;

            #[inline(always)]
            unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
                let bytes = <avx2::$name as Format>::CHUNK_BYTES / 8;
                // SAFETY: the caller has AVX-512; a span has 16 blocks, of which these are two, as `part` is
                // below 4.
                [0, 1].map(|j| unsafe {
                    let $a = span.add((4 * part + 2 * j) * bytes);
                    let $b = $a.add(bytes);
                    $quants
                })
            }
        }
    };
}

blocks!(Q4_0, quants | a, b | nibbles(a.add(2), b.add(2)));
blocks!(Q4_1, quants | a, b | nibbles(a.add(4), b.add(4)));

pub(crate) struct Q4K;

// SAFETY: the methods need the instructions of `Format512`, and read only inside the span.
unsafe impl Format512 for Q4K {
    type Avx2 = avx2::Q4K;

    /// The second group of each two is 16 times too large, which its scale compensates.
    #[inline(always)]
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
        let (low, high) = (0x0f0f_0f0f_0f0f_0f0f, 0xf0f0_f0f0_f0f0_f0f0_u64 as i64);
        // SAFETY: the caller has AVX-512; a span has two blocks of 144 bytes, each with 128 bytes of quants
        // from 16 on, of which 32 are read.
        [0, 1].map(|j| unsafe {
            let x = span.add(144 * (part / 2) + 16 + 64 * (part % 2) + 32 * j);
            let twice = _mm512_broadcast_i64x4(_mm256_loadu_si256(x.cast()));
            let mask = _mm512_setr_epi64(low, low, low, low, high, high, high, high);
            _mm512_and_si512(twice, mask)
        })
    }

    #[inline(always)]
    unsafe fn scales(span: *const u8, _unpacked: &ChunkScales) -> (__m512, __m512) {
        const FACTORS: [f32; 16] = [
            1.0, 0.0625, 1.0, 0.0625, 1.0, 0.0625, 1.0, 0.0625, //
            1.0, 0.0625, 1.0, 0.0625, 1.0, 0.0625, 1.0, 0.0625,
        ];
        // SAFETY: the caller has AVX-512; a span has two blocks of 144 bytes, each of which begins with its
        // header.
        unsafe {
            let (scale, min) = scales_and_mins(span, span.add(144));
            (_mm512_mul_ps(scale, _mm512_loadu_ps(FACTORS.as_ptr())), min)
        }
    }
}

pub(crate) struct Q6K;

// SAFETY: the methods need the instructions of `Format512`, and read only inside the span.
unsafe impl Format512 for Q6K {
    type Avx2 = avx2::Q6K;

    #[inline(always)]
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512; a span is one block of 210 bytes, `part` is 0 or 1, and the reads
        // end at 192.
        unsafe {
            let low = _mm512_loadu_si512(span.add(64 * part).cast());
            let high = _mm256_loadu_si256(span.add(128 + 32 * part).cast());
            let high = _mm512_broadcast_i64x4(high);
            let (four, two) = (_mm512_set1_epi8(0x0f), _mm512_set1_epi8(0x30));
            let left = _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
            let right = _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
            let first = _mm512_and_si512(low, four);
            let second = _mm512_and_si512(_mm512_srli_epi16::<4>(low), four);
            // `first | (left & two)`, and likewise the other.
            [
                _mm512_ternarylogic_epi64::<0xf8>(first, left, two),
                _mm512_ternarylogic_epi64::<0xf8>(second, right, two),
            ]
        }
    }
}

/// Scales and minima of two blocks of Q4_K.
///
/// # Safety
/// Needs AVX-512 F and VL, AVX2 and F16C, and the 16 bytes of each block's header.
#[inline(always)]
unsafe fn scales_and_mins(first: *const u8, second: *const u8) -> (__m512, __m512) {
    // SAFETY: the caller has AVX-512 F, VL, AVX2 and F16C and the 16 bytes of both headers, which are read
    // unaligned.
    unsafe {
        let (first, second) = (
            _mm_loadu_si128(first.cast()),
            _mm_loadu_si128(second.cast()),
        );
        // Three 32-bit integers a, b and c follow the two factors. The first four scales are the low six bits
        // of a, the first four minima those of b; the others have four bits in c and their upper two in the
        // top of a and b.
        let headers = _mm256_set_m128i(second, first);
        let low = _mm256_shuffle_epi32::<0b11_10_11_01>(headers);
        let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4));
        let (six, four, top) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x3030_3030);
        let masks = _mm256_setr_epi32(six, four, six, four, six, four, six, four);
        let low = _mm256_and_si256(low, masks);
        let high = _mm256_srli_epi32::<2>(_mm256_shuffle_epi32::<0b10_10_01_01>(headers));
        let masks = _mm256_setr_epi32(0, top, 0, top, 0, top, 0, top);
        // `low | (high & masks)`: scales and minima of the first block, then of the second.
        let bytes = _mm256_ternarylogic_epi32::<0xf8>(low, high, masks);
        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
        let floats = |bytes: __m128i| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
        let scales = floats(_mm256_castsi256_si128(bytes));
        let mins = floats(_mm256_extracti128_si256::<1>(bytes));
        let factors = _mm_cvtph_ps(_mm_unpacklo_epi32(first, second));
        let factors = _mm_xor_ps(factors, _mm_setr_ps(0.0, -0.0, 0.0, -0.0));
        let factors = _mm512_castps128_ps512(factors);
        let of_scales = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
        let of_mins = _mm512_setr_epi32(1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3);
        (
            _mm512_mul_ps(scales, _mm512_permutexvar_ps(of_scales, factors)),
            _mm512_mul_ps(mins, _mm512_permutexvar_ps(of_mins, factors)),
        )
    }
}

/// Unpacks twice 16 bytes of nibbles: of each the low ones, then the high ones.
///
/// # Safety
/// Needs AVX-512 F, and 16 readable bytes at each pointer.
#[inline(always)]
unsafe fn nibbles(a: *const u8, b: *const u8) -> __m512i {
    // SAFETY: the caller has AVX-512 F and 16 readable bytes at `a` and at `b`; unaligned loads.
    unsafe {
        let (a, b) = (_mm_loadu_si128(a.cast()), _mm_loadu_si128(b.cast()));
        let both = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(a), 0xff00, b);
        let shifted = _mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
        _mm512_and_si512(shifted, _mm512_set1_epi8(0x0f))
    }
}
