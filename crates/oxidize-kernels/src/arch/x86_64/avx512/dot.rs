//! GEMV: dot products of a weight row with a few tokens in registers of 512 bits, for the formats that can
//! fill such registers ([`Format512`], in `formats/`). Decoding runs this.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::super::avx2::dot::{RowDot, dot_groups};
use super::super::avx2::format::{CHUNK, Format, Scales, prefetch_ahead};
use super::Vnni;
use crate::ops::matmul::RawRows;

/// A quantized format whose weights unpack 128 at a time.
///
/// Sixteen groups with a scale each are a span: two chunks of [`Format512::Avx2`], or one chunk if 16
/// elements share a scale.
///
/// # Safety
/// The methods need AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C; `span` must point to a whole span
/// of the format.
pub(crate) unsafe trait Format512 {
    /// The format in registers of 256 bits, for the end of a row and for scales and signs of a chunk.
    type Avx2: Format;

    /// Elements `128 · part` to `128 · part + 127` of the span, one per byte, in order, none negative.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn quants(span: *const u8, part: usize) -> [__m512i; 2];

    /// Sixteen scales and minima.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn scales(_span: *const u8, unpacked: &ChunkScales) -> (__m512, __m512) {
        // SAFETY: the caller has AVX-512 DQ.
        unsafe {
            let scale = unpacked.load::<Self>(|scales| &scales.scale);
            let min = unpacked.load::<Self>(|scales| &scales.min);
            (scale, min)
        }
    }
}

/// Unpacked scales, minima and signs of the chunks of a span.
pub(crate) struct ChunkScales([Scales; 2]);

impl ChunkScales {
    /// Sixteen floats, loaded in the halves in which they were stored, which store forwarding requires.
    ///
    /// # Safety
    /// Needs AVX-512 DQ.
    #[inline(always)]
    unsafe fn load<W: Format512 + ?Sized>(&self, of: impl Fn(&Scales) -> &[f32; 16]) -> __m512 {
        let [first, second] = &self.0;
        let (low, high) = match W::Avx2::GROUP {
            32 => (of(first).as_ptr(), of(second).as_ptr()),
            _ => (of(first).as_ptr(), of(first)[8..].as_ptr()),
        };
        // SAFETY: the caller has AVX-512 DQ; each pointer is to 16 floats, or to the last eight of them.
        unsafe {
            let low = _mm512_castps256_ps512(_mm256_loadu_ps(low));
            _mm512_insertf32x8::<1>(low, _mm256_loadu_ps(high))
        }
    }

    /// Sign bits of elements `64 · i` to `64 · i + 63`.
    #[inline(always)]
    fn signs(&self, i: usize) -> __mmask64 {
        let words = &self.0[i / 4].signs[2 * (i % 4)..];
        // Volatile, so that the bits go straight from memory to a mask register: the compiler would extract
        // them from the vector they were stored from, one by one.
        // SAFETY: the slice begins at an even index of eight `u32`, so that two are left; `Scales` is aligned
        // to 64 bytes.
        unsafe { words.as_ptr().cast::<u64>().read_volatile() }
    }
}

/// Dot products in registers of 512 bits.
pub(crate) struct Dot512<W>(PhantomData<W>);

