//! The formats that index tables of 4 or 8 magnitudes: IQ1_S to IQ3_S.
//!
//! Indices of more than eight bits are put together for 128 elements at once and read back one by one;
//! looking up is what takes the time.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::super::avx2::formats as narrow;
use super::super::dot::WideFormat;
use crate::quant::grids::{
    IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID,
};

/// A format whose elements are `$quants` of a span, 128 of them at a time.
macro_rules! grid {
    ($name:ident, quants |$span:ident, $part:ident| $quants:expr) => {
        pub(crate) struct $name;

        // SAFETY: reads only inside the span that the caller answers for.
        unsafe impl WideFormat for $name {
            type Narrow = narrow::$name;

            #[inline(always)]
            unsafe fn quants($span: *const u8, $part: usize) -> [__m512i; 2] {
                // SAFETY: inside the caller's span.
                unsafe { $quants }
            }
        }
    };
}

grid!(
    Iq2Xxs,
    quants | span,
    part | {
        // Four bytes of indices are followed by four of signs and scale.
        let indices = span.add(66 * (part / 2) + 2 + 32 * (part % 2));
        [0, 1].map(|j| {
            let four = |i: usize| four_by_bytes(&IQ2_XXS_GRID, indices.add(16 * j + 8 * i));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(four(0)), four(1))
        })
    }
);

grid!(
    Iq2Xs,
    quants | span,
    part | {
        let words = _mm256_loadu_si256(span.add(2 + 32 * part).cast());
        by_words(
            &IQ2_XS_GRID,
            _mm256_and_si256(words, _mm256_set1_epi16(0x1ff)),
        )
    }
);

grid!(
    Iq2S,
    quants | span,
    part | {
        let low = _mm256_cvtepu8_epi16(_mm_loadu_si128(span.add(2 + 16 * part).cast()));
        // Each byte four times, its bits 0, 2, 4 and 6 moved to bit 8.
        let order = _mm256_setr_epi8(
            0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, //
            2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1,
        );
        let high = _mm256_set1_epi32(span.add(66 + 4 * part).cast::<i32>().read_unaligned());
        let high = _mm256_shuffle_epi8(high, order);
        let shifts = _mm256_setr_epi16(8, 6, 4, 2, 8, 6, 4, 2, 8, 6, 4, 2, 8, 6, 4, 2);
        let high = _mm256_and_si256(_mm256_sllv_epi16(high, shifts), _mm256_set1_epi16(0x300));
        by_words(&IQ2_S_GRID, _mm256_or_si256(low, high))
    }
);

// The table is small enough to be looked up in registers.
grid!(
    Iq3Xxs,
    quants | span,
    part | {
        let indices = span.add(98 * (part / 2) + 2 + 32 * (part % 2));
        // In an order that the interleaving below undoes.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let indices = _mm256_permutevar8x32_epi32(_mm256_loadu_si256(indices.cast()), order);
        let indices = _mm512_cvtepu8_epi16(indices);
        let quarter = |i: usize| {
            let half =
                |h: usize| _mm512_loadu_si512(IQ3_XXS_LEVELS.as_ptr().add(64 * i + 32 * h).cast());
            _mm512_permutex2var_epi16(half(0), indices, half(1))
        };
        let odd = _mm512_test_epi16_mask(indices, _mm512_set1_epi16(0x40));
        let upper = _mm512_test_epi16_mask(indices, _mm512_set1_epi16(0x80));
        let levels = _mm512_mask_blend_epi16(
            upper,
            _mm512_mask_blend_epi16(odd, quarter(0), quarter(1)),
            _mm512_mask_blend_epi16(odd, quarter(2), quarter(3)),
        );
        let magnitudes = |nibbles: __m512i| {
            let table = _mm_setr_epi8(4, 12, 20, 28, 36, 44, 52, 62, 0, 0, 0, 0, 0, 0, 0, 0);
            let nibbles = _mm512_and_si512(nibbles, _mm512_set1_epi8(0x0f));
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles)
        };
        let first = magnitudes(levels);
        let second = magnitudes(_mm512_srli_epi16::<4>(levels));
        [
            _mm512_unpacklo_epi16(first, second),
            _mm512_unpackhi_epi16(first, second),
        ]
    }
);

