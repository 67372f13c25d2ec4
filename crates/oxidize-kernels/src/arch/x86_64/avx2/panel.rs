//! Panels: 16 weight rows unpacked into bytes, in the order in which the tile kernels read them.
//!
//! Whatever the format, a panel holds for each four elements of `k` the four bytes of row 0, of row 1, … of
//! row 15, so that a lane of a vector is a row and no sum crosses lanes. For each group it has 16 scales and,
//! if the format needs them, 16 minima. It is unpacked once and serves every token.

use std::arch::x86_64::*;

use super::format::{
    CHUNK, Format, Scales, halves_of, negate_where, spread_bits, transpose, transpose_scales,
};
use super::int8_dot::PanelBytes;
use crate::ops::matmul::{Scratch, WeightRows, grown};

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;

/// A panel in a thread's scratch memory, every array of it aligned to 64 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    /// `[k / 4][ROWS][4]` bytes. If packed, half as many, `[k / 64][8][ROWS][4]`: the elements of a group are
    /// the low nibbles and those of the following group the high ones, whose scales are then 1/16 of what
    /// they were.
    pub(crate) quants: *const u8,
    /// `[k / GROUP][ROWS]` scales. Integers ([`has_integer_scales`]) are stored twice each, as `i16`.
    pub(crate) scales: *const f32,
    /// `[k / GROUP][ROWS]` minima, if the panel has any ([`has_mins`]).
    pub(crate) mins: *const f32,
    /// `[k / 256][ROWS]` super-block scales, of which integer scales are multiples.
    pub(crate) super_scales: *const f32,
    /// In place of minima, for signed weights and without [`PanelBytes::HAS_VNNI`]: the sum of the magnitudes
    /// of the negative weights of each group and row.
    pub(crate) negative_sums: *const i32,
}

/// Prefetches the memory that the following panel is unpacked from while this panel is multiplied, so that it
/// is in the second-level cache by then.
pub(crate) struct Prefetcher {
    at: *const u8,
    lines: usize,
}

impl Prefetcher {
    /// For the rows after the panel that begins with row `first`, if [`Prefetcher::prefetch`] is called at
    /// least `times`.
    pub(crate) fn new(weight: &WeightRows<'_>, first: usize, times: usize) -> Prefetcher {
        let bytes = ROWS * weight.row_bytes();
        let at = weight.data().as_ptr();
        Prefetcher {
            at: at.wrapping_add(first * weight.row_bytes() + bytes),
            lines: bytes.div_ceil(64 * times.max(1)),
        }
    }

    /// Prefetches the following few cache lines, which need not exist. Running into the panel after that is
    /// cheaper than checking for the end.
    #[inline(always)]
    pub(crate) fn prefetch(&mut self) {
        for _ in 0..self.lines {
            // SAFETY: every x86-64 processor has the instruction, which ignores addresses that cannot be
            // read.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.cast()) };
            self.at = self.at.wrapping_add(64);
        }
    }
}

/// True if the scales of a panel are integers. `vpmaddwd` then multiplies by them instead of by 1, so that
/// two groups of 16 share one sum. [VNNI](PanelBytes::HAS_VNNI) has no such multiplication.
pub(crate) const fn has_integer_scales<F: Format, P: PanelBytes>() -> bool {
    F::SUPER_SCALE_OFFSET.is_some() && !P::HAS_VNNI
}

/// True if a panel has minima.
pub(crate) const fn has_mins<F: Format, P: PanelBytes>() -> bool {
    F::MIN && !F::SYMMETRIC || has_integer_scales::<F, P>()
}

/// Makes room for a panel of rows of `k` elements: its quants, scales, minima and super-block scales.
pub(crate) fn reserve(scratch: &mut Scratch, k: usize) -> (*mut u8, *mut f32, *mut f32, *mut f32) {
    // One cache line more, for alignment.
    let quants = grown(&mut scratch.bytes, k * ROWS + 64).as_mut_ptr();
    let quants = quants.wrapping_add(quants.align_offset(64));
    // Scales of whole chunks.
    let n = k.next_multiple_of(CHUNK) / 16 * ROWS;
    let scales = grown(&mut scratch.scales, 2 * n + n / 16 + 16).as_mut_ptr();
    let scales = scales.wrapping_add(scales.align_offset(64));
    (
        quants,
        scales,
        scales.wrapping_add(n),
        scales.wrapping_add(2 * n),
    )
}

