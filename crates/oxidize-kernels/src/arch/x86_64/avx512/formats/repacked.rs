//! The repacked grid formats: IQ1_S to IQ3_S with a code for each weight, in bit planes of a register's
//! width.

use std::arch::x86_64::*;

use super::super::super::avx2::format::{Format, half_at};
use super::super::super::avx2::formats as avx2;
use super::super::super::avx2::formats::{IQ2_LEVELS, IQ3_XXS_SHIFTED, REPACKED_OFFSET};
use super::super::dot::{ChunkScales, Format512};

/// A format whose elements are `$quants` of a block, 128 at a time, with scales and minima `$scales` of a
/// span.
macro_rules! repacked {
    (
        $name:ident,
        scales |$span:ident| $scales:expr,
        quants |$block:ident, $half:ident| $quants:expr
    ) => {
        pub(crate) struct $name;

        // SAFETY: the methods need the instructions of `Format512`, and read only inside the span.
        unsafe impl Format512 for $name {
            type Avx2 = avx2::$name;

            #[inline(always)]
            unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
                let $half = part % 2;
                // SAFETY: the caller has AVX-512; block `part / 2` is inside the span, and `$quants` reads
                // inside the block.
                unsafe {
                    let $block = span.add(part / 2 * <avx2::$name as Format>::CHUNK_BYTES);
                    $quants
                }
            }

            #[inline(always)]
            unsafe fn scales($span: *const u8, _unpacked: &ChunkScales) -> (__m512, __m512) {
                // SAFETY: the caller has AVX-512; `$scales` reads the headers of the span's blocks.
                unsafe { $scales }
            }
        }
    };
}

repacked!(
    Iq1SRepacked,
    scales | span | {
        let (nibbles, unit) = two_headers(span, 70, 1.0);
        let scale = odd(_mm512_and_si512(nibbles, _mm512_set1_epi32(7)), unit);
        // The top bit is set if the shift is −⅛ and not ⅛; the bytes are 1 above −1, 0, 1.
        let down = _mm512_test_epi32_mask(nibbles, _mm512_set1_epi32(8));
        let shift = _mm512_mask_blend_ps(down, _mm512_set1_ps(-0.875), _mm512_set1_ps(-1.125));
        (scale, _mm512_mul_ps(scale, shift))
    },
    quants | block,
    half | {
        let codes = _mm512_loadu_si512(block.add(6).cast());
        two_bit_codes(codes, half).map(|x| _mm512_and_si512(x, _mm512_set1_epi8(3)))
    }
);

repacked!(
    Iq1MRepacked,
    scales | span | one_header(span, 0.125, 9.0),
    quants | block,
    half | {
        let codes = _mm512_loadu_si512(block.add(14).cast());
        let [a, b] = match half {
            0 => [_mm512_slli_epi16::<3>(codes), _mm512_slli_epi16::<1>(codes)],
            _ => [_mm512_srli_epi16::<1>(codes), _mm512_srli_epi16::<3>(codes)],
        };
        // Eight times the code, plus two if the shift of eight weights is positive.
        let up = block.add(10 + 2 * half).cast::<[u8; 2]>().read();
        let level = |x: __m512i, up: u8| {
            let eights = _mm512_and_si512(x, _mm512_set1_epi8(0x18));
            _mm512_mask_or_epi64(eights, up, eights, _mm512_set1_epi8(2))
        };
        [level(a, up[0]), level(b, up[1])]
    }
);

repacked!(
    Iq2XxsRepacked,
    scales | span | {
        let (nibbles, unit) = two_headers(span, 102, 0.125);
        with_min(odd(nibbles, unit), f32::from(REPACKED_OFFSET))
    },
    quants | block,
    half | iq2_levels(block.add(6), half)
);

repacked!(
    Iq2SRepacked,
    scales | span | one_header(span, 0.125, f32::from(REPACKED_OFFSET)),
    quants | block,
    half | iq2_levels(block.add(10), half)
);

repacked!(
    Iq3XxsRepacked,
    scales | span | {
        let (nibbles, unit) = two_headers(span, 134, 0.25);
        with_min(odd(nibbles, unit), f32::from(REPACKED_OFFSET))
    },
    quants | block,
    half | nibbles(block.add(6 + 64 * half)).map(|x| look_up(&IQ3_XXS_SHIFTED, x))
);

// Levels are two apart.
repacked!(
    Iq3SRepacked,
    scales | span | {
        let (nibbles, unit) = two_headers(span, 134, 2.0);
        with_min(odd(nibbles, unit), 7.5)
    },
    quants | block,
    half | nibbles(block.add(6 + 64 * half))
);

