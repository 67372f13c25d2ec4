//! The formats whose 4 bits choose among 16 levels: IQ4_NL, IQ4_XS, MXFP4, NVFP4.

use std::arch::x86_64::*;

use super::super::format::{CHUNK, Format, Scales, half_at, halves_at, nibbles};
use crate::quant::iq4_nl::LEVELS;
use crate::quant::mxfp4::{E2M1_DOUBLED, MXFP4};
use crate::quant::nvfp4;

pub(crate) struct Iq4Nl;

// SAFETY: reads only inside the blocks that the caller answers for.
unsafe impl Format for Iq4Nl {
    const CHUNK_BYTES: usize = CHUNK / 32 * 18;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const BITS: u32 = 7;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, groups: usize, out: &mut Scales) {
        // SAFETY: the caller's blocks.
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
        // SAFETY: one of the caller's blocks.
        levels(&LEVELS, unsafe { nibbles(chunk.add(18 * group + 2)) })
    }
}

pub(crate) struct Iq4Xs;

// SAFETY: reads only inside the block that the caller answers for.
unsafe impl Format for Iq4Xs {
    const CHUNK_BYTES: usize = 136;
    const GROUP: usize = 32;
    const SIGNED: bool = true;
    const BITS: u32 = 7;
    const MIN: bool = false;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: the header of the caller's block.
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
        // SAFETY: inside the caller's block.
        levels(&LEVELS, unsafe { nibbles(chunk.add(8 + 16 * group)) })
    }
}

pub(crate) struct Mxfp4;

// SAFETY: reads only inside the blocks that the caller answers for.
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
            // SAFETY: one of the caller's blocks.
            let block = unsafe { chunk.cast::<MXFP4>().add(g).read() };
            out.scale[g] = block.half_scale();
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: one of the caller's blocks.
        levels(&E2M1_DOUBLED, unsafe { nibbles(chunk.add(17 * group + 1)) })
    }
}

pub(crate) struct Nvfp4;

// SAFETY: reads only inside the blocks that the caller answers for.
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
            // SAFETY: one of the caller's blocks: four scales, then 32 bytes of weights.
            let byte = unsafe { chunk.add(g / 4 * 36 + g % 4).read() };
            out.scale[g] = nvfp4::half_scale(byte);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: one of the caller's blocks.
        let x = unsafe { nibbles(chunk.add(group / 2 * 36 + 4 + 16 * (group & 1))) };
        // Each 8 bytes are 16 weights: bring their low and high nibbles together.
        levels(&E2M1_DOUBLED, _mm256_permute4x64_epi64::<0b11_01_10_00>(x))
    }
}

/// The levels that 32 nibbles choose.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn levels(table: &[i8; 16], nibbles: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles)
}
