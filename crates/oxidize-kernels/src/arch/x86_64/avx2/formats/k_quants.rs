//! The K-quants: blocks of 256 with quantized scales.

use std::arch::x86_64::*;

use super::super::format::{
    Format, Scales, bytes32, half_at, halves_of, low_and_high, transposed, transposed16,
};

pub(crate) struct Q4K;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Q4K {
    const CHUNK_BYTES: usize = 144;
    const GROUP: usize = 32;
    const BITS: u32 = 4;
    const MIN: bool = true;
    const NIBBLES: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, which begin with the header.
        unsafe { scales_and_mins(chunk, out) }
    }

    #[inline(always)]
    unsafe fn scale_columns(
        chunks: &[*const u8; 8],
        _rows: &mut [Scales; 8],
        put: impl FnMut(usize, __m256, __m256),
    ) {
        // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, which begin with
        // the header.
        unsafe { scale_and_min_columns(chunks, put) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe { nibble_half(chunk.add(16), group) }
    }

    #[inline(always)]
    unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
        // SAFETY: the caller has AVX2, and each of the eight is a whole chunk.
        unsafe {
            Self::nibble_columns(chunks, |pair, step, x| {
                let (low, high) = low_and_high(x);
                put(2 * pair, step, low);
                put(2 * pair + 1, step, high);
            });
        }
    }

    #[inline(always)]
    unsafe fn nibble_columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
        for pair in 0..4 {
            // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which
            // the offsets lie.
            let columns = unsafe { transposed(chunks, 16 + 32 * pair) };
            for (step, x) in columns.into_iter().enumerate() {
                put(pair, step, x);
            }
        }
    }
}

pub(crate) struct Q5K;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Q5K {
    const CHUNK_BYTES: usize = 176;
    const GROUP: usize = 32;
    const BITS: u32 = 5;
    const MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, which begin with the header.
        unsafe { scales_and_mins(chunk, out) }
    }

    #[inline(always)]
    unsafe fn scale_columns(
        chunks: &[*const u8; 8],
        _rows: &mut [Scales; 8],
        put: impl FnMut(usize, __m256, __m256),
    ) {
        // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, which begin with
        // the header.
        unsafe { scale_and_min_columns(chunks, put) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let (low, high) = unsafe { (nibble_half(chunk.add(48), group), bytes32(chunk.add(16))) };
        with_bit::<0x10>(low, high, group)
    }

    #[inline(always)]
    unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
        // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which the
        // offsets lie.
        unsafe {
            let highs = transposed(chunks, 16);
            for pair in 0..4 {
                let columns = transposed(chunks, 48 + 32 * pair);
                for (step, (x, high)) in columns.into_iter().zip(highs).enumerate() {
                    let (a, b) = low_and_high(x);
                    put(2 * pair, step, with_bit::<0x10>(a, high, 2 * pair));
                    put(2 * pair + 1, step, with_bit::<0x10>(b, high, 2 * pair + 1));
                }
            }
        }
    }
}

pub(crate) struct Q6K;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Q6K {
    const CHUNK_BYTES: usize = 210;
    const GROUP: usize = 16;
    const BITS: u32 = 6;
    const MIN: bool = true;
    const ZERO_POINT: u8 = 32;
    const SUPER_SCALE_OFFSET: Option<usize> = Some(208);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe {
            let scales = _mm_loadu_si128(chunk.add(192).cast());
            signed_scales(scales, half_at(chunk.add(208)), -32.0, out);
        }
    }

    #[inline(always)]
    unsafe fn scale_columns(
        chunks: &[*const u8; 8],
        _rows: &mut [Scales; 8],
        put: impl FnMut(usize, __m256, __m256),
    ) {
        // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which the
        // offsets lie.
        unsafe {
            let d = halves_of(chunks, 208);
            signed_scale_columns(transposed16(chunks, 192), d, -32.0, put);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        let (half, quarter) = (group / 4, group % 4);
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let (low, high) = unsafe {
            let low = bytes32(chunk.add(64 * half + 32 * (quarter & 1)));
            (low, bytes32(chunk.add(128 + 32 * half)))
        };
        let low = if quarter < 2 {
            low
        } else {
            _mm256_srli_epi16::<4>(low)
        };
        let high = match quarter {
            0 => _mm256_slli_epi16::<4>(high),
            1 => _mm256_slli_epi16::<2>(high),
            2 => high,
            _ => _mm256_srli_epi16::<2>(high),
        };
        _mm256_or_si256(
            _mm256_and_si256(low, _mm256_set1_epi8(0x0f)),
            _mm256_and_si256(high, _mm256_set1_epi8(0x30)),
        )
    }

    #[inline(always)]
    unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
        for half in 0..2 {
            // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which
            // the offsets lie.
            unsafe {
                let first = transposed(chunks, 64 * half);
                let second = transposed(chunks, 64 * half + 32);
                let high = transposed(chunks, 128 + 32 * half);
                for (step, high) in high.into_iter().enumerate() {
                    let ((a, c), (b, d)) = (low_and_high(first[step]), low_and_high(second[step]));
                    let upper = [
                        _mm256_slli_epi16::<4>(high),
                        _mm256_slli_epi16::<2>(high),
                        high,
                        _mm256_srli_epi16::<2>(high),
                    ];
                    for (quarter, (low, high)) in [a, b, c, d].into_iter().zip(upper).enumerate() {
                        let high = _mm256_and_si256(high, _mm256_set1_epi8(0x30));
                        put(4 * half + quarter, step, _mm256_or_si256(low, high));
                    }
                }
            }
        }
    }
}

