//! Panels: 16 weight rows unpacked into bytes, in the order in which the tile kernels read them.
//!
//! Whatever the format was, a panel holds for each four elements of `k` the four bytes of row 0, of
//! row 1, … of row 15, so that a lane of a vector is a row and no sum crosses lanes; and for each
//! group 16 scales and, where there are such, 16 minima. It is unpacked once and serves every token.

use std::arch::x86_64::*;

use super::format::{
    CHUNK, Format, Scales, halves_of, negate_where, spread_bits, transpose, turn_scales,
};
use super::products::Bytes;
use crate::ops::matmul::{Scratch, WeightRows, grown};

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;

/// A panel in a thread's scratch memory.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    /// `[k / 4][ROWS][4]` bytes; or half as many, `[k / 64][8][ROWS][4]`, where the elements of a group are the low
    /// nibbles and those of the next group the high ones, whose scales then are 1/16 of what they were.
    pub(crate) quants: *const u8,
    /// `[k / GROUP][ROWS]` scales; where they are integers ([`has_unit`]), as words, each twice.
    pub(crate) scales: *const f32,
    /// As many minima, where there are such ([`has_mins`]).
    pub(crate) mins: *const f32,
    /// `[k / 256][ROWS]` numbers that scales are integers of.
    pub(crate) units: *const f32,
    /// In their place, for signed weights and without [`Bytes::FOURS`]: the sums of the magnitudes of those
    /// below 0.
    pub(crate) starts: *const i32,
}

/// The memory that the next panel is unpacked from, to be asked for while this one is multiplied: by the
/// time that it is unpacked it is in the second cache.
pub(crate) struct Next {
    at: *const u8,
    lines: usize,
}

impl Next {
    /// What lies behind the panel that begins with row `first`, if [`Next::ask`] is called at least `times`.
    pub(crate) fn new(weight: &WeightRows<'_>, first: usize, times: usize) -> Next {
        let bytes = ROWS * weight.row_bytes();
        let at = weight.data().as_ptr();
        Next {
            at: at.wrapping_add(first * weight.row_bytes() + bytes),
            lines: bytes.div_ceil(64 * times.max(1)),
        }
    }

    /// Asks for the next few lines; they need not exist. What is asked for too much is of the panel after that, and
    /// cheaper than to look where the end is.
    #[inline(always)]
    pub(crate) fn ask(&mut self) {
        for _ in 0..self.lines {
            // SAFETY: every x86-64 processor has the instruction, and it ignores what it cannot read.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.cast()) };
            self.at = self.at.wrapping_add(64);
        }
    }
}

/// Whether the scales of a panel are integers: then two sixteens are one sum, for a multiplication that would be by
/// one otherwise multiplies by them. Instructions that add up [four products](Bytes::FOURS) have no such
/// multiplication.
pub(crate) const fn has_unit<F: Format, P: Bytes>() -> bool {
    F::UNIT.is_some() && !P::FOURS
}

/// Whether a panel has minima.
pub(crate) const fn has_mins<F: Format, P: Bytes>() -> bool {
    F::MIN && !F::CENTRED || has_unit::<F, P>()
}

/// Makes room for a panel of rows of `k`: its quants, scales, minima and units.
pub(crate) fn reserve(scratch: &mut Scratch, k: usize) -> (*mut u8, *mut f32, *mut f32, *mut f32) {
    // One cache line more, so that the panel can begin on one.
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

/// Unpacks rows `first` to `first + 15`; past the last row, the last row again.
///
/// With [`Bytes::FOURS`], weights of formats that are [`Format::CENTRED`] are moved so that [`Bytes::CENTRE`] stands
/// for 0; if that is 128, [`RawRows::moved`](crate::ops::matmul::RawRows::moved) takes it back. `PACKED` leaves pairs of groups in
/// nibbles, of formats that are [`Format::NIBBLES`]: the panel is written once, and read for every few tokens.
///
/// # Safety
/// Needs AVX2, FMA and F16C; the weight is of the format, with a row `first`.
#[inline(always)]
pub(crate) unsafe fn unpack<F: Format, P: Bytes, const PACKED: bool>(
    weight: &WeightRows<'_>,
    first: usize,
    scratch: &mut Scratch,
) -> Panel {
    let (k, last) = (weight.k(), weight.rows() - 1);
    let (quants, scales, mins, units) = reserve(scratch, k);
    let per_chunk = CHUNK / F::GROUP;
    let base = weight.data().as_ptr();
    let groups = k / 32;
    let mut row_scales = [const { Scales::ZERO }; 8];
    let shift = |x: __m256i| match P::FOURS && F::CENTRED {
        // SAFETY: the caller has the instructions.
        true => unsafe {
            _mm256_add_epi8(x, _mm256_set1_epi8(P::CENTRE.wrapping_sub(F::LEVEL) as i8))
        },
        false => x,
    };
    // SAFETY: rows are inside the weight, chunks inside the rows, and `reserve` made room for
    // every byte and scale that is written.
    unsafe {
        let rows: [*const u8; ROWS] =
            std::array::from_fn(|r| base.add((first + r).min(last) * weight.row_bytes()));
        for c in 0..groups.div_ceil(8) {
            let in_chunk = (groups - c * 8).min(8);
            for half in 0..2 {
                let chunks: [*const u8; 8] =
                    std::array::from_fn(|r| rows[8 * half + r].add(c * F::CHUNK_BYTES));
                let mut inverse = _mm256_setzero_ps();
                if let (Some(at), true) = (F::UNIT, has_unit::<F, P>()) {
                    let unit = halves_of(&chunks, at);
                    _mm256_store_ps(units.add(c * ROWS + 8 * half), unit);
                    let known = _mm256_cmp_ps::<_CMP_NEQ_OQ>(unit, inverse);
                    let one = _mm256_set1_ps(1.0);
                    inverse = _mm256_and_ps(_mm256_div_ps(one, unit), known);
                }
                // Past the end of a short chunk this writes too: into what is overwritten or not read.
                let put_scales = |g: usize, scale: __m256, min: __m256| {
                    let at = (c * per_chunk + g) * ROWS + 8 * half;
                    let scale = match PACKED && g % 2 == 1 {
                        true => _mm256_mul_ps(scale, _mm256_set1_ps(1.0 / 16.0)),
                        false => scale,
                    };
                    let scale = match has_unit::<F, P>() {
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
                turn_scales::<F>(&row_scales, put_scales);
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
            if F::SIGNED && !P::FOURS {
                for g in 0..in_chunk * 32 / F::GROUP {
                    let group = c * per_chunk + g;
                    let quants = quants.add(group * F::GROUP * ROWS);
                    below_zero::<F>(quants, mins.add(group * ROWS).cast());
                }
            }
        }
    }
    Panel {
        quants,
        scales,
        mins,
        units,
        starts: mins.cast(),
    }
}

/// Writes for each row of a group the sum of the magnitudes of the bytes below 0.
///
/// # Safety
/// Needs AVX2, a group of a panel, and room for 16 sums.
#[inline(always)]
unsafe fn below_zero<F: Format>(quants: *const u8, sums: *mut i32) {
    // SAFETY: as the caller says.
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
