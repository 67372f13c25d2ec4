//! The formats that index tables of 4 or 8 magnitudes: IQ1_S to IQ3_S.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::format::{Format, Scales, bytes32, half_at, spread_bits};
use crate::quant::grids::{
    IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID, even_signs,
};

/// For each 7 stored sign bits, eight bytes of 1 or −1.
static EVEN_SIGNS: [u64; 128] = {
    let mut table = [0; 128];
    let mut i = 0;
    while i < 128 {
        let signs = even_signs(i as u8);
        let mut j = 0;
        while j < 8 {
            let byte = if signs >> j & 1 == 1 { 0xff } else { 0x01 };
            table[i] |= byte << (8 * j);
            j += 1;
        }
        i += 1;
    }
    table
};

pub(crate) struct Iq2Xxs;

// SAFETY: reads only inside the block that the caller answers for.
unsafe impl Format for Iq2Xxs {
    const CHUNK_BYTES: usize = 66;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const BITS: u32 = 6;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: inside the caller's block.
        unsafe {
            let d = half_at(chunk) * 0.125;
            // The upper words of eight pairs.
            let (a, b) = (bytes32(chunk.add(2)), bytes32(chunk.add(34)));
            let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
            let words = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
            let words = _mm256_permute4x64_pd::<0b11_01_10_00>(words);
            out.set_scale8(odd_scales(_mm256_castpd_si256(words), d));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: inside the caller's block.
        let (indices, signs) = unsafe {
            let pair = chunk.add(2 + 8 * group);
            (
                pair.cast::<[u8; 4]>().read(),
                pair.add(4).cast::<u32>().read_unaligned(),
            )
        };
        let grid = four(&IQ2_XXS_GRID, |i| usize::from(indices[i]));
        _mm256_sign_epi8(grid, packed_signs(signs))
    }
}

pub(crate) struct Iq2Xs;

// SAFETY: reads only inside the block that the caller answers for.
unsafe impl Format for Iq2Xs {
    const CHUNK_BYTES: usize = 74;
    const GROUP: usize = 16;
    const SIGNED: bool = true;
    const BITS: u32 = 6;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: inside the caller's block.
        unsafe { nibble_scales(chunk, chunk.add(66), out) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: inside the caller's block.
        let word = unsafe { chunk.add(2 + 8 * group).cast::<u64>().read_unaligned() };
        let entry = |i: usize| (word >> (16 * i)) as usize & 0xffff;
        let grid = four(&IQ2_XS_GRID, |i| entry(i) & 0x1ff);
        _mm256_sign_epi8(grid, four(&EVEN_SIGNS, |i| entry(i) >> 9))
    }
}

pub(crate) struct Iq2S;

// SAFETY: reads only inside the block that the caller answers for.
unsafe impl Format for Iq2S {
    const CHUNK_BYTES: usize = 82;
    const GROUP: usize = 16;
    const SIGNED: bool = true;
    const BITS: u32 = 6;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: inside the caller's block.
        unsafe { nibble_scales(chunk, chunk.add(74), out) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: inside the caller's block.
        let (low, high, signs) = unsafe {
            let word = |offset: usize| chunk.add(offset + 4 * group).cast::<u32>().read_unaligned();
            (word(2), usize::from(chunk.add(66 + group).read()), word(34))
        };
        let grid = four(&IQ2_S_GRID, |i| {
            (low >> (8 * i)) as usize & 0xff | (high >> (2 * i) & 3) << 8
        });
        negate_where(grid, spread_bits(signs))
    }
}

pub(crate) struct Iq3Xxs;

// SAFETY: reads only inside the block that the caller answers for.
unsafe impl Format for Iq3Xxs {
    const CHUNK_BYTES: usize = 98;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const BITS: u32 = 6;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: inside the caller's block.
        unsafe {
            let d = half_at(chunk) * 0.25;
            out.set_scale8(odd_scales(bytes32(chunk.add(66)), d));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: inside the caller's block.
        let (indices, signs) = unsafe {
            let indices = chunk.add(2 + 8 * group).cast::<u64>().read_unaligned();
            (
                indices,
                chunk.add(66 + 4 * group).cast::<u32>().read_unaligned(),
            )
        };
        let grid = eight(&IQ3_XXS_GRID, |i| (indices >> (8 * i)) as usize & 0xff);
        _mm256_sign_epi8(grid, packed_signs(signs))
    }
}

pub(crate) struct Iq3S;

