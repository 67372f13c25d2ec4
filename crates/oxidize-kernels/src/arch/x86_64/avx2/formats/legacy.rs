//! The formats with blocks of 32 and evenly spaced levels: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

use std::arch::x86_64::*;

use super::super::format::{
    CHUNK, Format, Scales, bytes32, half_at, halves_at, low_and_high, nibbles, spread_bits,
    transpose,
};

/// Source of the minimum of a block.
enum Min {
    /// The byte that stands for 0.
    Offset(u8),
    /// The half-precision number after the scale.
    Stored,
}

macro_rules! legacy {
    ($name:ident, bytes $bytes:literal, bits $bits:literal, signed $signed:literal,
     min $min:expr, quants |$p:ident| $quants:expr $(, columns $columns:expr)?) => {
        pub(crate) struct $name;

        // SAFETY: the methods need AVX2, FMA and F16C, and read only inside the first `groups` blocks, or
        // block `group`.
        unsafe impl Format for $name {
            const CHUNK_BYTES: usize = CHUNK / 32 * $bytes;
            const GROUP: usize = 32;
            const SIGNED: bool = $signed;
            const BITS: u32 = $bits;
            const MIN: bool = !$signed;
            const ZERO_POINT: u8 = match $min {
                Min::Offset(level) => level,
                Min::Stored => 0,
            };

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales(chunk: *const u8, groups: usize, out: &mut Scales) {
                // SAFETY: `chunk` points to `groups` blocks of `$bytes` bytes; `halves_at` ends at
                // `7 · ($bytes − 2) + 16`, or two bytes later, which is before the end of the eighth block.
                unsafe {
                    if groups == 8 {
                        let scale = halves_at::<$bytes>(chunk);
                        out.set_scale8(scale);
                        match $min {
                            Min::Offset(0) => {}
                            Min::Offset(offset) => {
                                let offset = _mm256_set1_ps(-(offset as f32));
                                out.set_min8(_mm256_mul_ps(scale, offset));
                            }
                            Min::Stored => out.set_min8(halves_at::<$bytes>(chunk.add(2))),
                        }
                        return;
                    }
                    for g in 0..groups {
                        let block = chunk.add(g * $bytes);
                        out.scale[g] = half_at(block);
                        out.min[g] = match $min {
                            Min::Offset(offset) => -(offset as f32) * out.scale[g],
                            Min::Stored => half_at(block.add(2)),
                        };
                    }
                }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
                // SAFETY: `chunk` has block `group`, of `$bytes` bytes, inside which `$quants` reads.
                unsafe {
                    let $p = chunk.add(group * $bytes);
                    $quants
                }
            }

            $(
                #[inline(always)]
                unsafe fn columns(
                    chunks: &[*const u8; 8],
                    put: impl FnMut(usize, usize, __m256i),
                ) {
                    // SAFETY: the caller has AVX2, and each chunk eight blocks of `$bytes` bytes.
                    unsafe { $columns(chunks, put) }
                }
            )?
        }
    };
}

legacy!(Q4_0, bytes 18, bits 4, signed false,
    min Min::Offset(8),
    quants |p| nibbles(p.add(2)),
    columns nibble_columns::<18, 2>);

legacy!(Q4_1, bytes 20, bits 4, signed false,
    min Min::Stored,
    quants |p| nibbles(p.add(4)),
    columns nibble_columns::<20, 4>);

legacy!(Q5_0, bytes 22, bits 5, signed false,
    min Min::Offset(16),
    quants |p| with_fifth_bits(p.add(2), nibbles(p.add(6))));

legacy!(Q5_1, bytes 24, bits 5, signed false,
    min Min::Stored,
    quants |p| with_fifth_bits(p.add(4), nibbles(p.add(8))));

legacy!(Q8_0, bytes 34, bits 8, signed true,
    min Min::Offset(0),
    quants |p| bytes32(p.add(2)));

/// See [`Format::columns`], for 16 bytes of nibbles at `OFFSET` of each block.
///
/// # Safety
/// Needs AVX2, and whole chunks of blocks of `BYTES`, which is at least `OFFSET + 16`.
#[inline(always)]
unsafe fn nibble_columns<const BYTES: usize, const OFFSET: usize>(
    chunks: &[*const u8; 8],
    mut put: impl FnMut(usize, usize, __m256i),
) {
    for pair in 0..4 {
        // SAFETY: the caller has AVX2, and each chunk eight blocks of `BYTES`, in which 16 bytes follow
        // `OFFSET`.
        unsafe {
            let rows = chunks.map(|chunk| {
                let at = |group: usize| _mm_loadu_si128(chunk.add(group * BYTES + OFFSET).cast());
                _mm256_set_m128i(at(2 * pair + 1), at(2 * pair))
            });
            for (column, x) in transpose(rows).into_iter().enumerate() {
                // Four columns per block: the low nibbles are its first half, the high ones its second.
                let (group, step) = (2 * pair + column / 4, column % 4);
                let (low, high) = low_and_high(x);
                put(group, step, low);
                put(group, step + 4, high);
            }
        }
    }
}

/// Adds the fifth bits, four bytes of them, to 32 nibbles.
///
/// # Safety
/// Needs AVX2, and four readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_fifth_bits(p: *const u8, nibbles: __m256i) -> __m256i {
    // SAFETY: the caller has four readable bytes at `p`, which are read unaligned.
    let bits = unsafe { p.cast::<u32>().read_unaligned() };
    let fifth = _mm256_and_si256(spread_bits(bits), _mm256_set1_epi8(0x10));
    _mm256_or_si256(nibbles, fifth)
}
