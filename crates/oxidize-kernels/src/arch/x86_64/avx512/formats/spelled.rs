//! The formats of tables spelled out: IQ1_S to IQ3_S with a code for each weight, in planes of as many as a
//! register holds.

use std::arch::x86_64::*;

use super::super::super::avx2::format::{Format, half_at};
use super::super::super::avx2::formats as narrow;
use super::super::super::avx2::formats::{IQ2_LEVELS, IQ3_XXS_SHIFTED, SPELLED_OFFSET};
use super::super::dot::{Unpacked, WideFormat};

/// A format whose elements are `$quants` of a block, 128 of them at a time, with scales and minima `$scales`
/// of a span.
macro_rules! spelled {
    (
        $name:ident,
        scales |$span:ident| $scales:expr,
        quants |$block:ident, $half:ident| $quants:expr
    ) => {
        pub(crate) struct $name;

        // SAFETY: reads only inside the span that the caller answers for.
        unsafe impl WideFormat for $name {
            type Narrow = narrow::$name;

            #[inline(always)]
            unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
                let $half = part % 2;
                // SAFETY: inside the caller's span.
                unsafe {
                    let $block = span.add(part / 2 * <narrow::$name as Format>::CHUNK_BYTES);
                    $quants
                }
            }

            #[inline(always)]
            unsafe fn scales($span: *const u8, _unpacked: &Unpacked) -> (__m512, __m512) {
                // SAFETY: the headers of the caller's blocks.
                unsafe { $scales }
            }
        }
    };
}

spelled!(
    Iq1SSpelled,
    scales | span | {
        let (nibbles, unit) = two_headers(span, 70, 1.0);
        let scale = odd(_mm512_and_si512(nibbles, _mm512_set1_epi32(7)), unit);
        // The top bit says that the shift is −⅛, not ⅛; the bytes are one more than −1, 0, 1.
        let down = _mm512_test_epi32_mask(nibbles, _mm512_set1_epi32(8));
        let shift = _mm512_mask_blend_ps(down, _mm512_set1_ps(-0.875), _mm512_set1_ps(-1.125));
        (scale, _mm512_mul_ps(scale, shift))
    },
    quants | block,
    half | {
        let codes = _mm512_loadu_si512(block.add(6).cast());
        crumbs(codes, half).map(|x| _mm512_and_si512(x, _mm512_set1_epi8(3)))
    }
);

spelled!(
    Iq1MSpelled,
    scales | span | one_header(span, 0.125, 9.0),
    quants | block,
    half | {
        let codes = _mm512_loadu_si512(block.add(14).cast());
        let [a, b] = match half {
            0 => [_mm512_slli_epi16::<3>(codes), _mm512_slli_epi16::<1>(codes)],
            _ => [_mm512_srli_epi16::<1>(codes), _mm512_srli_epi16::<3>(codes)],
        };
        // Eight times the code, and two more where the shift of eight weights is up.
        let up = block.add(10 + 2 * half).cast::<[u8; 2]>().read();
        let level = |x: __m512i, up: u8| {
            let eights = _mm512_and_si512(x, _mm512_set1_epi8(0x18));
            _mm512_mask_or_epi64(eights, up, eights, _mm512_set1_epi8(2))
        };
        [level(a, up[0]), level(b, up[1])]
    }
);

spelled!(
    Iq2XxsSpelled,
    scales | span | {
        let (nibbles, unit) = two_headers(span, 102, 0.125);
        with_min(odd(nibbles, unit), f32::from(SPELLED_OFFSET))
    },
    quants | block,
    half | iq2_levels(block.add(6), half)
);

spelled!(
    Iq2SSpelled,
    scales | span | one_header(span, 0.125, f32::from(SPELLED_OFFSET)),
    quants | block,
    half | iq2_levels(block.add(10), half)
);

spelled!(
    Iq3XxsSpelled,
    scales | span | {
        let (nibbles, unit) = two_headers(span, 134, 0.25);
        with_min(odd(nibbles, unit), f32::from(SPELLED_OFFSET))
    },
    quants | block,
    half | nibbles(block.add(6 + 64 * half)).map(|x| look_up(&IQ3_XXS_SHIFTED, x))
);

// Levels are two apart.
spelled!(
    Iq3SSpelled,
    scales | span | {
        let (nibbles, unit) = two_headers(span, 134, 2.0);
        with_min(odd(nibbles, unit), 7.5)
    },
    quants | block,
    half | nibbles(block.add(6 + 64 * half))
);

