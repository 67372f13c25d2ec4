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

pub(crate) struct Iq2Xxs;

// SAFETY: reads only inside the span that the caller answers for.
unsafe impl WideFormat for Iq2Xxs {
    type Narrow = narrow::Iq2Xxs;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
        [0, 1].map(|j| {
            // Four bytes of indices are followed by four of signs and scale.
            // SAFETY: inside the caller's span.
            let indices = unsafe { span.add(66 * (part / 2) + 2 + 32 * (part % 2) + 16 * j) };
            // SAFETY: as above; the table has an entry for every byte.
            let four = |i: usize| unsafe { four_by_bytes(&IQ2_XXS_GRID, indices.add(8 * i)) };
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(four(0)), four(1))
        })
    }
}

pub(crate) struct Iq2Xs;

// SAFETY: reads only inside the span that the caller answers for.
unsafe impl WideFormat for Iq2Xs {
    type Narrow = narrow::Iq2Xs;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: inside the caller's span.
        let words = unsafe { _mm256_loadu_si256(span.add(2 + 32 * part).cast()) };
        let indices = Words::new(_mm256_and_si256(words, _mm256_set1_epi16(0x1ff)));
        indices.of(&IQ2_XS_GRID)
    }
}

pub(crate) struct Iq2S;

// SAFETY: reads only inside the span that the caller answers for.
unsafe impl WideFormat for Iq2S {
    type Narrow = narrow::Iq2S;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: inside the caller's span.
        let (low, high) = unsafe {
            (
                _mm_loadu_si128(span.add(2 + 16 * part).cast()),
                span.add(66 + 4 * part).cast::<i32>().read_unaligned(),
            )
        };
        // Each byte four times, its bits 0, 2, 4 and 6 moved to bit 8.
        let high = _mm256_shuffle_epi8(_mm256_set1_epi32(high), fourfold());
        let shifts = _mm256_setr_epi16(8, 6, 4, 2, 8, 6, 4, 2, 8, 6, 4, 2, 8, 6, 4, 2);
        let high = _mm256_and_si256(_mm256_sllv_epi16(high, shifts), _mm256_set1_epi16(0x300));
        let indices = Words::new(_mm256_or_si256(_mm256_cvtepu8_epi16(low), high));
        indices.of(&IQ2_S_GRID)
    }
}

pub(crate) struct Iq3Xxs;

// SAFETY: reads only inside the span that the caller answers for.
unsafe impl WideFormat for Iq3Xxs {
    type Narrow = narrow::Iq3Xxs;

    /// The table is small enough to be looked up in registers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: inside the caller's span.
        let indices = unsafe {
            let indices = span.add(98 * (part / 2) + 2 + 32 * (part % 2));
            _mm256_loadu_si256(indices.cast())
        };
        // In an order that the interleaving below undoes.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let indices = _mm512_cvtepu8_epi16(_mm256_permutevar8x32_epi32(indices, order));
        let quarter = |i: usize| {
            // SAFETY: a quarter of the table is two registers.
            let half = |h: usize| unsafe {
                _mm512_loadu_si512(IQ3_XXS_LEVELS[64 * i + 32 * h..].as_ptr().cast())
            };
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
        let (first, second) = (
            magnitudes(levels),
            magnitudes(_mm512_srli_epi16::<4>(levels)),
        );
        [
            _mm512_unpacklo_epi16(first, second),
            _mm512_unpackhi_epi16(first, second),
        ]
    }
}

/// For each entry of the table of IQ3_XXS four levels: those of the first two magnitudes in the low
/// nibbles of two bytes, those of the others in the high ones.
static IQ3_XXS_LEVELS: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let [a, b, c, d] = IQ3_XXS_GRID[i].to_le_bytes();
        // Magnitudes are 4, 12, … 52, and 62.
        table[i] =
            (a / 8) as u16 | (c / 8 << 4) as u16 | ((b / 8) as u16) << 8 | ((d / 8) as u16) << 12;
        i += 1;
    }
    table
};

pub(crate) struct Iq3S;

// SAFETY: reads only inside the span that the caller answers for.
unsafe impl WideFormat for Iq3S {
    type Narrow = narrow::Iq3S;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: inside the caller's span.
        let (low, ninth) = unsafe {
            let block = span.add(110 * (part / 2));
            let low = _mm256_loadu_si256(block.add(2 + 32 * (part % 2)).cast());
            let ninth = block.add(66 + 4 * (part % 2)).cast::<u32>();
            (_mm512_cvtepu8_epi16(low), ninth.read_unaligned())
        };
        let indices = _mm512_mask_add_epi16(low, ninth, low, _mm512_set1_epi16(0x100));
        let mut words = [0u16; 32];
        // SAFETY: the array has 64 bytes, and no index is above 511.
        unsafe {
            _mm512_storeu_si512(words.as_mut_ptr().cast(), indices);
            [0, 1].map(|j| {
                let eight =
                    |i: usize| eight_by_words(&IQ3_S_GRID, words.as_ptr().add(16 * j + 8 * i));
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(eight(0)), eight(1))
            })
        }
    }
}

