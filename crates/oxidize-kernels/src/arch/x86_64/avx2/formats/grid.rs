//! The formats whose codes index a grid, a table of vectors of 4 or 8 magnitudes: IQ1_S to IQ3_S.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::format::{Format, Scales, bytes32, half_at};
use crate::quant::grids::{
    IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID,
};

pub(crate) struct Iq2Xxs;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq2Xxs {
    const CHUNK_BYTES: usize = 66;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const SIGNS: bool = true;
    const BITS: u32 = 6;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe {
            let d = half_at(chunk) * 0.125;
            // The upper 32 bits of eight 64-bit entries.
            let (a, b) = (bytes32(chunk.add(2)), bytes32(chunk.add(34)));
            let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
            let words = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
            let words = _mm256_permute4x64_pd::<0b11_01_10_00>(words);
            let words = _mm256_castpd_si256(words);
            out.set_scale8(odd_scales(words, d));
            out.set_signs(even_signs(seven_bits(words)));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let indices = unsafe { chunk.add(2 + 8 * group).cast::<[u8; 4]>().read() };
        four(&IQ2_XXS_GRID, |i| usize::from(indices[i]))
    }
}

pub(crate) struct Iq2Xs;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq2Xs {
    const CHUNK_BYTES: usize = 74;
    const GROUP: usize = 16;
    const SIGNED: bool = true;
    const SIGNS: bool = true;
    const BITS: u32 = 6;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe {
            nibble_scales(chunk, chunk.add(66), out);
            // The upper seven bits of 32 entries; the permutation undoes the order of packing.
            let seven = |at: usize| _mm256_srli_epi16::<9>(bytes32(chunk.add(at)));
            let seven = _mm256_packus_epi16(seven(2), seven(34));
            let seven = _mm256_permute4x64_epi64::<0b11_01_10_00>(seven);
            out.set_signs(even_signs(seven));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let word = unsafe { chunk.add(2 + 8 * group).cast::<u64>().read_unaligned() };
        let entry = |i: usize| (word >> (16 * i)) as usize & 0xffff;
        four(&IQ2_XS_GRID, |i| entry(i) & 0x1ff)
    }
}

pub(crate) struct Iq2S;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq2S {
    const CHUNK_BYTES: usize = 82;
    const GROUP: usize = 16;
    const SIGNED: bool = true;
    const SIGNS: bool = true;
    const BITS: u32 = 6;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe {
            nibble_scales(chunk, chunk.add(74), out);
            out.set_signs(bytes32(chunk.add(34)));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let (low, high) = unsafe {
            let low = chunk.add(2 + 4 * group).cast::<u32>().read_unaligned();
            (low, usize::from(chunk.add(66 + group).read()))
        };
        four(&IQ2_S_GRID, |i| {
            (low >> (8 * i)) as usize & 0xff | (high >> (2 * i) & 3) << 8
        })
    }
}

pub(crate) struct Iq3Xxs;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq3Xxs {
    const CHUNK_BYTES: usize = 98;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const SIGNS: bool = true;
    const BITS: u32 = 6;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe {
            let d = half_at(chunk) * 0.25;
            let words = bytes32(chunk.add(66));
            out.set_scale8(odd_scales(words, d));
            out.set_signs(even_signs(seven_bits(words)));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let indices = unsafe { chunk.add(2 + 8 * group).cast::<u64>().read_unaligned() };
        eight(&IQ3_XXS_GRID, |i| (indices >> (8 * i)) as usize & 0xff)
    }
}

pub(crate) struct Iq3S;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq3S {
    const CHUNK_BYTES: usize = 110;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const SIGNS: bool = true;
    const BITS: u32 = 4;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe {
            let nibbles = chunk.add(106).cast::<i32>().read_unaligned();
            let words = _mm256_sllv_epi32(_mm256_set1_epi32(nibbles), nibbles_to_top());
            out.set_scale8(odd_scales(words, half_at(chunk)));
            out.set_signs(bytes32(chunk.add(74)));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let (low, high) = unsafe {
            let low = _mm_loadl_epi64(chunk.add(2 + 8 * group).cast());
            (low, i16::from(chunk.add(66 + group).read()))
        };
        // Bit `i` of `high` is bit 8 of index `i`.
        let bits = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128);
        let ninth = _mm_cmpeq_epi16(_mm_and_si128(_mm_set1_epi16(high), bits), bits);
        let ninth = _mm_and_si128(ninth, _mm_set1_epi16(0x100));
        let indices = _mm_or_si128(_mm_cvtepu8_epi16(low), ninth);
        let four = [
            _mm_extract_epi64::<0>(indices) as u64,
            _mm_extract_epi64::<1>(indices) as u64,
        ];
        eight(&IQ3_S_GRID, |i| {
            (four[i / 4] >> (16 * (i % 4))) as usize & 0xffff
        })
    }
}

