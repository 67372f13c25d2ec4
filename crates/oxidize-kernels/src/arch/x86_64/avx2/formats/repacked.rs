//! The repacked grid formats: IQ1_S to IQ3_S with a code for each weight.

use std::arch::x86_64::*;

use super::super::format::{Format, Scales, bytes32, half_at, low_and_high, transposed};
use super::grid::{odd, set_shifted};
use crate::quant::repacked::{IQ2_MAGNITUDES, IQ3_XXS_LEVELS};

pub(crate) struct Iq1SRepacked;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq1SRepacked {
    const CHUNK_BYTES: usize = 70;
    const GROUP: usize = 32;
    const BITS: u32 = 2;
    const MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, which begin with the header.
        let (d, nibbles) = unsafe { (half_at(chunk), nibbles8(chunk.add(2))) };
        // The top bit of a nibble is the sign of the shift.
        let scale = odd(_mm256_and_si256(nibbles, _mm256_set1_epi32(7)), d);
        set_shifted(scale, _mm256_slli_epi32::<28>(nibbles), out);
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        two_bit_codes(unsafe { bytes32(chunk.add(6 + 32 * (group % 2))) }, group)
    }

    #[inline(always)]
    unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
        for side in 0..2 {
            // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which
            // the offsets lie.
            let columns = unsafe { transposed(chunks, 6 + 32 * side) };
            for (step, x) in columns.into_iter().enumerate() {
                for group in (side..8).step_by(2) {
                    // SAFETY: the caller has AVX2; registers only.
                    put(group, step, unsafe { two_bit_codes(x, group) });
                }
            }
        }
    }
}

pub(crate) struct Iq1MRepacked;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Iq1MRepacked {
    const CHUNK_BYTES: usize = 78;
    const GROUP: usize = 16;
    const BITS: u32 = 5;
    const MIN: bool = true;
    const ZERO_POINT: u8 = 16;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, which begin with the header.
        unsafe { scales::<16>(chunk, 0.125, f32::from(Self::ZERO_POINT), out) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned. A bit of `up` for each eight weights; 64 bits include all 32 of them.
        let (codes, up) = unsafe {
            let up = chunk.add(10).cast::<i64>().read_unaligned();
            (bytes32(chunk.add(14 + 32 * (group % 2))), up)
        };
        let bits = [1, 2, 4, 8].map(|bit| bit << (4 * group));
        let bits = _mm256_setr_epi64x(bits[0], bits[1], bits[2], bits[3]);
        let up = _mm256_and_si256(_mm256_set1_epi64x(up), bits);
        iq1_m_levels(codes, _mm256_cmpeq_epi64(up, bits), group)
    }

    #[inline(always)]
    unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
        // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which the
        // offsets lie.
        unsafe {
            let [a, b, c, d, e, f, g, h] =
                chunks.map(|chunk| chunk.add(10).cast::<i32>().read_unaligned());
            let up = _mm256_setr_epi32(a, b, c, d, e, f, g, h);
            for side in 0..2 {
                let columns = transposed(chunks, 14 + 32 * side);
                for (step, x) in columns.into_iter().enumerate() {
                    for group in (side..8).step_by(2) {
                        let bit = _mm256_set1_epi32(1 << (4 * group + step / 2));
                        let up = _mm256_cmpeq_epi32(_mm256_and_si256(up, bit), bit);
                        put(group, step, iq1_m_levels(x, up, group));
                    }
                }
            }
        }
    }
}