pub(crate) struct Q2K;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Q2K {
    const CHUNK_BYTES: usize = 84;
    const GROUP: usize = 16;
    const BITS: u32 = 2;
    const MIN: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe {
            let both = _mm_loadu_si128(chunk.cast());
            let mask = _mm_set1_epi8(0x0f);
            let d = half_at(chunk.add(80));
            let dmin = half_at(chunk.add(82));
            store16(_mm_and_si128(both, mask), d, &mut out.scale);
            store16(
                _mm_and_si128(_mm_srli_epi16::<4>(both), mask),
                -dmin,
                &mut out.min,
            );
        }
    }

    #[inline(always)]
    unsafe fn scale_columns(
        chunks: &[*const u8; 8],
        _rows: &mut [Scales; 8],
        mut put: impl FnMut(usize, __m256, __m256),
    ) {
        // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which the
        // offsets lie.
        unsafe {
            let d = halves_of(chunks, 80);
            let dmin = _mm256_sub_ps(_mm256_set1_ps(-0.0), halves_of(chunks, 82));
            for (quarter, bytes) in transposed16(chunks, 0).into_iter().enumerate() {
                for i in 0..4 {
                    let nibble = |shift: i32| {
                        let x = _mm256_srl_epi32(bytes, _mm_cvtsi32_si128(shift));
                        _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0x0f)))
                    };
                    let scale = _mm256_mul_ps(nibble(8 * i), d);
                    let min = _mm256_mul_ps(nibble(8 * i + 4), dmin);
                    put(4 * quarter + i as usize, scale, min);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        unsafe { bit_pairs(chunk.add(16), group) }
    }

    #[inline(always)]
    unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
        for half in 0..2 {
            // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which
            // the offsets lie.
            let columns = unsafe { transposed(chunks, 16 + 32 * half) };
            for (step, x) in columns.into_iter().enumerate() {
                for quarter in 0..4 {
                    // SAFETY: the caller has AVX2; registers only.
                    put(4 * half + quarter, step, unsafe { pairs_of(x, quarter) });
                }
            }
        }
    }
}

pub(crate) struct Q3K;

// SAFETY: the methods need AVX2, FMA and F16C, and read only inside `CHUNK_BYTES` bytes from `chunk` on.
unsafe impl Format for Q3K {
    const CHUNK_BYTES: usize = 110;
    const GROUP: usize = 16;
    const BITS: u32 = 3;
    const MIN: bool = true;
    const ZERO_POINT: u8 = 4;
    const SUPER_SCALE_OFFSET: Option<usize> = Some(108);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scales(chunk: *const u8, _groups: usize, out: &mut Scales) {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let ([a, b, high], d) = unsafe {
            (
                chunk.add(96).cast::<[u32; 3]>().read_unaligned(),
                half_at(chunk.add(108)),
            )
        };
        // Scale i has its low nibble in byte i % 8 of the first eight bytes, low nibble first, and
        // its upper two bits in byte i % 4 of the last four, at bit 2 · (i / 4).
        let (low, two) = (0x0f0f_0f0f, 0x0303_0303);
        let word =
            |nibbles: u32, quarter: u32| (nibbles & low) | (((high >> (2 * quarter)) & two) << 4);
        let scales = _mm_setr_epi32(
            word(a, 0) as i32,
            word(b, 1) as i32,
            word(a >> 4, 2) as i32,
            word(b >> 4, 3) as i32,
        );
        signed_scales(_mm_sub_epi8(scales, _mm_set1_epi8(32)), d, -4.0, out);
    }