pub(crate) struct Iq1S;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq1S {
    const CHUNK_BYTES: usize = 50;
    const GROUP: usize = 32;
    const BITS: u32 = 2;
    const MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe {
            // Three bits of scale; the bit above them is set if the shift is −⅛ and not ⅛.
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(chunk.add(34).cast()));
            let three = _mm256_and_si256(_mm256_srli_epi32::<12>(words), _mm256_set1_epi32(7));
            set_shifted(
                odd(three, half_at(chunk)),
                _mm256_slli_epi32::<16>(words),
                out,
            );
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let (low, high) = unsafe {
            let high = chunk.add(34 + 2 * group).cast::<u16>().read_unaligned();
            (
                chunk.add(2 + 4 * group).cast::<u32>().read_unaligned(),
                usize::from(high),
            )
        };
        let grid = four(&IQ1_GRID, |i| {
            (low >> (8 * i)) as usize & 0xff | (high >> (3 * i) & 7) << 8
        });
        _mm256_add_epi8(grid, _mm256_set1_epi8(1))
    }
}

pub(crate) struct Iq1M;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq1M {
    const CHUNK_BYTES: usize = 56;
    const GROUP: usize = 16;
    const BITS: u32 = 5;
    const MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let words = unsafe { chunk.add(48).cast::<[u16; 4]>().read_unaligned() };
        let d = words[0] >> 12 | words[1] >> 8 & 0xf0 | words[2] >> 4 & 0xf00 | words[3] & 0xf000;
        // SAFETY: the pointer is to a local `u16`, which has two bytes.
        let d = unsafe { half_at((&raw const d).cast()) } * 0.125;
        let shifts = _mm256_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9);
        for half in 0..2 {
            let (a, b) = (i32::from(words[2 * half]), i32::from(words[2 * half + 1]));
            let bits = _mm256_srlv_epi32(_mm256_setr_epi32(a, a, a, a, b, b, b, b), shifts);
            let scale = odd(_mm256_and_si256(bits, _mm256_set1_epi32(7)), d);
            let min = _mm256_mul_ps(scale, _mm256_set1_ps(-9.0));
            // SAFETY: both arrays have 16 floats, of which eight from `8 · half` on are written; AVX2 is
            // enabled here.
            unsafe {
                _mm256_storeu_ps(out.scale.as_mut_ptr().add(8 * half), scale);
                _mm256_storeu_ps(out.min.as_mut_ptr().add(8 * half), min);
            }
        }
    }

    /// Eight times the grid's value, plus or minus one for the shift of ⅛, plus nine so that no byte is
    /// negative.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let (low, high) = unsafe {
            let high = chunk.add(32 + 2 * group).cast::<u16>().read_unaligned();
            (
                chunk.add(4 * group).cast::<u32>().read_unaligned(),
                usize::from(high),
            )
        };
        let grid = four(&IQ1_GRID, |i| {
            (low >> (8 * i)) as usize & 0xff | (high >> (4 * i) & 7) << 8
        });
        // Bit 3 of each nibble is set if the shift is negative.
        let minus = _mm256_and_si256(
            _mm256_set1_epi64x(high as i64),
            _mm256_setr_epi64x(0x8, 0x80, 0x800, 0x8000),
        );
        let plus = _mm256_cmpeq_epi64(minus, _mm256_setzero_si256());
        let shift = _mm256_blendv_epi8(_mm256_set1_epi8(8), _mm256_set1_epi8(10), plus);
        // The mask drops the bits that a shift of 16-bit lanes carries from one byte into the other; the sum
        // wraps, as in two's complement.
        let times_8 = _mm256_and_si256(_mm256_slli_epi16::<3>(grid), _mm256_set1_epi8(-8));
        _mm256_add_epi8(times_8, shift)
    }
}

/// Sets the scales of IQ1_S, and minima for bytes that are 1 above its −1, 0, 1. The top bit of each lane of
/// `down` is set if the weights are shifted by −⅛ and not ⅛.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn set_shifted(scale: __m256, down: __m256i, out: &mut Scales) {
    let sign = _mm256_and_ps(_mm256_castsi256_ps(down), _mm256_set1_ps(-0.0));
    let shift = _mm256_or_ps(_mm256_set1_ps(0.125), sign);
    let min = _mm256_mul_ps(scale, _mm256_sub_ps(shift, _mm256_set1_ps(1.0)));
    out.set_scale8(scale);
    out.set_min8(min);
}