// SAFETY: reads only inside the block that the caller answers for.
unsafe impl Format for Iq3S {
    const CHUNK_BYTES: usize = 110;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const BITS: u32 = 4;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: inside the caller's block.
        unsafe {
            let (d, nibbles) = (
                half_at(chunk),
                chunk.add(106).cast::<u32>().read_unaligned(),
            );
            for g in 0..8 {
                out.scale[g] = d * (2 * (nibbles >> (4 * g) & 15) + 1) as f32;
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: inside the caller's block.
        let (low, high, signs) = unsafe {
            let low = chunk.add(2 + 8 * group).cast::<u64>().read_unaligned();
            let high = usize::from(chunk.add(66 + group).read());
            (
                low,
                high,
                chunk.add(74 + 4 * group).cast::<u32>().read_unaligned(),
            )
        };
        let grid = eight(&IQ3_S_GRID, |i| {
            (low >> (8 * i)) as usize & 0xff | (high >> i & 1) << 8
        });
        negate_where(grid, spread_bits(signs))
    }
}

pub(crate) struct Iq1S;

// SAFETY: reads only inside the block that the caller answers for.
unsafe impl Format for Iq1S {
    const CHUNK_BYTES: usize = 50;
    const GROUP: usize = 32;
    const BITS: u32 = 2;
    const MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: inside the caller's block.
        unsafe {
            let d = half_at(chunk);
            for g in 0..8 {
                let word = u32::from(chunk.add(34 + 2 * g).cast::<u16>().read_unaligned());
                let scale = d * (2 * (word >> 12 & 7) + 1) as f32;
                let shift = if word >> 15 == 1 { -0.125 } else { 0.125 };
                out.scale[g] = scale;
                // The bytes are one more than the table's −1, 0, 1.
                out.min[g] = scale * (shift - 1.0);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: inside the caller's block.
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

// SAFETY: reads only inside the block that the caller answers for.
unsafe impl Format for Iq1M {
    const CHUNK_BYTES: usize = 56;
    const GROUP: usize = 16;
    const BITS: u32 = 5;
    const MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: inside the caller's block.
        let words = unsafe { chunk.add(48).cast::<[u16; 4]>().read_unaligned() };
        let d = words[0] >> 12 | words[1] >> 8 & 0xf0 | words[2] >> 4 & 0xf00 | words[3] & 0xf000;
        // SAFETY: the two bytes of `d`.
        let d = unsafe { half_at((&raw const d).cast()) } * 0.125;
        for g in 0..16 {
            let scale = d * f32::from(2 * (words[g / 4] >> (3 * (g % 4)) & 7) + 1);
            (out.scale[g], out.min[g]) = (scale, -9.0 * scale);
        }
    }

    /// Eight times the table's value, plus or minus one for the shift of an eighth, plus nine so
    /// that nothing is negative.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: inside the caller's block.
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
        // Bit 3 of each nibble says minus.
        let minus = _mm256_and_si256(
            _mm256_set1_epi64x(high as i64),
            _mm256_setr_epi64x(0x8, 0x80, 0x800, 0x8000),
        );
        let plus = _mm256_cmpeq_epi64(minus, _mm256_setzero_si256());
        let shift = _mm256_blendv_epi8(_mm256_set1_epi8(8), _mm256_set1_epi8(10), plus);
        // The mask drops what a shift of 16-bit lanes carries from one byte into the next, and the
        // sum wraps as two's complement does.
        let times_8 = _mm256_and_si256(_mm256_slli_epi16::<3>(grid), _mm256_set1_epi8(-8));
        _mm256_add_epi8(times_8, shift)
    }
}

/// The scales of IQ2_XS and IQ2_S: `d · (½ + scale) / 4`, two of 4 bits a byte.
///
/// # Safety
/// Needs F16C; `d` has two readable bytes and `nibbles` eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibble_scales(d: *const u8, nibbles: *const u8, out: &mut Scales) {
    // SAFETY: the caller's bytes.
    let (d, nibbles) = unsafe {
        (
            half_at(d) * 0.125,
            nibbles.cast::<[i32; 2]>().read_unaligned(),
        )
    };
    // Nibble g moved to the top of word g.
    let shifts = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    for (half, nibbles) in nibbles.into_iter().enumerate() {
        let words = _mm256_sllv_epi32(_mm256_set1_epi32(nibbles), shifts);
        // SAFETY: the array has 16 elements.
        unsafe { _mm256_storeu_ps(out.scale.as_mut_ptr().add(8 * half), odd_scales(words, d)) };
    }
}

/// `d · (2 · scale + 1)`, the scales being the upper four bits of eight words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn odd_scales(words: __m256i, d: f32) -> __m256 {
    let scales = _mm256_cvtepi32_ps(_mm256_srli_epi32::<28>(words));
    _mm256_fmadd_ps(scales, _mm256_set1_ps(2.0 * d), _mm256_set1_ps(d))
}

/// Four times 7 sign bits as bytes of 1 or −1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn packed_signs(bits: u32) -> __m256i {
    four(&EVEN_SIGNS, |i| (bits >> (7 * i)) as usize & 0x7f)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn negate_where(x: __m256i, mask: __m256i) -> __m256i {
    _mm256_sub_epi8(_mm256_xor_si256(x, mask), mask)
}

/// Four entries of a table, side by side; `N` is a power of two, and indices are taken modulo it.
///
/// In assembly, because where AVX-512 is there the compiler would otherwise make a gather of it, which
/// takes several times as long.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four<const N: usize>(table: &[u64; N], index: impl Fn(usize) -> usize) -> __m256i {
    const { assert!(N.is_power_of_two()) };
    let pair = |i: usize| {
        let out: __m128i;
        // SAFETY: reads two entries of the table.
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

/// Eight entries of a table, as [`four`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight<const N: usize>(table: &[u32; N], index: impl Fn(usize) -> usize) -> __m256i {
    const { assert!(N.is_power_of_two()) };
    let quad = |i: usize| {
        let out: __m128i;
        // SAFETY: reads four entries of the table.
        unsafe {
            asm!(
                "vmovd {out}, dword ptr [{table} + 4 * {a}]",
                "vpinsrd {out}, {out}, dword ptr [{table} + 4 * {b}], 1",
                "vpinsrd {out}, {out}, dword ptr [{table} + 4 * {c}], 2",
                "vpinsrd {out}, {out}, dword ptr [{table} + 4 * {d}], 3",
                table = in(reg) table,
                a = in(reg) index(i) & (N - 1),
                b = in(reg) index(i + 1) & (N - 1),
                c = in(reg) index(i + 2) & (N - 1),
                d = in(reg) index(i + 3) & (N - 1),
                out = out(xmm_reg) out,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        out
    };
    _mm256_set_m128i(quad(4), quad(0))
}
