//! [`Format`]: a quantized format as the integer kernels see it.
//!
//! A format defines how 32 weights become 32 bytes in a register and what their scales are. The dot product
//! (`dot.rs`), the panels (`panel.rs`) and so every batch size are built on that.

use std::arch::asm;
use std::arch::x86_64::*;

/// Elements whose scales a format unpacks together.
pub(crate) const CHUNK: usize = 256;

/// Scales of a chunk: `w = scale · q + min` for each group of [`Format::GROUP`].
#[repr(C, align(64))]
pub(crate) struct Scales {
    pub(crate) scale: [f32; 16],
    pub(crate) min: [f32; 16],
    /// For formats with [`Format::SIGNS`], 32 sign bits each: 1 for a negative element.
    pub(crate) signs: [u32; 8],
}

impl Scales {
    pub(crate) const ZERO: Scales = Scales {
        scale: [0.0; 16],
        min: [0.0; 16],
        signs: [0; 8],
    };
}

/// A quantized format whose weights unpack into bytes.
///
/// # Safety
/// The methods need AVX2, FMA and F16C, and `chunk` must point to 256 elements of the format, or, for formats
/// with shorter blocks, to as many blocks as `groups` or `group` reaches.
pub(crate) unsafe trait Format: Sized {
    /// Bytes of [`CHUNK`] elements.
    const CHUNK_BYTES: usize;
    /// Elements that share a scale: 16 or 32.
    const GROUP: usize;
    /// True if the bytes are signed.
    const SIGNED: bool = false;
    /// True if [`Format::quants`] returns magnitudes, whose signs are in [`Scales::signs`]; `SIGNED` is true
    /// then.
    const SIGNS: bool = false;
    /// Bits of the largest magnitude of a byte.
    const BITS: u32;
    /// True if `min` is ever other than 0.
    const MIN: bool;
    /// The byte that stands for 0, a power of two, if `min` is always `−ZERO_POINT · scale`; else 0.
    const ZERO_POINT: u8 = 0;
    /// True if every weight is a scale times an integer.
    const SYMMETRIC: bool = Self::SIGNED || Self::ZERO_POINT != 0;

    /// Offset in a chunk of its super-block scale, a half-precision number of which all scales are multiples
    /// by an 8-bit integer. Only for formats with groups of 16 and a `ZERO_POINT`.
    const SUPER_SCALE_OFFSET: Option<usize> = None;

    /// True if 32 bytes hold two neighboring groups of 32, one in their low and one in their high nibbles:
    /// see [`Format::nibble_columns`]. Rows are whole chunks then.
    const NIBBLES: bool = false;

    /// Unpacks the scales and signs of the first `groups` × 32 elements; the others are left as they are.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn scales(chunk: *const u8, groups: usize, out: &mut Scales);

    /// Elements `32 · group` to `32 · group + 31`, one per byte, in order.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn quants(chunk: *const u8, group: usize) -> __m256i;

    /// Scales of eight chunks, transposed: calls `put(group, scale, min)` with those of a group of the first
    /// chunk, of the second, …. `rows` is working memory.
    ///
    /// Formats whose scales are packed transpose them before they unpack them.
    ///
    /// # Safety
    /// See the trait; all eight are whole chunks.
    #[inline(always)]
    unsafe fn scale_columns(
        chunks: &[*const u8; 8],
        rows: &mut [Scales; 8],
        put: impl FnMut(usize, __m256, __m256),
    ) {
        for (&chunk, row) in chunks.iter().zip(rows.iter_mut()) {
            // SAFETY: the caller has AVX2, FMA and F16C, and `chunk` is a whole chunk.
            unsafe { Self::scales(chunk, 8, row) };
        }
        // SAFETY: the caller has AVX2, and `rows` are eight whole `Scales`, aligned to 64 bytes.
        unsafe { transpose_scales::<Self>(rows, put) };
    }

    /// Quants of eight chunks, transposed: calls `put(group, step, x)` with the four elements from `32 ·
    /// group + 4 · step` on of the first chunk, of the second, ….
    ///
    /// Formats that pack several elements into a byte transpose the bytes before they unpack them.
    ///
    /// # Safety
    /// See the trait; all eight are whole chunks. Only for formats without [`Format::SIGNS`].
    #[inline(always)]
    unsafe fn columns(chunks: &[*const u8; 8], mut put: impl FnMut(usize, usize, __m256i)) {
        for group in 0..8 {
            // SAFETY: the caller has AVX2, FMA and F16C, and each is a whole chunk of eight groups.
            let rows = chunks.map(|chunk| unsafe { Self::quants(chunk, group) });
            // SAFETY: the caller has AVX2.
            for (step, x) in unsafe { transpose(rows) }.into_iter().enumerate() {
                put(group, step, x);
            }
        }
    }