/// The shifted levels of IQ2: 32 bytes of signs are followed by 64 of codes.
///
/// # Safety
/// Needs AVX-512 BW, and so many readable bytes.
#[inline(always)]
unsafe fn iq2_levels(signs: *const u8, half: usize) -> [__m512i; 2] {
    // SAFETY: the caller's bytes.
    unsafe {
        let codes = _mm512_loadu_si512(signs.add(32).cast());
        // The low nibbles are signs of the first 32 of each 64 weights, the high ones of the others.
        let signs = _mm512_broadcast_i64x4(_mm256_loadu_si256(signs.cast()));
        let signs = _mm512_srlv_epi64(signs, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4));
        let [a, b] = crumbs(codes, half);
        // The sign goes to bit 2, above the code.
        let [sign_a, sign_b] = match half {
            0 => [_mm512_slli_epi16::<2>(signs), _mm512_slli_epi16::<1>(signs)],
            _ => [signs, _mm512_srli_epi16::<1>(signs)],
        };
        let index = |code: __m512i, sign: __m512i| {
            let code = _mm512_and_si512(code, _mm512_set1_epi8(3));
            // `code | (sign & 4)`.
            _mm512_ternarylogic_epi64::<0xf8>(code, sign, _mm512_set1_epi8(4))
        };
        [index(a, sign_a), index(b, sign_b)].map(|x| look_up(&IQ2_LEVELS, x))
    }
}

/// The two planes of 2 bits that a half of a block is, in the low bits of bytes whose others are to be ignored.
///
/// # Safety
/// Needs AVX-512 BW.
#[inline(always)]
unsafe fn crumbs(codes: __m512i, half: usize) -> [__m512i; 2] {
    // SAFETY: the caller has the instructions.
    unsafe {
        match half {
            0 => [codes, _mm512_srli_epi16::<2>(codes)],
            _ => [_mm512_srli_epi16::<4>(codes), _mm512_srli_epi16::<6>(codes)],
        }
    }
}

/// The low nibbles of 64 bytes, and the high ones.
///
/// # Safety
/// Needs AVX-512 BW, and 64 readable bytes.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> [__m512i; 2] {
    // SAFETY: the caller's bytes.
    unsafe {
        let x = _mm512_loadu_si512(p.cast());
        [x, _mm512_srli_epi16::<4>(x)].map(|x| _mm512_and_si512(x, _mm512_set1_epi8(0x0f)))
    }
}

/// What 64 indices below 16 find in a table.
///
/// # Safety
/// Needs AVX-512 BW.
#[inline(always)]
unsafe fn look_up(table: &[i8; 16], indices: __m512i) -> __m512i {
    // SAFETY: the table has 16 bytes.
    unsafe {
        let table = _mm_loadu_si128(table.as_ptr().cast());
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices)
    }
}

/// The eight nibbles that each of two blocks has after its factor, and those factors times `unit`.
///
/// # Safety
/// Needs AVX-512 and F16C, and six readable bytes `bytes` apart.
#[inline(always)]
unsafe fn two_headers(span: *const u8, bytes: usize, unit: f32) -> (__m512i, __m512) {
    // SAFETY: the caller's bytes.
    unsafe {
        let second = span.add(bytes);
        let nibbles = nibbles16(span.add(2), second.add(2));
        let first = _mm512_set1_ps(half_at(span));
        let factors = _mm512_mask_blend_ps(0xff00, first, _mm512_set1_ps(half_at(second)));
        (nibbles, _mm512_mul_ps(factors, _mm512_set1_ps(unit)))
    }
}

/// The scales of a block of 16 groups, `d · unit · (2 · nibble + 1)`, and `−offset` times them.
///
/// # Safety
/// Needs AVX-512 and F16C, and ten readable bytes.
#[inline(always)]
unsafe fn one_header(block: *const u8, unit: f32, offset: f32) -> (__m512, __m512) {
    // SAFETY: the caller's bytes.
    unsafe {
        let nibbles = nibbles16(block.add(2), block.add(6));
        with_min(odd(nibbles, _mm512_set1_ps(half_at(block) * unit)), offset)
    }
}

/// Twice eight nibbles, one a word.
///
/// # Safety
/// Needs AVX-512, and four readable bytes at each pointer.
#[inline(always)]
unsafe fn nibbles16(first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: the caller's bytes.
    unsafe {
        let first = _mm512_set1_epi32(first.cast::<i32>().read_unaligned());
        let second = second.cast::<i32>().read_unaligned();
        let words = _mm512_mask_set1_epi32(first, 0xff00, second);
        let shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
        _mm512_and_si512(_mm512_srlv_epi32(words, shifts), _mm512_set1_epi32(15))
    }
}

/// `unit · (2 · scale + 1)`.
///
/// # Safety
/// Needs AVX-512.
#[inline(always)]
unsafe fn odd(scales: __m512i, unit: __m512) -> __m512 {
    // SAFETY: the caller has the instructions.
    unsafe { _mm512_fmadd_ps(_mm512_cvtepi32_ps(scales), _mm512_add_ps(unit, unit), unit) }
}

/// Scales, and `−offset` times them.
///
/// # Safety
/// Needs AVX-512.
#[inline(always)]
unsafe fn with_min(scale: __m512, offset: f32) -> (__m512, __m512) {
    // SAFETY: the caller has the instructions.
    unsafe { (scale, _mm512_mul_ps(scale, _mm512_set1_ps(-offset))) }
}