    #[inline(always)]
    unsafe fn scale_columns(
        chunks: &[*const u8; 8],
        _rows: &mut [Scales; 8],
        put: impl FnMut(usize, __m256, __m256),
    ) {
        // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which the
        // offsets lie.
        unsafe {
            let d = halves_of(chunks, 108);
            // The integers `a`, `b` and `high` of `scales`, after four bytes of weights.
            let [_, a, b, high] = transposed16(chunks, 92);
            let [low, two, middle] =
                [0x0f0f_0f0f, 0x0303_0303, 0x2020_2020].map(|x| _mm256_set1_epi32(x));
            let word = |nibbles: __m256i, quarter: i32| {
                let high = _mm256_srl_epi32(high, _mm_cvtsi32_si128(2 * quarter));
                let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, two));
                _mm256_sub_epi8(
                    _mm256_or_si256(_mm256_and_si256(nibbles, low), high),
                    middle,
                )
            };
            let upper = |x: __m256i| _mm256_srli_epi32::<4>(x);
            let words = [word(a, 0), word(b, 1), word(upper(a), 2), word(upper(b), 3)];
            signed_scale_columns(words, d, -4.0, put);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i {
        // SAFETY: `chunk` points to `CHUNK_BYTES` readable bytes, inside which the offsets read lie; loads
        // are unaligned.
        let (low, high) = unsafe { (bit_pairs(chunk.add(32), group), bytes32(chunk)) };
        with_bit::<4>(low, high, group)
    }

    #[inline(always)]
    unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
        // SAFETY: the caller has AVX2 and F16C, and each chunk `CHUNK_BYTES` readable bytes, inside which the
        // offsets lie.
        unsafe {
            let highs = transposed(chunks, 0);
            for half in 0..2 {
                let columns = transposed(chunks, 32 + 32 * half);
                for (step, (x, high)) in columns.into_iter().zip(highs).enumerate() {
                    for quarter in 0..4 {
                        let group = 4 * half + quarter;
                        put(
                            group,
                            step,
                            with_bit::<4>(pairs_of(x, quarter), high, group),
                        );
                    }
                }
            }
        }
    }
}

/// Unpacks the scales and minima of Q4_K and Q5_K: eight of 6 bits each, in 12 bytes.
///
/// # Safety
/// Needs AVX2 and F16C, and the 16 bytes of a block's header.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scales_and_mins(block: *const u8, out: &mut Scales) {
    // SAFETY: the caller has the 16 bytes of the header, which are read unaligned.
    let (d, dmin, [a, b, c]) = unsafe {
        let words = block.add(4).cast::<[u32; 3]>().read_unaligned();
        (half_at(block), half_at(block.add(2)), words)
    };
    // The first four scales are the low six bits of `a`, the first four minima those of `b`; the
    // others have four bits in `c` and their upper two in the top of `a` and `b`.
    let (six, four, top) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x3030_3030);
    let scales = u64::from(a & six) | u64::from((c & four) | ((a >> 2) & top)) << 32;
    let mins = u64::from(b & six) | u64::from(((c >> 4) & four) | ((b >> 2) & top)) << 32;
    let widen =
        |bytes: u64| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)));
    out.set_scale8(_mm256_mul_ps(widen(scales), _mm256_set1_ps(d)));
    out.set_min8(_mm256_mul_ps(widen(mins), _mm256_set1_ps(-dmin)));
}

/// See [`Format::scale_columns`], for Q4_K and Q5_K, with `a`, `b` and `c` as in [`scales_and_mins`].
///
/// # Safety
/// Needs AVX2 and F16C, and the 16 bytes of each block's header.
#[inline(always)]
unsafe fn scale_and_min_columns(
    blocks: &[*const u8; 8],
    mut put: impl FnMut(usize, __m256, __m256),
) {
    // SAFETY: the caller has AVX2 and F16C, and the 16 bytes of each block's header.
    unsafe {
        let [d, a, b, c] = transposed16(blocks, 0);
        // Scales of eight blocks first, then minima.
        let d = _mm256_packus_epi32(
            _mm256_and_si256(d, _mm256_set1_epi32(0xffff)),
            _mm256_srli_epi32::<16>(d),
        );
        let d = _mm256_permute4x64_epi64::<0b11_01_10_00>(d);
        let dmin = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(d));
        let dmin = _mm256_sub_ps(_mm256_set1_ps(-0.0), dmin);
        let d = _mm256_cvtph_ps(_mm256_castsi256_si128(d));
        let [six, four, top] =
            [0x3f3f_3f3f, 0x0f0f_0f0f, 0x3030_3030].map(|x| _mm256_set1_epi32(x));
        let upper = |x: __m256i| _mm256_and_si256(_mm256_srli_epi32::<2>(x), top);
        let scales = [
            _mm256_and_si256(a, six),
            _mm256_or_si256(_mm256_and_si256(c, four), upper(a)),
        ];
        let mins = [
            _mm256_and_si256(b, six),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32::<4>(c), four), upper(b)),
        ];
        for (half, (scales, mins)) in scales.into_iter().zip(mins).enumerate() {
            for i in 0..4 {
                let byte = |x: __m256i| {
                    let x = _mm256_srl_epi32(x, _mm_cvtsi32_si128(8 * i));
                    _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xff)))
                };
                let (scale, min) = (
                    _mm256_mul_ps(byte(scales), d),
                    _mm256_mul_ps(byte(mins), dmin),
                );
                put(4 * half + i as usize, scale, min);
            }
        }
    }
}