/// For each entry of the table of IQ3_XXS four levels: those of the first two magnitudes in the low
/// nibbles of two bytes, those of the others in the high ones.
static IQ3_XXS_LEVELS: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        // Magnitudes are 4, 12, … 52, and 62.
        let [a, b, c, d] = IQ3_XXS_GRID[i].to_le_bytes();
        table[i] = u16::from_le_bytes([(c / 8) << 4 | a / 8, (d / 8) << 4 | b / 8]);
        i += 1;
    }
    table
};

grid!(
    Iq3S,
    quants | span,
    part | {
        let block = span.add(110 * (part / 2));
        let low = _mm256_loadu_si256(block.add(2 + 32 * (part % 2)).cast());
        let low = _mm512_cvtepu8_epi16(low);
        let ninth = block
            .add(66 + 4 * (part % 2))
            .cast::<u32>()
            .read_unaligned();
        let mut indices = [0u16; 32];
        let words = _mm512_mask_add_epi16(low, ninth, low, _mm512_set1_epi16(0x100));
        _mm512_storeu_si512(indices.as_mut_ptr().cast(), words);
        [0, 1].map(|j| {
            let eight =
                |i: usize| eight_by_words(&IQ3_S_GRID, indices.as_ptr().add(16 * j + 8 * i));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(eight(0)), eight(1))
        })
    }
);

grid!(
    Iq1S,
    quants | span,
    part | {
        let block = span.add(50 * (part / 2));
        let low = _mm_loadu_si128(block.add(2 + 16 * (part % 2)).cast());
        let high = block
            .add(34 + 8 * (part % 2))
            .cast::<i64>()
            .read_unaligned();
        // Each word four times, its bits 0, 3, 6 and 9 moved to the bottom.
        let order = _mm256_setr_epi8(
            0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, //
            4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7,
        );
        let high = _mm256_shuffle_epi8(_mm256_set1_epi64x(high), order);
        let shifts = _mm256_setr_epi16(0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9);
        let grid = by_words(&IQ1_GRID, eleven_bits(low, _mm256_srlv_epi16(high, shifts)));
        // One more than the table's −1, 0, 1.
        grid.map(|grid| _mm512_add_epi8(grid, _mm512_set1_epi8(1)))
    }
);

// Eight times the table's value, plus or minus one for the shift of an eighth, plus nine so that
// nothing is negative.
grid!(
    Iq1M,
    quants | span,
    part | {
        let low = _mm_loadu_si128(span.add(16 * part).cast());
        let high = _mm_loadl_epi64(span.add(32 + 8 * part).cast());
        // Each byte twice, its nibbles moved to the bottom.
        let high = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(high, high));
        let nibbles = _mm256_srlv_epi16(high, _mm256_set1_epi32(4 << 16));
        let minus = _mm256_test_epi16_mask(nibbles, _mm256_set1_epi16(8));
        let [first, second] = by_words(&IQ1_GRID, eleven_bits(low, nibbles));
        [(first, minus as u8), (second, (minus >> 8) as u8)].map(|(grid, minus)| {
            let (eight, ten) = (_mm512_set1_epi8(8), _mm512_set1_epi8(10));
            let shift = _mm512_mask_blend_epi64(minus, ten, eight);
            // The mask drops what a shift of 16-bit lanes carries from one byte into the next, and the sum
            // wraps as two's complement does.
            let times_8 = _mm512_and_si512(_mm512_slli_epi16::<3>(grid), _mm512_set1_epi8(-8));
            _mm512_add_epi8(times_8, shift)
        })
    }
);

/// Sixteen entries of a table, side by side.
///
/// # Safety
/// Needs AVX-512; the indices are below `N`.
#[inline(always)]
unsafe fn by_words<const N: usize>(table: &[u64; N], indices: __m256i) -> [__m512i; 2] {
    let mut words = [0u16; 16];
    // SAFETY: the array has 32 bytes; each four of the indices are in it.
    unsafe {
        _mm256_storeu_si256(words.as_mut_ptr().cast(), indices);
        [0, 1].map(|j| {
            let four = |i: usize| four_by_words(table, words.as_ptr().add(8 * j + 4 * i));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(four(0)), four(1))
        })
    }
}