/// Unpacks rows `first` to `first + 15`, repeating the last row past the end.
///
/// With [`PanelBytes::HAS_VNNI`], weights of [`Format::SYMMETRIC`] formats are offset so that
/// [`PanelBytes::ZERO_POINT`] stands for 0; if that is 128,
/// [`RawRows::zero_point_sums`](crate::ops::matmul::RawRows::zero_point_sums) compensates. `PACKED` leaves
/// pairs of groups of [`Format::NIBBLES`] formats in nibbles: a panel is written once, and read for every few
/// tokens.
///
/// # Safety
/// Needs AVX2, FMA and F16C; the weight is of format `F` and has row `first`.
#[inline(always)]
pub(crate) unsafe fn unpack<F: Format, P: PanelBytes, const PACKED: bool>(
    weight: &WeightRows<'_>,
    first: usize,
    scratch: &mut Scratch,
) -> Panel {
    let (k, last) = (weight.k(), weight.rows() - 1);
    let (quants, scales, mins, super_scales) = reserve(scratch, k);
    let per_chunk = CHUNK / F::GROUP;
    let base = weight.data().as_ptr();
    let groups = k / 32;
    let mut row_scales = [const { Scales::ZERO }; 8];
    let shift = |x: __m256i| match P::HAS_VNNI && F::SYMMETRIC {
        // SAFETY: the caller of `unpack` has AVX2; the instructions work on registers only.
        true => unsafe {
            _mm256_add_epi8(
                x,
                _mm256_set1_epi8(P::ZERO_POINT.wrapping_sub(F::ZERO_POINT) as i8),
            )
        },
        false => x,
    };
    // SAFETY: the caller has AVX2, FMA and F16C. Row numbers are at most `last`, chunks lie inside their rows
    // of whole blocks of `F`, and `reserve` made room for every byte, scale, minimum and super-block scale of
    // `k` elements, rounded up to a chunk, aligned to 64 bytes.
    unsafe {
        let rows: [*const u8; ROWS] =
            std::array::from_fn(|r| base.add((first + r).min(last) * weight.row_bytes()));
        for c in 0..groups.div_ceil(8) {
            let in_chunk = (groups - c * 8).min(8);
            for half in 0..2 {
                let chunks: [*const u8; 8] =
                    std::array::from_fn(|r| rows[8 * half + r].add(c * F::CHUNK_BYTES));
                let mut inverse = _mm256_setzero_ps();
                if let (Some(at), true) = (F::SUPER_SCALE_OFFSET, has_integer_scales::<F, P>()) {
                    let super_scale = halves_of(&chunks, at);
                    _mm256_store_ps(super_scales.add(c * ROWS + 8 * half), super_scale);
                    let nonzero = _mm256_cmp_ps::<_CMP_NEQ_OQ>(super_scale, inverse);
                    let one = _mm256_set1_ps(1.0);
                    inverse = _mm256_and_ps(_mm256_div_ps(one, super_scale), nonzero);
                }
                // Also writes past the end of a short chunk, where values are overwritten or not read.
                let put_scales = |g: usize, scale: __m256, min: __m256| {
                    let at = (c * per_chunk + g) * ROWS + 8 * half;
                    let scale = match PACKED && g % 2 == 1 {
                        true => _mm256_mul_ps(scale, _mm256_set1_ps(1.0 / 16.0)),
                        false => scale,
                    };
                    let scale = match has_integer_scales::<F, P>() {
                        true => {
                            let whole = _mm256_cvtps_epi32(_mm256_mul_ps(scale, inverse));
                            let low = _mm256_and_si256(whole, _mm256_set1_epi32(0xffff));
                            let twice = _mm256_or_si256(low, _mm256_slli_epi32::<16>(whole));
                            _mm256_castsi256_ps(twice)
                        }
                        false => scale,
                    };
                    _mm256_store_ps(scales.add(at), scale);
                    if has_mins::<F, P>() {
                        _mm256_store_ps(mins.add(at), min);
                    }
                };
                let out = quants.add(c * 256 * ROWS + 32 * half);
                let put = |g: usize, step: usize, x: __m256i| {
                    _mm256_store_si256(out.add((g * 8 + step) * 4 * ROWS).cast(), shift(x));
                };
                if in_chunk == 8 && !F::SIGNS {
                    F::scale_columns(&chunks, &mut row_scales, put_scales);
                    if PACKED {
                        let out = quants.add(c * 128 * ROWS + 32 * half);
                        F::nibble_columns(&chunks, |pair, step, x| {
                            _mm256_store_si256(out.add((pair * 8 + step) * 4 * ROWS).cast(), x);
                        });
                    } else {
                        F::columns(&chunks, put);
                    }
                    continue;
                }
                for (&chunk, row) in chunks.iter().zip(&mut row_scales) {
                    F::scales(chunk, in_chunk, row);
                }
                transpose_scales::<F>(&row_scales, put_scales);
                for g in 0..in_chunk {
                    let mut block = chunks.map(|chunk| F::quants(chunk, g));
                    if F::SIGNS {
                        for (x, scales) in block.iter_mut().zip(&row_scales) {
                            *x = negate_where(*x, spread_bits(scales.signs[g]));
                        }
                    }
                    for (step, x) in transpose(block).into_iter().enumerate() {
                        put(g, step, x);
                    }
                }
            }
            if F::SIGNED && !P::HAS_VNNI {
                for g in 0..in_chunk * 32 / F::GROUP {
                    let group = c * per_chunk + g;
                    let quants = quants.add(group * F::GROUP * ROWS);
                    store_negative_sums::<F>(quants, mins.add(group * ROWS).cast());
                }
            }
        }
    }
    Panel {
        quants,
        scales,
        mins,
        super_scales,
        negative_sums: mins.cast(),
    }
}

/// Writes for each row of a group the sum of the magnitudes of the negative bytes.
///
/// # Safety
/// Needs AVX2; `quants` has a group of a panel and `sums` room for 16 numbers, both aligned to 32 bytes.
#[inline(always)]
unsafe fn store_negative_sums<F: Format>(quants: *const u8, sums: *mut i32) {
    // SAFETY: the caller has AVX2. A group has `GROUP / 4` steps of 64 bytes, and a half writes eight of the
    // 16 sums.
    unsafe {
        let zero = _mm256_setzero_si256();
        for half in 0..2 {
            let mut pairs = zero;
            for step in 0..F::GROUP / 4 {
                let bytes = quants.add(4 * ROWS * step + 32 * half);
                let below = _mm256_min_epi8(_mm256_load_si256(bytes.cast()), zero);
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi8(1), below));
            }
            let sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(-1));
            _mm256_store_si256(sums.add(8 * half).cast(), sum);
        }
    }
}