/// Levels of IQ2 plus [`REPACKED_OFFSET`], from 32 bytes of signs that are followed by 64 of codes.
///
/// # Safety
/// Needs AVX-512 F and BW; `signs` has 96 readable bytes.
#[inline(always)]
unsafe fn iq2_levels(signs: *const u8, half: usize) -> [__m512i; 2] {
    // SAFETY: the caller has AVX-512 F and BW and 96 readable bytes at `signs`; unaligned loads.
    unsafe {
        let codes = _mm512_loadu_si512(signs.add(32).cast());
        // The low nibbles are signs of the first 32 of each 64 weights, the high ones of the others.
        let signs = _mm512_broadcast_i64x4(_mm256_loadu_si256(signs.cast()));
        let signs = _mm512_srlv_epi64(signs, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4));
        let [a, b] = two_bit_codes(codes, half);
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

/// The two planes of 2-bit codes of half a block, in the low bits of bytes whose other bits are unspecified.
///
/// # Safety
/// Needs AVX-512 F and BW.
#[inline(always)]
unsafe fn two_bit_codes(codes: __m512i, half: usize) -> [__m512i; 2] {
    // SAFETY: the caller has AVX-512 F and BW; registers only.
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
/// Needs AVX-512 F and BW; `p` has 64 readable bytes.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> [__m512i; 2] {
    // SAFETY: the caller has AVX-512 F and BW and 64 readable bytes at `p`; unaligned loads.
    unsafe {
        let x = _mm512_loadu_si512(p.cast());
        [x, _mm512_srli_epi16::<4>(x)].map(|x| _mm512_and_si512(x, _mm512_set1_epi8(0x0f)))
    }
}

/// Looks up 64 indices below 16 in a table.
///
/// # Safety
/// Needs AVX-512 F and BW.
#[inline(always)]
unsafe fn look_up(table: &[i8; 16], indices: __m512i) -> __m512i {
    // SAFETY: the caller has AVX-512 F and BW; the table has 16 bytes.
    unsafe {
        let table = _mm_loadu_si128(table.as_ptr().cast());
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices)
    }
}

/// The eight nibbles that follow the factor of each of two blocks, and the factors times `unit`.
///
/// # Safety
/// Needs AVX-512 F, AVX2 and F16C; six bytes are readable at `span` and `bytes` after it.
#[inline(always)]
unsafe fn two_headers(span: *const u8, bytes: usize, unit: f32) -> (__m512i, __m512) {
    // SAFETY: the caller has AVX-512 F, VL, AVX2 and F16C and six readable bytes at both blocks.
    unsafe {
        let second = span.add(bytes);
        let nibbles = nibbles16(span.add(2), second.add(2));
        let first = _mm512_set1_ps(half_at(span));
        let factors = _mm512_mask_blend_ps(0xff00, first, _mm512_set1_ps(half_at(second)));
        (nibbles, _mm512_mul_ps(factors, _mm512_set1_ps(unit)))
    }
}

/// Scales of a block of 16 groups, `d · unit · (2 · nibble + 1)`, and `−offset` times them.
///
/// # Safety
/// Needs AVX-512 F, AVX2 and F16C; `block` has ten readable bytes.
#[inline(always)]
unsafe fn one_header(block: *const u8, unit: f32, offset: f32) -> (__m512, __m512) {
    // SAFETY: the caller has AVX-512 F, VL, AVX2 and F16C and ten readable bytes at `block`.
    unsafe {
        let nibbles = nibbles16(block.add(2), block.add(6));
        with_min(odd(nibbles, _mm512_set1_ps(half_at(block) * unit)), offset)
    }
}

/// Twice eight nibbles, one per 32-bit lane.
///
/// # Safety
/// Needs AVX-512 F, and four readable bytes at each pointer.
#[inline(always)]
unsafe fn nibbles16(first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: the caller has AVX-512 F and four readable bytes at both pointers, which are read unaligned.
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
/// Needs AVX-512 F.
#[inline(always)]
unsafe fn odd(scales: __m512i, unit: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512 F; registers only.
    unsafe { _mm512_fmadd_ps(_mm512_cvtepi32_ps(scales), _mm512_add_ps(unit, unit), unit) }
}

/// Scales, and `−offset` times them.
///
/// # Safety
/// Needs AVX-512 F.
#[inline(always)]
unsafe fn with_min(scale: __m512, offset: f32) -> (__m512, __m512) {
    // SAFETY: the caller has AVX-512 F; registers only.
    unsafe { (scale, _mm512_mul_ps(scale, _mm512_set1_ps(-offset))) }
}