/// Indices of eight bits from `low` and three from the bottom of each word.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn eleven_bits(low: __m128i, three: __m256i) -> __m256i {
    // SAFETY: the caller has the instructions.
    unsafe {
        let three = _mm256_and_si256(three, _mm256_set1_epi16(7));
        _mm256_or_si256(_mm256_cvtepu8_epi16(low), _mm256_slli_epi16::<8>(three))
    }
}

/// A function that looks up four entries of eight bytes, by indices of one or two bytes in memory.
///
/// In assembly, because the compiler would otherwise make a gather of it, which takes several times as
/// long.
macro_rules! four_by {
    ($name:ident, $index:ty, $at:literal $width:literal) => {
        /// # Safety
        /// Needs AVX2; four indices below `N` are readable.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn $name<const N: usize>(table: &[u64; N], indices: *const $index) -> __m256i {
            let (low, high): (__m128i, __m128i);
            // SAFETY: reads the indices and four entries of the table.
            unsafe {
                asm!(
                    concat!("movzx {i:e}, ", $at, " ptr [{indices}]"),
                    concat!("movzx {j:e}, ", $at, " ptr [{indices} + ", $width, "]"),
                    "vmovq {low}, qword ptr [{table} + 8 * {i}]",
                    "vmovhps {low}, {low}, qword ptr [{table} + 8 * {j}]",
                    concat!("movzx {i:e}, ", $at, " ptr [{indices} + 2 * ", $width, "]"),
                    concat!("movzx {j:e}, ", $at, " ptr [{indices} + 3 * ", $width, "]"),
                    "vmovq {high}, qword ptr [{table} + 8 * {i}]",
                    "vmovhps {high}, {high}, qword ptr [{table} + 8 * {j}]",
                    table = in(reg) table,
                    indices = in(reg) indices,
                    i = out(reg) _,
                    j = out(reg) _,
                    low = out(xmm_reg) low,
                    high = out(xmm_reg) high,
                    options(pure, readonly, nostack, preserves_flags),
                );
            }
            _mm256_set_m128i(high, low)
        }
    };
}
four_by!(four_by_bytes, u8, "byte" "1");
four_by!(four_by_words, u16, "word" "2");

/// Eight entries of four bytes, as [`four_by_words`]; loads that fill the register and blends, rather
/// than insertions, which wait for one another.
///
/// # Safety
/// Needs AVX2; eight indices below `N` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn eight_by_words<const N: usize>(table: &[u32; N], indices: *const u16) -> __m256i {
    let out;
    // SAFETY: reads the indices and eight entries of the table.
    unsafe {
        asm!(
            "movzx {i:e}, word ptr [{indices}]",
            "movzx {j:e}, word ptr [{indices} + 2]",
            "vpbroadcastd {out}, dword ptr [{table} + 4 * {i}]",
            "vpbroadcastd {x}, dword ptr [{table} + 4 * {j}]",
            "movzx {i:e}, word ptr [{indices} + 4]",
            "movzx {j:e}, word ptr [{indices} + 6]",
            "vpblendd {out}, {out}, {x}, 0x02",
            "vpbroadcastd {x}, dword ptr [{table} + 4 * {i}]",
            "vpbroadcastd {y}, dword ptr [{table} + 4 * {j}]",
            "movzx {i:e}, word ptr [{indices} + 8]",
            "movzx {j:e}, word ptr [{indices} + 10]",
            "vpblendd {x}, {x}, {y}, 0x08",
            "vpblendd {out}, {out}, {x}, 0x0c",
            "vpbroadcastd {x}, dword ptr [{table} + 4 * {i}]",
            "vpbroadcastd {y}, dword ptr [{table} + 4 * {j}]",
            "movzx {i:e}, word ptr [{indices} + 12]",
            "movzx {j:e}, word ptr [{indices} + 14]",
            "vpblendd {x}, {x}, {y}, 0x20",
            "vpbroadcastd {y}, dword ptr [{table} + 4 * {i}]",
            "vpbroadcastd {z}, dword ptr [{table} + 4 * {j}]",
            "vpblendd {y}, {y}, {z}, 0x80",
            "vpblendd {x}, {x}, {y}, 0xc0",
            "vpblendd {out}, {out}, {x}, 0xf0",
            table = in(reg) table,
            indices = in(reg) indices,
            i = out(reg) _,
            j = out(reg) _,
            out = out(ymm_reg) out,
            x = out(ymm_reg) _,
            y = out(ymm_reg) _,
            z = out(ymm_reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    out
}