// SAFETY: `dot` needs AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C. It reads the `acts.k` elements
// of the row and those of the `M` tokens from `first` on.
unsafe impl<W: Format512> RowDot for Dot512<W> {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn dot<const M: usize>(row: *const u8, acts: &RawRows, first: usize) -> [f32; M] {
        let span_groups = W::Avx2::GROUP / 2;
        let span_bytes = W::Avx2::CHUNK_BYTES * span_groups / 8;
        let spans = acts.k / 32 / span_groups;
        // SAFETY: the caller has AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C. Its row has `acts.k
        // / 32` groups of 32, of which `span_groups` make a span, and each token of `acts` has as many
        // quants, scales and sums; the groups after the last span begin a chunk.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); 2]; M];
            let mut mins = [_mm512_setzero_ps(); M];
            for s in 0..spans {
                let span = row.add(s * span_bytes);
                prefetch_ahead(span, span_bytes);
                let mut unpacked = ChunkScales([Scales::ZERO, Scales::ZERO]);
                for (c, scales) in unpacked.0.iter_mut().take(span_groups / 8).enumerate() {
                    W::Avx2::scales(span.add(c * W::Avx2::CHUNK_BYTES), 8, scales);
                }
                let (scale, min) = W::scales(span, &unpacked);
                let mut factors = [_mm512_setzero_ps(); M];
                for t in 0..M {
                    let at = (first + t) * acts.group_stride + s * span_groups;
                    let (act_scale, act_sum) = if W::Avx2::GROUP == 32 {
                        (_mm512_loadu_ps(acts.scales.add(at)), acts.sums.add(at))
                    } else {
                        let eight = _mm512_castps256_ps512(_mm256_loadu_ps(acts.scales.add(at)));
                        let twice = _mm512_permutexvar_ps(index(&TWICE), eight);
                        (twice, acts.half_sums.add(2 * at))
                    };
                    factors[t] = _mm512_mul_ps(scale, act_scale);
                    if W::Avx2::MIN {
                        mins[t] = _mm512_fmadd_ps(min, _mm512_loadu_ps(act_sum), mins[t]);
                    }
                }
                let quants = acts
                    .quants
                    .add(first * acts.quant_stride + s * span_groups * 32);
                for part in 0..span_groups / 4 {
                    let weights = W::quants(span, part);
                    for (j, weights) in weights.into_iter().enumerate() {
                        let i = 2 * part + j;
                        let spread = match W::Avx2::GROUP {
                            32 => index(&SPREAD_32[i]),
                            _ => index(&SPREAD_16[i]),
                        };
                        for t in 0..M {
                            let act = quants.add(t * acts.quant_stride + 64 * i);
                            let mut act = _mm512_loadu_si512(act.cast());
                            if W::Avx2::SIGNS {
                                let zero = _mm512_setzero_si512();
                                act = _mm512_mask_sub_epi8(act, unpacked.signs(i), zero, act);
                            }
                            let dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights, act);
                            let factor = _mm512_permutexvar_ps(spread, factors[t]);
                            sums[t][j] =
                                _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sums[t][j]);
                        }
                    }
                }
            }
            let rest = row.add(spans * span_bytes);
            let mut dots = match acts.k / 32 - spans * span_groups {
                0 => [0.0; M],
                _ => dot_groups::<W::Avx2, Vnni, M>(rest, acts, first, spans * span_groups),
            };
            for ((dot, [a, b]), mins) in dots.iter_mut().zip(sums).zip(mins) {
                *dot += _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), mins));
            }
            dots
        }
    }
}

const _: () = assert!(CHUNK == 256, "a chunk is eight groups of 32");

/// Each of eight floats twice.
const TWICE: [i32; 16] = spread(2, 0);
/// For each 64 elements of a span, the indices of their scales, one for each sum of four products.
const SPREAD_32: [[i32; 16]; 8] = spreads(8);
const SPREAD_16: [[i32; 16]; 8] = spreads(4);

/// Sixteen integers from `start` on, each repeated `times` times.
const fn spread(times: usize, start: usize) -> [i32; 16] {
    let mut out = [0; 16];
    let mut lane = 0;
    while lane < 16 {
        out[lane] = (start + lane / times) as i32;
        lane += 1;
    }
    out
}

const fn spreads(times: usize) -> [[i32; 16]; 8] {
    let mut out = [[0; 16]; 8];
    let mut i = 0;
    while i < 8 {
        out[i] = spread(times, i * (16 / times));
        i += 1;
    }
    out
}

/// # Safety
/// Needs AVX-512 F.
#[inline(always)]
unsafe fn index(lanes: &'static [i32; 16]) -> __m512i {
    // SAFETY: the caller has AVX-512 F; the array has 64 bytes.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}