    /// [`Format::columns`] for two groups at a time, for [`Format::NIBBLES`] formats: calls `put(pair, step,
    /// x)` with the elements of group `2 · pair` in the low nibbles and of the following group in the high
    /// ones.
    ///
    /// # Safety
    /// As [`Format::columns`].
    #[inline(always)]
    unsafe fn nibble_columns(_chunks: &[*const u8; 8], _put: impl FnMut(usize, usize, __m256i)) {
        unreachable!("the format has no pairs of groups")
    }
}

/// Half-precision numbers at the same offset of eight chunks, as floats.
///
/// # Safety
/// Needs AVX and F16C; each chunk has two bytes from `at` on.
#[inline(always)]
pub(crate) unsafe fn halves_of(chunks: &[*const u8; 8], at: usize) -> __m256 {
    // SAFETY: the caller has AVX and F16C, and two readable bytes at each address, of any alignment.
    unsafe {
        let [a, b, c, d, e, f, g, h] =
            chunks.map(|chunk| chunk.add(at).cast::<i16>().read_unaligned());
        _mm256_cvtph_ps(_mm_setr_epi16(a, b, c, d, e, f, g, h))
    }
}

/// Calls `put(group, scale, min)` with the scales and minima of eight rows for each group.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(crate) unsafe fn transpose_scales<F: Format>(
    rows: &[Scales; 8],
    mut put: impl FnMut(usize, __m256, __m256),
) {
    for first in (0..CHUNK / F::GROUP).step_by(8) {
        // SAFETY: the caller has AVX2. `first` is 0 or 8, so that eight of the 16 numbers follow, aligned to
        // 32 bytes.
        unsafe {
            let transposed = |numbers: fn(&Scales) -> &[f32; 16]| {
                transpose(std::array::from_fn(|r| {
                    _mm256_load_si256(numbers(&rows[r]).as_ptr().add(first).cast())
                }))
            };
            let scales = transposed(|row| &row.scale);
            let mins = match F::MIN {
                true => transposed(|row| &row.min),
                false => [_mm256_setzero_si256(); 8],
            };
            for i in 0..8 {
                let (scale, min) = (scales[i], mins[i]);
                put(
                    first + i,
                    _mm256_castsi256_ps(scale),
                    _mm256_castsi256_ps(min),
                );
            }
        }
    }
}

/// 16 bytes of each of eight blocks, from `at` on, transposed as 32-bit integers.
///
/// # Safety
/// Needs AVX2; each block has 16 bytes from `at` on.
#[inline(always)]
pub(crate) unsafe fn transposed16(blocks: &[*const u8; 8], at: usize) -> [__m256i; 4] {
    // SAFETY: the caller has AVX2, and 16 readable bytes from `at` on in each block; unaligned loads.
    unsafe {
        // Halves combined from memory need no permutation across the halves of registers.
        let rows: [__m256i; 4] = std::array::from_fn(|i| {
            let half = |block: *const u8| _mm_loadu_si128(block.add(at).cast());
            _mm256_set_m128i(half(blocks[i + 4]), half(blocks[i]))
        });
        let pairs = |i: usize| {
            let (a, b) = (rows[i], rows[i + 1]);
            (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
        };
        let ((a, b), (c, d)) = (pairs(0), pairs(2));
        [
            _mm256_unpacklo_epi64(a, c),
            _mm256_unpackhi_epi64(a, c),
            _mm256_unpacklo_epi64(b, d),
            _mm256_unpackhi_epi64(b, d),
        ]
    }
}

/// 32 bytes of each of eight blocks, from `at` on, transposed as 32-bit integers.
///
/// # Safety
/// Needs AVX2; each block has 32 bytes from `at` on.
#[inline(always)]
pub(crate) unsafe fn transposed(blocks: &[*const u8; 8], at: usize) -> [__m256i; 8] {
    // SAFETY: the caller has AVX2, and 32 readable bytes from `at` on in each block.
    let ([a, b, c, d], [e, f, g, h]) =
        unsafe { (transposed16(blocks, at), transposed16(blocks, at + 16)) };
    [a, b, c, d, e, f, g, h]
}

/// Transposes 8 × 8 32-bit integers.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(crate) unsafe fn transpose(x: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the caller has AVX2; the instructions work on registers only.
    unsafe {
        let pairs = |i: usize| {
            let (a, b) = (x[2 * i], x[2 * i + 1]);
            (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
        };
        let quads = |i: usize| {
            let ((a, b), (c, d)) = (pairs(2 * i), pairs(2 * i + 1));
            [
                _mm256_unpacklo_epi64(a, c),
                _mm256_unpackhi_epi64(a, c),
                _mm256_unpacklo_epi64(b, d),
                _mm256_unpackhi_epi64(b, d),
            ]
        };
        let (low, high) = (quads(0), quads(1));
        std::array::from_fn(|i| {
            if i < 4 {
                _mm256_permute2x128_si256::<0x20>(low[i], high[i])
            } else {
                _mm256_permute2x128_si256::<0x31>(low[i - 4], high[i - 4])
            }
        })
    }
}

/// A half-precision number at any address.
///
/// # Safety
/// Needs F16C, and two readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn half_at(p: *const u8) -> f32 {
    let bits: __m128i;
    // Broadcast, because the instruction that the compiler would choose inserts the number into a register
    // and so depends on the register's previous contents.
    // SAFETY: the caller has two readable bytes at `p`; AVX2 is enabled here.
    unsafe {
        asm!("vpbroadcastw {}, word ptr [{}]", out(xmm_reg) bits, in(reg) p,
            options(pure, readonly, nostack, preserves_flags));
    }
    _mm_cvtss_f32(_mm_cvtph_ps(bits))
}

