//! Panels: 16 weight rows unpacked into bytes, in the order in which the tile kernels read them.
//!
//! Whatever the format was, a panel holds for each four elements of `k` the four bytes of row 0, of
//! row 1, … of row 15, so that a lane of a vector is a row and no sum crosses lanes; and for each
//! group 16 scales and 16 minima. It is unpacked once and serves every token.

use std::arch::x86_64::*;

use super::format::{CHUNK, Format, Scales, negate_where, spread_bits, transpose, turn_scales};
use super::products::Products;
use crate::ops::matmul::{Scratch, WeightRows, grown};

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;

/// A panel in a thread's scratch memory.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    /// `[k / 4][ROWS][4]` bytes.
    pub(crate) quants: *const u8,
    /// `[k / GROUP][ROWS]` scales.
    pub(crate) scales: *const f32,
    /// As many minima.
    pub(crate) mins: *const f32,
}

/// The memory that the next panel is unpacked from, to be asked for while this one is multiplied: by the
/// time that it is unpacked it is in the second cache.
pub(crate) struct Next {
    at: *const u8,
    end: *const u8,
    lines: usize,
}

impl Next {
    /// What lies behind the panel that begins with row `first`, if [`Next::ask`] is called at least `times`.
    pub(crate) fn new(weight: &WeightRows<'_>, first: usize, times: usize) -> Next {
        let bytes = ROWS * weight.row_bytes();
        let at = weight.data().as_ptr();
        let at = at.wrapping_add(first * weight.row_bytes() + bytes);
        Next {
            at,
            end: at.wrapping_add(bytes),
            lines: bytes.div_ceil(64 * times.max(1)),
        }
    }

    /// Asks for the next few lines; they need not exist.
    #[inline(always)]
    pub(crate) fn ask(&mut self) {
        for _ in 0..self.lines {
            if self.at < self.end {
                // SAFETY: every x86-64 processor has the instruction, and it ignores what it cannot read.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.cast()) };
                self.at = self.at.wrapping_add(64);
            }
        }
    }
}

/// Makes room for a panel of rows of `k`: its quants, scales and minima.
pub(crate) fn reserve(scratch: &mut Scratch, k: usize) -> (*mut u8, *mut f32, *mut f32) {
    // One cache line more, so that the panel can begin on one.
    let quants = grown(&mut scratch.bytes, k * ROWS + 64).as_mut_ptr();
    let quants = quants.wrapping_add(quants.align_offset(64));
    // Scales of whole chunks.
    let n = k.next_multiple_of(CHUNK) / 16 * ROWS;
    let scales = grown(&mut scratch.scales, 2 * n + 16).as_mut_ptr();
    let scales = scales.wrapping_add(scales.align_offset(64));
    (quants, scales, scales.wrapping_add(n))
}

/// Unpacks rows `first` to `first + 15`; past the last row, the last row again.
///
/// With [`Products::FOURS`], signed weights become unsigned by adding 128, which the minima take back.
///
/// # Safety
/// Needs AVX2, FMA and F16C; the weight is of the format, with a row `first`.
#[inline(always)]
pub(crate) unsafe fn unpack<F: Format, P: Products>(
    weight: &WeightRows<'_>,
    first: usize,
    scratch: &mut Scratch,
) -> Panel {
    let (k, last) = (weight.k(), weight.rows() - 1);
    let (quants, scales, mins) = reserve(scratch, k);
    let shifted = P::FOURS && F::SIGNED;
    let per_chunk = CHUNK / F::GROUP;
    let base = weight.data().as_ptr();
    let groups = k / 32;
    let mut row_scales = [const { Scales::ZERO }; 8];
    let shift = |x: __m256i| match shifted {
        // SAFETY: the caller has the instructions.
        true => unsafe { _mm256_xor_si256(x, _mm256_set1_epi8(-128)) },
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
                // Past the end of a short chunk this writes too: into what is overwritten or not read.
                let put_scales = |g: usize, scale: __m256, min: __m256| {
                    let at = (c * per_chunk + g) * ROWS + 8 * half;
                    _mm256_store_ps(scales.add(at), scale);
                    if shifted {
                        let min = _mm256_fnmadd_ps(scale, _mm256_set1_ps(128.0), min);
                        _mm256_store_ps(mins.add(at), min);
                    } else if F::MIN {
                        _mm256_store_ps(mins.add(at), min);
                    }
                };
                let out = quants.add(c * 256 * ROWS + 32 * half);
                let put = |g: usize, step: usize, x: __m256i| {
                    _mm256_store_si256(out.add((g * 8 + step) * 4 * ROWS).cast(), shift(x));
                };
                if in_chunk == 8 && !F::SIGNS {
                    F::scale_columns(&chunks, &mut row_scales, put_scales);
                    F::columns(&chunks, put);
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
        }
    }
    Panel {
        quants,
        scales,
        mins,
    }
}