/// Sets the scales to sixteen signed bytes times `d`, and the minima to the scales times `offset`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed_scales(scales: __m128i, d: f32, offset: f32, out: &mut Scales) {
    let (d, offset) = (_mm256_set1_ps(d), _mm256_set1_ps(offset));
    for (i, bytes) in [scales, _mm_srli_si128::<8>(scales)]
        .into_iter()
        .enumerate()
    {
        let scale = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), d);
        // SAFETY: both arrays have 16 floats, of which eight from `8 · i` on are written; AVX2 is enabled
        // here.
        unsafe {
            _mm256_storeu_ps(out.scale.as_mut_ptr().add(8 * i), scale);
            _mm256_storeu_ps(
                out.min.as_mut_ptr().add(8 * i),
                _mm256_mul_ps(scale, offset),
            );
        }
    }
}

/// [`signed_scales`] of eight blocks, whose scales are transposed: calls `put` with each group's.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn signed_scale_columns(
    words: [__m256i; 4],
    d: __m256,
    offset: f32,
    mut put: impl FnMut(usize, __m256, __m256),
) {
    for (quarter, bytes) in words.into_iter().enumerate() {
        for i in 0..4 {
            // SAFETY: the caller has AVX2; registers only.
            unsafe {
                // Shifts the byte to the top, and down again with its sign.
                let scale = _mm256_sll_epi32(bytes, _mm_cvtsi32_si128(24 - 8 * i));
                let scale = _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(scale));
                let scale = _mm256_mul_ps(scale, d);
                let min = _mm256_mul_ps(scale, _mm256_set1_ps(offset));
                put(4 * quarter + i as usize, scale, min);
            }
        }
    }
}

/// Sixteen unsigned bytes times `d`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store16(bytes: __m128i, d: f32, out: &mut [f32; 16]) {
    let d = _mm256_set1_ps(d);
    for (i, bytes) in [bytes, _mm_srli_si128::<8>(bytes)].into_iter().enumerate() {
        let scale = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), d);
        // SAFETY: the array has 16 floats, of which eight from `8 · i` on are written; AVX2 is enabled here.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(8 * i), scale) };
    }
}

/// Unpacks group `group`, below 8, of bytes that hold two groups per 32, low nibbles first.
///
/// # Safety
/// Needs AVX2, and 128 readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nibble_half(qs: *const u8, group: usize) -> __m256i {
    // SAFETY: `group` is below 8, so that 32 bytes from `32 · (group / 2)` on end at 128 at most.
    let x = unsafe { bytes32(qs.add(32 * (group / 2))) };
    let x = if group & 1 == 0 {
        x
    } else {
        _mm256_srli_epi16::<4>(x)
    };
    _mm256_and_si256(x, _mm256_set1_epi8(0x0f))
}

/// Unpacks group `group`, below 8, of bytes that hold four groups per 32, two bits each.
///
/// # Safety
/// Needs AVX2, and 64 readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn bit_pairs(qs: *const u8, group: usize) -> __m256i {
    // SAFETY: `group` is below 8, so that 32 bytes from `32 · (group / 4)` on end at 64 at most.
    pairs_of(unsafe { bytes32(qs.add(32 * (group / 4))) }, group % 4)
}

/// Bits `2 · quarter` and `2 · quarter + 1` of each byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pairs_of(x: __m256i, quarter: usize) -> __m256i {
    let x = match quarter {
        0 => x,
        1 => _mm256_srli_epi16::<2>(x),
        2 => _mm256_srli_epi16::<4>(x),
        _ => _mm256_srli_epi16::<6>(x),
    };
    _mm256_and_si256(x, _mm256_set1_epi8(3))
}

/// `low`, with `BIT` added where bit `group` of `high` is set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_bit<const BIT: i8>(low: __m256i, high: __m256i, group: usize) -> __m256i {
    let bit = _mm256_set1_epi8((1u8 << group) as i8);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
    _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(BIT)))
}
