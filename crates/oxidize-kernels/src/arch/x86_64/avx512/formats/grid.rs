//! The formats whose bytes index a grid of 4 or 8 magnitudes: IQ2_XXS and IQ3_XXS. Lookups dominate their
//! time.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::super::avx2::formats as avx2;
use super::super::dot::Format512;
use crate::quant::grids::{IQ2_XXS_GRID, IQ3_XXS_GRID};

/// A format whose elements are `$quants` of a span, 128 at a time.
macro_rules! grid {
    ($name:ident, quants |$span:ident, $part:ident| $quants:expr) => {
        pub(crate) struct $name;

        // SAFETY: the methods need the instructions of `Format512`, and read only inside the span.
        unsafe impl Format512 for $name {
            type Avx2 = avx2::$name;

            #[inline(always)]
            unsafe fn quants($span: *const u8, $part: usize) -> [__m512i; 2] {
                // SAFETY: the caller has AVX-512; `$quants` reads inside the span, in part `$part`.
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

// The grid is small enough for lookups in registers.
grid!(
    Iq3Xxs,
    quants | span,
    part | {
        let indices = span.add(98 * (part / 2) + 2 + 32 * (part % 2));
        // The interleaving below undoes this order.
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

/// The grid of IQ3_XXS as indices of magnitudes, four per entry: those of the first two elements in the low
/// nibbles of two bytes, those of the others in the high ones.
static IQ3_XXS_LEVELS: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        // Magnitudes are 4, 12, … 52, and 62.
        let [a, b, c, d] = IQ3_XXS_GRID[i].to_le_bytes();
        table[i] = u16::from_le_bytes([((c / 8) << 4) | (a / 8), ((d / 8) << 4) | (b / 8)]);
        i += 1;
    }
    table
};

/// Four entries of eight bytes, whose indices are bytes in memory.
///
/// In assembly, because the compiler would use a gather, which takes several times as long.
///
/// # Safety
/// Needs AVX2, and four readable bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn four_by_bytes(table: &[u64; 256], indices: *const u8) -> __m256i {
    let (low, high): (__m128i, __m128i);
    // SAFETY: the caller has four readable bytes at `indices`, and the table has an entry for every value of
    // a byte.
    unsafe {
        asm!(
            "movzx {i:e}, byte ptr [{indices}]",
            "movzx {j:e}, byte ptr [{indices} + 1]",
            "vmovq {low}, qword ptr [{table} + 8 * {i}]",
            "vmovhps {low}, {low}, qword ptr [{table} + 8 * {j}]",
            "movzx {i:e}, byte ptr [{indices} + 2]",
            "movzx {j:e}, byte ptr [{indices} + 3]",
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
