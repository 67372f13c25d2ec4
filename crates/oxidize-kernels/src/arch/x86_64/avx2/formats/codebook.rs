//! The formats whose 4-bit codes index a codebook of 16 levels: IQ4_NL, IQ4_XS, MXFP4, NVFP4.

use std::arch::x86_64::*;

use super::super::format::{CHUNK, Format, Scales, half_at, halves_at, nibbles};
use crate::quant::iq4_nl::LEVELS;
use crate::quant::mxfp4::{E2M1_DOUBLED, MXFP4};
use crate::quant::nvfp4;

pub(crate) struct Iq4Nl;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside the first `groups` blocks, or block
// `group`, from `chunk` on.
unsafe impl Format for Iq4Nl {
    const CHUNK_BYTES: usize = CHUNK / 32 * 18;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const BITS: u32 = 7;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `groups` blocks of 18 bytes; eight of them are 144 bytes, of which
        // `halves_at` reads 128.
        unsafe {
            if groups == 8 {
                return out.set_scale8(halves_at::<18>(chunk));
            }
            for g in 0..groups {
                out.scale[g] = half_at(chunk.add(g * 18));
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` has block `group`, of 18 bytes, whose last 16 are read.
        levels(&LEVELS, unsafe { nibbles(chunk.add(18 * group + 2)) })
    }
}

pub(crate) struct Iq4Xs;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq4Xs {
    const CHUNK_BYTES: usize = 136;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const BITS: u32 = 7;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, which begin with the header.
        let (d, high, low) = unsafe {
            let high = chunk.add(2).cast::<u16>().read_unaligned();
            (
                half_at(chunk),
                i32::from(high),
                chunk.add(4).cast::<i32>().read_unaligned(),
            )
        };
        let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        let low = _mm256_srlv_epi32(_mm256_set1_epi32(low), shifts);
        let high = _mm256_srlv_epi32(_mm256_set1_epi32(high), _mm256_srli_epi32::<1>(shifts));
        let scale = _mm256_or_si256(
            _mm256_and_si256(low, _mm256_set1_epi32(0x0f)),
            _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3))),
        );
        let scale = _mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32)));
        out.set_scale8(_mm256_mul_ps(scale, _mm256_set1_ps(d)));
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        levels(&LEVELS, unsafe { nibbles(chunk.add(8 + 16 * group)) })
    }
}

pub(crate) struct Mxfp4;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside the first `groups` blocks, or block
// `group`, from `chunk` on.
unsafe impl Format for Mxfp4 {
    const CHUNK_BYTES: usize = CHUNK / 32 * 17;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const BITS: u32 = 4;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, groups: usize, out: &mut Scales) {
        for g in 0..groups {
            // SAFETY: `chunk` points to `groups` blocks; `MXFP4` is made of bytes, so that any address is
            // aligned.
            let block = unsafe { chunk.cast::<MXFP4>().add(g).read() };
            out.scale[g] = block.half_scale();
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` has block `group`, of 17 bytes, whose last 16 are read.
        levels(&E2M1_DOUBLED, unsafe { nibbles(chunk.add(17 * group + 1)) })
    }
}

pub(crate) struct Nvfp4;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside the first `groups` blocks, or block
// `group`, from `chunk` on.
unsafe impl Format for Nvfp4 {
    const CHUNK_BYTES: usize = CHUNK / 64 * 36;
    const GROUP: usize = 16;
    const SIGNED: bool = true;
    const BITS: u32 = 4;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, groups: usize, out: &mut Scales) {
        for g in 0..2 * groups {
            // SAFETY: groups of 32 come in blocks of two, 36 bytes each, which begin with four scales;
            // `chunk` points to as many blocks as `groups` reaches.
            let byte = unsafe { chunk.add(g / 4 * 36 + g % 4).read() };
            out.scale[g] = nvfp4::half_scale(byte);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` has block `group / 2`, of 36 bytes; 16 bytes from 4 or 20 on lie inside.
        let x = unsafe { nibbles(chunk.add(group / 2 * 36 + 4 + 16 * (group & 1))) };
        // Each 8 bytes are 16 weights: brings their low and high nibbles together.
        levels(&E2M1_DOUBLED, _mm256_permute4x64_epi64::<0b11_01_10_00>(x))
    }
}

/// Looks up 32 nibbles in a table of levels.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn levels(table: &[i8; 16], nibbles: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes; AVX2 is enabled here.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles)
}