/// Distance in bytes at which a kernel prefetches. Without it the processor reads ahead only as far as its
/// out-of-order window, so that the time for arithmetic adds to the time for memory. 512 bytes are enough on
/// Zen 4; Sapphire Rapids, whose memory latency is higher, needs 2 to 3 KiB. Farther ahead is mostly on
/// another page of 4 KiB, whose address must be translated first.
const AHEAD: usize = 3072;

/// Prefetches the `bytes` that lie [`AHEAD`] of `p`; they need not exist.
#[inline(always)]
pub(crate) fn prefetch_ahead(p: *const u8, bytes: usize) {
    prefetch(p.wrapping_add(AHEAD), bytes);
}

/// Prefetches `bytes` from `p` on; they need not exist.
#[inline(always)]
pub(crate) fn prefetch(p: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: every x86-64 processor has the instruction, which ignores addresses that cannot be read.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(line).cast()) };
    }
}

/// Eight half-precision numbers, `STRIDE` bytes apart: at least 4.
///
/// # Safety
/// Needs AVX2 and F16C, and readable bytes from the first number to `7 · (STRIDE − 2) + 16`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn halves_at<const STRIDE: usize>(p: *const u8) -> __m256 {
    // Sixteen bytes from `i · (STRIDE − 2)` on have number `i` as their 16-bit lane `i`.
    // SAFETY: `i` is at most 7, so that the load ends at `7 · (STRIDE − 2) + 16`, up to which the caller has
    // bytes.
    let at = |i: usize| unsafe { _mm_loadu_si128(p.add(i * (STRIDE - 2)).cast()) };
    let bits = _mm_blend_epi16::<0x02>(at(0), at(1));
    let bits = _mm_blend_epi16::<0x04>(bits, at(2));
    let bits = _mm_blend_epi16::<0x08>(bits, at(3));
    let bits = _mm_blend_epi16::<0x10>(bits, at(4));
    let bits = _mm_blend_epi16::<0x20>(bits, at(5));
    let bits = _mm_blend_epi16::<0x40>(bits, at(6));
    _mm256_cvtph_ps(_mm_blend_epi16::<0x80>(bits, at(7)))
}

impl Scales {
    /// Writes the first eight scales.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn set_scale8(&mut self, scale: __m256) {
        // SAFETY: the array has 16 floats, of which the first eight are written; AVX2 is enabled here.
        unsafe { _mm256_storeu_ps(self.scale.as_mut_ptr(), scale) }
    }

    /// Writes all signs.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn set_signs(&mut self, signs: __m256i) {
        // SAFETY: the array has 32 bytes; AVX2 is enabled here.
        unsafe { _mm256_storeu_si256(self.signs.as_mut_ptr().cast(), signs) }
    }

    /// Writes the first eight minima.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn set_min8(&mut self, min: __m256) {
        // SAFETY: the array has 16 floats, of which the first eight are written; AVX2 is enabled here.
        unsafe { _mm256_storeu_ps(self.min.as_mut_ptr(), min) }
    }
}

/// Unpacks 16 bytes of nibbles: low ones in the first half of the result, high ones in the second.
///
/// # Safety
/// Needs AVX2, and 16 readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: the caller has 16 readable bytes at `p`; AVX2 is enabled here.
    let twice = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(p.cast()) });
    let shifted = _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4));
    _mm256_and_si256(shifted, _mm256_set1_epi8(0x0f))
}

/// The low and the high nibbles of 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn low_and_high(x: __m256i) -> (__m256i, __m256i) {
    let four = _mm256_set1_epi8(0x0f);
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(x), four);
    (_mm256_and_si256(x, four), high)
}

/// 32 bytes: all ones where the bit of the same index is set, else zeros.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn spread_bits(bits: u32) -> __m256i {
    let bytes = _mm256_shuffle_epi8(
        _mm256_set1_epi32(bits as i32),
        _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        ),
    );
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
}

/// `x`, negated where the mask is all ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn negate_where(x: __m256i, mask: __m256i) -> __m256i {
    _mm256_sub_epi8(_mm256_xor_si256(x, mask), mask)
}

/// 32 bytes at any address.
///
/// # Safety
/// Needs AVX2, and 32 readable bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn bytes32(p: *const u8) -> __m256i {
    // SAFETY: the caller has 32 readable bytes at `p`; AVX2 is enabled here.
    unsafe { _mm256_loadu_si256(p.cast()) }
}