/// IQ2 with `$groups` scales, in a block of `$bytes`.
macro_rules! iq2 {
    ($name:ident, $bytes:literal bytes, $groups:literal groups) => {
        pub(crate) struct $name;

        // SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk`
        // on.
        unsafe impl Format for $name {
            const CHUNK_BYTES: usize = $bytes;
            const GROUP: usize = 256 / $groups;
            const BITS: u32 = 7;
            const MIN: bool = true;
            const ZERO_POINT: u8 = REPACKED_OFFSET as u8;

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
                // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, which begin with the header.
                unsafe { scales::<$groups>(chunk, 0.125, f32::from(REPACKED_OFFSET), out) }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
                // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie;
                // loads are unaligned.
                let (signs, codes) = unsafe {
                    let signs = chunk.add($bytes - 96);
                    (bytes32(signs), bytes32(signs.add(32 + 32 * (group % 2))))
                };
                iq2_levels(codes, signs, group)
            }

            #[inline(always)]
            unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
                // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside
                // which the offsets lie.
                let signs = unsafe { transposed(chunks, $bytes - 96) };
                for side in 0..2 {
                    // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes,
                    // inside which the offsets lie.
                    let columns = unsafe { transposed(chunks, $bytes - 64 + 32 * side) };
                    for (step, (x, signs)) in columns.into_iter().zip(signs).enumerate() {
                        for group in (side..8).step_by(2) {
                            // SAFETY: the caller has AVX2; registers only.
                            put(group, step, unsafe { iq2_levels(x, signs, group) });
                        }
                    }
                }
            }
        }
    };
}

iq2!(Iq2XxsRepacked, 102 bytes, 8 groups);
iq2!(Iq2SRepacked, 106 bytes, 16 groups);

/// IQ3: a weight is `$unit · d · (2 · scale + 1) · (quant − $offset)`, where `$quants` maps nibbles to
/// quants.
macro_rules! iq3 {
    (
        $name:ident,
        bits $bits:literal, unit $unit:literal, offset $offset:expr, zero_point $zero_point:expr,
        quants $quants:expr
    ) => {
        pub(crate) struct $name;

        // SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk`
        // on.
        unsafe impl Format for $name {
            const CHUNK_BYTES: usize = 134;
            const GROUP: usize = 32;
            const BITS: u32 = $bits;
            const MIN: bool = true;
            const ZERO_POINT: u8 = $zero_point;

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
                // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, which begin with the header.
                unsafe { scales::<8>(chunk, $unit, $offset, out) }
            }

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
                // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie;
                // loads are unaligned.
                let x = unsafe { bytes32(chunk.add(6 + 64 * (group / 4) + 32 * (group % 2))) };
                let x = match group / 2 % 2 {
                    0 => x,
                    _ => _mm256_srli_epi16::<4>(x),
                };
                $quants(_mm256_and_si256(x, _mm256_set1_epi8(0x0f)))
            }

            #[inline(always)]
            unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
                for quarter in 0..4 {
                    // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes,
                    // inside which the offsets lie.
                    let columns = unsafe { transposed(chunks, 6 + 32 * quarter) };
                    let group = quarter / 2 * 4 + quarter % 2;
                    for (step, x) in columns.into_iter().enumerate() {
                        // SAFETY: the caller has AVX2; registers only.
                        let (low, high) = unsafe {
                            let (low, high) = low_and_high(x);
                            ($quants(low), $quants(high))
                        };
                        put(group, step, low);
                        put(group + 2, step, high);
                    }
                }
            }
        }
    };
}

iq3!(
    Iq3XxsRepacked,
    bits 7, unit 0.25, offset f32::from(REPACKED_OFFSET), zero_point REPACKED_OFFSET as u8,
    quants iq3_xxs_levels
);
// Levels are two apart.
iq3!(
    Iq3SRepacked,
    bits 4, unit 2.0, offset 7.5, zero_point 0,
    quants iq3_s_levels
);

/// Offset of the levels of IQ2 and IQ3_XXS, whose magnitudes are at most 43 and 62, so that no byte is
/// negative.
pub(crate) const REPACKED_OFFSET: i8 = 64;

/// Levels of IQ2 plus [`REPACKED_OFFSET`]: those of its magnitudes, then of the negated magnitudes, twice.
pub(crate) const IQ2_LEVELS: [i8; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        let magnitude = IQ2_MAGNITUDES[i % 4];
        table[i] = REPACKED_OFFSET + if i & 4 == 0 { magnitude } else { -magnitude };
        i += 1;
    }
    table
};