pub(crate) struct Iq1S;

// SAFETY: reads only inside the span that the caller answers for.
unsafe impl WideFormat for Iq1S {
    type Narrow = narrow::Iq1S;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: inside the caller's span.
        let (low, high) = unsafe {
            let block = span.add(50 * (part / 2));
            (
                _mm_loadu_si128(block.add(2 + 16 * (part % 2)).cast()),
                block
                    .add(34 + 8 * (part % 2))
                    .cast::<i64>()
                    .read_unaligned(),
            )
        };
        // Each word four times, its bits 0, 3, 6 and 9 moved to the bottom.
        let order = _mm256_setr_epi8(
            0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, //
            4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7,
        );
        let high = _mm256_shuffle_epi8(_mm256_set1_epi64x(high), order);
        let shifts = _mm256_setr_epi16(0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9, 0, 3, 6, 9);
        let indices = eleven_bits(low, _mm256_srlv_epi16(high, shifts));
        // One more than the table's −1, 0, 1.
        indices
            .of(&IQ1_GRID)
            .map(|grid| _mm512_add_epi8(grid, _mm512_set1_epi8(1)))
    }
}

pub(crate) struct Iq1M;

// SAFETY: reads only inside the span that the caller answers for.
unsafe impl WideFormat for Iq1M {
    type Narrow = narrow::Iq1M;

    /// Eight times the table's value, plus or minus one for the shift of an eighth, plus nine so
    /// that nothing is negative.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2] {
        // SAFETY: inside the caller's span.
        let (low, high) = unsafe {
            (
                _mm_loadu_si128(span.add(16 * part).cast()),
                _mm_loadl_epi64(span.add(32 + 8 * part).cast()),
            )
        };
        // Each byte twice, its nibbles moved to the bottom.
        let high = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(high, high));
        let shifts = _mm256_set1_epi32(4 << 16);
        let nibbles = _mm256_srlv_epi16(high, shifts);
        let minus = _mm256_test_epi16_mask(nibbles, _mm256_set1_epi16(8));
        let [first, second] = eleven_bits(low, nibbles).of(&IQ1_GRID);
        [(first, minus as u8), (second, (minus >> 8) as u8)].map(|(grid, minus)| {
            let (eight, ten) = (_mm512_set1_epi8(8), _mm512_set1_epi8(10));
            let shift = _mm512_mask_blend_epi64(minus, ten, eight);
            // The mask drops what a shift of 16-bit lanes carries from one byte into the next, and
            // the sum wraps as two's complement does.
            let times_8 = _mm512_and_si512(_mm512_slli_epi16::<3>(grid), _mm512_set1_epi8(-8));
            _mm512_add_epi8(times_8, shift)
        })
    }
}

/// Sixteen indices in memory.
struct Words([u16; 16]);

impl Words {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn new(words: __m256i) -> Words {
        let mut out = Words([0; 16]);
        // SAFETY: the array has 32 bytes.
        unsafe { _mm256_storeu_si256(out.0.as_mut_ptr().cast(), words) };
        out
    }

    /// Their entries, side by side. The indices are below `N`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn of<const N: usize>(&self, table: &[u64; N]) -> [__m512i; 2] {
        [0, 1].map(|j| {
            debug_assert!(self.0.iter().all(|&index| usize::from(index) < N));
            // SAFETY: each four of the indices are in the array and below the length of the table.
            let four =
                |i: usize| unsafe { four_by_words(table, self.0.as_ptr().add(8 * j + 4 * i)) };
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(four(0)), four(1))
        })
    }
}

/// Indices of eight bits from `low` and three from the bottom of each word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn eleven_bits(low: __m128i, three: __m256i) -> Words {
    let three = _mm256_and_si256(three, _mm256_set1_epi16(7));
    Words::new(_mm256_or_si256(
        _mm256_cvtepu8_epi16(low),
        _mm256_slli_epi16::<8>(three),
    ))
}

/// The order that makes four words of each of four bytes, whose upper halves are zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn fourfold() -> __m256i {
    _mm256_setr_epi8(
        0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, //
        2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1,
    )
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