/// Unpacks the scales of IQ2_XS and IQ2_S, `d · (½ + scale) / 4`, two of 4 bits per byte.
///
/// # Safety
/// Needs F16C; `d` has two readable bytes and `nibbles` eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibble_scales(d: *const u8, nibbles: *const u8, out: &mut Scales) {
    // SAFETY: the caller has two readable bytes at `d` and eight at `nibbles`, which are read unaligned.
    let (d, nibbles) = unsafe {
        (
            half_at(d) * 0.125,
            nibbles.cast::<[i32; 2]>().read_unaligned(),
        )
    };
    for (half, nibbles) in nibbles.into_iter().enumerate() {
        let words = _mm256_sllv_epi32(_mm256_set1_epi32(nibbles), nibbles_to_top());
        // SAFETY: the array has 16 floats, of which eight from `8 · half` on are written; AVX2 is enabled
        // here.
        unsafe { _mm256_storeu_ps(out.scale.as_mut_ptr().add(8 * half), odd_scales(words, d)) };
    }
}

/// Shifts that move nibble `g` of an integer to its top in lane `g`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles_to_top() -> __m256i {
    _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0)
}

/// `d · (2 · scale + 1)`, with the scales in the upper four bits of eight lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn odd_scales(words: __m256i, d: f32) -> __m256 {
    odd(_mm256_srli_epi32::<28>(words), d)
}

/// `d · (2 · scale + 1)`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn odd(scales: __m256i, d: f32) -> __m256 {
    let scales = _mm256_cvtepi32_ps(scales);
    _mm256_fmadd_ps(scales, _mm256_set1_ps(2.0 * d), _mm256_set1_ps(d))
}

/// The low 28 bits of each lane as four times seven bits, each in a byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn seven_bits(words: __m256i) -> __m256i {
    let byte = |x: __m256i, i: u32| _mm256_and_si256(x, _mm256_set1_epi32(0x7f << (8 * i)));
    let low = _mm256_or_si256(byte(words, 0), byte(_mm256_slli_epi32::<1>(words), 1));
    let high = _mm256_or_si256(
        byte(_mm256_slli_epi32::<2>(words), 2),
        byte(_mm256_slli_epi32::<3>(words), 3),
    );
    _mm256_or_si256(low, high)
}

/// Completes seven sign bits of each byte by the eighth, which makes the number of set bits even.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn even_signs(seven: __m256i) -> __m256i {
    // For each value of four bits a byte whose top bit is set if their number of ones is odd.
    let odd = _mm256_setr_epi8(
        0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0, //
        0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0,
    );
    let four = _mm256_set1_epi8(0x0f);
    let low = _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, four));
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(seven), four);
    let high = _mm256_shuffle_epi8(odd, high);
    _mm256_or_si256(seven, _mm256_xor_si256(low, high))
}

/// Four entries of a table, one after the other; `N` is a power of two, and indices are taken modulo it.
///
/// In assembly, because with AVX-512 the compiler would use a gather, which takes several times as long.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four<const N: usize>(table: &[u64; N], index: impl Fn(usize) -> usize) -> __m256i {
    const { assert!(N.is_power_of_two()) };
    let pair = |i: usize| {
        let out: __m128i;
        // SAFETY: both indices are below `N`, the length of the table; AVX2 is enabled here.
        unsafe {
            asm!(
                "vmovq {out}, qword ptr [{table} + 8 * {a}]",
                "vpinsrq {out}, {out}, qword ptr [{table} + 8 * {b}], 1",
                table = in(reg) table,
                a = in(reg) index(i) & (N - 1),
                b = in(reg) index(i + 1) & (N - 1),
                out = out(xmm_reg) out,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        out
    };
    _mm256_set_m128i(pair(2), pair(0))
}

/// Eight entries of a table, read as [`four`] does.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight<const N: usize>(table: &[u32; N], index: impl Fn(usize) -> usize) -> __m256i {
    const { assert!(N.is_power_of_two()) };
    let quad = |i: usize| {
        let out: __m128i;
        // Broadcasting loads and blends instead of insertions, each of which depends on the one before.
        // SAFETY: all four indices are below `N`, the length of the table; AVX2 is enabled here.
        unsafe {
            asm!(
                "vpbroadcastd {out}, dword ptr [{table} + 4 * {a}]",
                "vpbroadcastd {x}, dword ptr [{table} + 4 * {b}]",
                "vpbroadcastd {y}, dword ptr [{table} + 4 * {c}]",
                "vpbroadcastd {z}, dword ptr [{table} + 4 * {d}]",
                "vpblendd {out}, {out}, {x}, 2",
                "vpblendd {y}, {y}, {z}, 8",
                "vpblendd {out}, {out}, {y}, 12",
                table = in(reg) table,
                a = in(reg) index(i) & (N - 1),
                b = in(reg) index(i + 1) & (N - 1),
                c = in(reg) index(i + 2) & (N - 1),
                d = in(reg) index(i + 3) & (N - 1),
                out = out(xmm_reg) out,
                x = out(xmm_reg) _,
                y = out(xmm_reg) _,
                z = out(xmm_reg) _,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        out
    };
    _mm256_set_m128i(quad(4), quad(0))
}