/// Levels of IQ3_XXS plus [`REPACKED_OFFSET`].
pub(crate) const IQ3_XXS_SHIFTED: [i8; 16] = {
    let mut table = IQ3_XXS_LEVELS;
    let mut i = 0;
    while i < 16 {
        table[i] += REPACKED_OFFSET;
        i += 1;
    }
    table
};

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq3_xxs_levels(nibbles: __m256i) -> __m256i {
    look_up(&IQ3_XXS_SHIFTED, nibbles)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq3_s_levels(nibbles: __m256i) -> __m256i {
    nibbles
}

/// Levels of IQ1_M plus 16, from the bytes that hold a group's codes and a mask of positive shifts. Eight
/// times a code is the weight without its shift plus 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq1_m_levels(codes: __m256i, up: __m256i, group: usize) -> __m256i {
    let eights = match group / 2 {
        0 => _mm256_slli_epi16::<3>(codes),
        1 => _mm256_slli_epi16::<1>(codes),
        2 => _mm256_srli_epi16::<1>(codes),
        _ => _mm256_srli_epi16::<3>(codes),
    };
    let eights = _mm256_and_si256(eights, _mm256_set1_epi8(0x18));
    let down = _mm256_or_si256(eights, _mm256_set1_epi8(7));
    _mm256_add_epi8(down, _mm256_and_si256(up, _mm256_set1_epi8(2)))
}

/// Levels of a group of 32 plus [`REPACKED_OFFSET`], from the bytes that hold its codes and all signs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq2_levels(codes: __m256i, signs: __m256i, group: usize) -> __m256i {
    // The sign goes to bit 2, above the code.
    let signs = match group / 2 + group % 2 * 4 {
        0 => _mm256_slli_epi16::<2>(signs),
        1 => _mm256_slli_epi16::<1>(signs),
        2 => signs,
        3 => _mm256_srli_epi16::<1>(signs),
        4 => _mm256_srli_epi16::<2>(signs),
        5 => _mm256_srli_epi16::<3>(signs),
        6 => _mm256_srli_epi16::<4>(signs),
        _ => _mm256_srli_epi16::<5>(signs),
    };
    let sign = _mm256_and_si256(signs, _mm256_set1_epi8(4));
    look_up(
        &IQ2_LEVELS,
        _mm256_or_si256(two_bit_codes(codes, group), sign),
    )
}

/// 2-bit codes of a group of 32, from the bytes that hold them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two_bit_codes(codes: __m256i, group: usize) -> __m256i {
    let x = match group / 2 {
        0 => codes,
        1 => _mm256_srli_epi16::<2>(codes),
        2 => _mm256_srli_epi16::<4>(codes),
        _ => _mm256_srli_epi16::<6>(codes),
    };
    _mm256_and_si256(x, _mm256_set1_epi8(3))
}

/// Looks up 32 indices below 16 in a table.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn look_up(table: &[i8; 16], indices: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes; AVX2 is enabled here.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices)
}

/// Unpacks `N` scales, `d · unit · (2 · nibble + 1)`, and `−offset` times them as minima. The block begins
/// with `d`, which the nibbles follow.
///
/// # Safety
/// Needs AVX2 and F16C; `block` has `2 + N / 2` readable bytes, and `N` is 8 or 16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scales<const N: usize>(block: *const u8, unit: f32, offset: f32, out: &mut Scales) {
    // SAFETY: AVX2 and F16C are enabled here. The caller has `2 + N / 2` bytes, of which half `h` reads four;
    // both arrays have 16 floats, of which eight from `8 · half` on are written.
    unsafe {
        let unit = half_at(block) * unit;
        for half in 0..N / 8 {
            let scale = odd(nibbles8(block.add(2 + 4 * half)), unit);
            let min = _mm256_mul_ps(scale, _mm256_set1_ps(-offset));
            _mm256_storeu_ps(out.scale.as_mut_ptr().add(8 * half), scale);
            _mm256_storeu_ps(out.min.as_mut_ptr().add(8 * half), min);
        }
    }
}

/// Eight nibbles, one per 32-bit lane.
///
/// # Safety
/// Needs AVX2, and four readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibbles8(p: *const u8) -> __m256i {
    // SAFETY: the caller has four readable bytes at `p`, which are read unaligned.
    let word = _mm256_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() });
    let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    _mm256_and_si256(_mm256_srlv_epi32(word, shifts), _mm256_set1_epi32(15))
}
