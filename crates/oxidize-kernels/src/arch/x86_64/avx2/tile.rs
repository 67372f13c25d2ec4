//! The integer tile kernel: a panel of 16 rows times up to four tokens, held in registers.
//!
//! AVX2 multiplies bytes into 16-bit pairs (`vpmaddubsw`). How many of those can be added before they
//! must be widened depends on the bits of the weights: eight for 4 bits, which is a whole group. Where
//! there is an instruction for it ([`Bytes::FOURS`](super::products::Bytes::FOURS)), four products go straight into 32 bits.
//!
//! Loops have their intrinsics in them: a closure that is not inlined is compiled without the instructions,
//! and calls each of them as a function, which `make bench-check` shows.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::format::Format;
use super::formats::Q8_0;
use super::matmul::TileKernel;
use super::panel::{Next, Panel, has_mins, has_unit};
use super::products::{Products, Widening};
use crate::ops::matmul::{MOVED, RawRows};

/// What of a format the kernel must know, so that formats of a kind share its code.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// How many products of pairs fit into 16 bits, where they go there.
    depth: usize,
    signed: bool,
    /// Whether there is a scale for each 16 elements.
    halves: bool,
    min: bool,
    /// Whether the scales of sixteens are integers.
    unit: bool,
    /// The level that stands for 0, where bytes without a sign have one.
    level: Option<u32>,
}

impl Kind {
    /// The kind of a format, as a number that can be a parameter of [`BytePanel`].
    pub(crate) const fn of<F: Format, P: Products>() -> u16 {
        let depth = match F::BITS {
            _ if P::FOURS => 0,
            0..=4 => 3,
            5 => 2,
            6 => 1,
            _ => 0,
        };
        let level: u8 = match P::FOURS {
            true if F::CENTRED => 128,
            true => 0,
            false => F::LEVEL,
        };
        let signed = F::SIGNED && !P::FOURS;
        let unit = has_unit::<F, P>();
        let min = has_mins::<F, P>();
        let halves = F::GROUP == 16;
        let level = match level {
            0 => 0,
            _ if unit => 0,
            level => level.ilog2() as u16,
        };
        let flags = (signed as u16) << 2 | (halves as u16) << 3 | (min as u16) << 4;
        depth | flags | level << 5 | (unit as u16) << 8
    }

    const fn decode(kind: u16) -> Kind {
        Kind {
            depth: 1 << (kind & 3),
            signed: kind >> 2 & 1 == 1,
            halves: kind >> 3 & 1 == 1,
            min: kind >> 4 & 1 == 1,
            unit: kind >> 8 == 1,
            level: match kind >> 5 & 7 {
                0 => None,
                bits => Some(1 << bits),
            },
        }
    }
}

/// A panel that was unpacked from a format of the kind.
pub(crate) struct BytePanel<const KIND: u16>(pub(crate) Panel);

// SAFETY: reads only inside the panel and inside the rows of the tokens.
unsafe impl<P: Products, const KIND: u16> TileKernel<P> for BytePanel<KIND> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        next: &mut Next,
    ) -> [[__m256; 2]; T] {
        // SAFETY: as the caller says.
        unsafe { tile::<P, KIND, T>(&self.0, acts, first, next) }
    }
}

/// See [`TileKernel`].
///
/// # Safety
/// Needs AVX2 and FMA, and what the products need. The panel is of the kind, with rows of `acts.k`, and `acts`
/// has the tokens.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<P: Products, const KIND: u16, const T: usize>(
    panel: &Panel,
    acts: &RawRows,
    first: usize,
    next: &mut Next,
) -> [[__m256; 2]; T] {
    let kind = const { Kind::decode(KIND) };
    let mut sums = [[_mm256_setzero_ps(); 2]; T];
    // SAFETY: all reads lie inside the panel and inside the rows of the tokens.
    unsafe {
        let quants: [*const i8; T] =
            std::array::from_fn(|t| acts.quants.add((first + t) * acts.quant_stride));
        let at = first * acts.group_stride;
        let ones = [_mm256_set1_epi16(1); 2];
        for g in 0..acts.k / 32 {
            next.ask();
            if !kind.halves {
                let quants = quants.map(|q| q.add(32 * g));
                let starts = starts::<KIND, T>(panel, acts, first, g, 2 * g..2 * g + 2);
                let weights = panel.quants.add(g * 32 * 16);
                let dots = group::<P, KIND, T, 8>(weights, quants, starts, ones);
                let scales = halves(panel.scales.add(16 * g));
                add_scaled::<T>(scales, dots, acts, at + g, &mut sums);
                if kind.min {
                    let mins = halves(panel.mins.add(16 * g));
                    add_mins::<T>(mins, acts.sums.add(at + g), acts.group_stride, &mut sums);
                }
                continue;
            }
            if kind.unit {
                let mut dots = [[_mm256_setzero_si256(); 2]; T];
                for i in 2 * g..2 * g + 2 {
                    let quants = quants.map(|q| q.add(16 * i));
                    let weights = panel.quants.add(i * 16 * 16);
                    let scales = panel.scales.add(16 * i).cast::<__m256i>();
                    let scales = [_mm256_load_si256(scales), _mm256_load_si256(scales.add(1))];
                    dots = group::<P, KIND, T, 4>(weights, quants, dots, scales);
                }
                let units = halves(panel.units.add(16 * (g / 8)));
                add_scaled::<T>(units, dots, acts, at + g, &mut sums);
            }
            for i in 2 * g..2 * g + 2 {
                if !kind.unit {
                    let quants = quants.map(|q| q.add(16 * i));
                    let starts = starts::<KIND, T>(panel, acts, first, i, i..i + 1);
                    let weights = panel.quants.add(i * 16 * 16);
                    let dots = group::<P, KIND, T, 4>(weights, quants, starts, ones);
                    let scales = halves(panel.scales.add(16 * i));
                    add_scaled::<T>(scales, dots, acts, at + g, &mut sums);
                }
                if kind.min {
                    let mins = halves(panel.mins.add(16 * i));
                    let act_sums = acts.half_sums.add(2 * at + i);
                    add_mins::<T>(mins, act_sums, 2 * acts.group_stride, &mut sums);
                }
            }
        }
    }
    sums
}

/// What the integer products of a group begin with: `halves` are its sixteens.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn starts<const KIND: u16, const T: usize>(
    panel: &Panel,
    acts: &RawRows,
    first: usize,
    group: usize,
    halves: Range<usize>,
) -> [[__m256i; 2]; T] {
    let kind = const { Kind::decode(KIND) };
    // SAFETY: as the caller says.
    unsafe {
        if kind.signed {
            let starts = panel.starts.add(16 * group).cast::<__m256i>();
            return [[_mm256_load_si256(starts), _mm256_load_si256(starts.add(1))]; T];
        }
        let Some(level) = kind.level else {
            return [[_mm256_setzero_si256(); 2]; T];
        };
        std::array::from_fn(|t| {
            let moved = acts.moved.add(2 * (first + t) * acts.group_stride);
            let mut start = _mm256_set1_epi32(*moved.add(halves.start));
            if halves.len() == 2 {
                start = _mm256_add_epi32(start, _mm256_set1_epi32(*moved.add(halves.start + 1)));
            }
            // Divided by as many times as 128 is the level.
            let bits = _mm_cvtsi32_si128((7 - level.ilog2()) as i32);
            [_mm256_sra_epi32(start, bits); 2]
        })
    }
}

/// Adds the products of a group, with its scales and those of the activations, to the sums.
///
/// # Safety
/// Needs AVX2 and FMA; `act_group` is the group of the first token's scales.
#[inline(always)]
unsafe fn add_scaled<const T: usize>(
    scales: [__m256; 2],
    dots: [[__m256i; 2]; T],
    acts: &RawRows,
    act_group: usize,
    sums: &mut [[__m256; 2]; T],
) {
    // SAFETY: as the caller says.
    unsafe {
        for t in 0..T {
            let scale = _mm256_broadcast_ss(&*acts.scales.add(act_group + t * acts.group_stride));
            for h in 0..2 {
                let dot = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[t][h]), scales[h]);
                sums[t][h] = _mm256_fmadd_ps(dot, scale, sums[t][h]);
            }
        }
    }
}

/// Adds the minima of a group, with the sums of the activations, to the sums.
///
/// # Safety
/// Needs AVX2 and FMA; `act_sums` is the group's sum of the first token, which those of other tokens follow in
/// steps of `stride`.
#[inline(always)]
unsafe fn add_mins<const T: usize>(
    mins: [__m256; 2],
    act_sums: *const f32,
    stride: usize,
    sums: &mut [[__m256; 2]; T],
) {
    // SAFETY: as the caller says.
    unsafe {
        for t in 0..T {
            let sum = _mm256_broadcast_ss(&*act_sums.add(t * stride));
            for h in 0..2 {
                sums[t][h] = _mm256_fmadd_ps(mins[h], sum, sums[t][h]);
            }
        }
    }
}

/// A panel of Q8_0 rows of one scale each, for tokens of one scale each.
pub(crate) struct RowPanel(pub(crate) Panel);

// SAFETY: reads only inside the panel and inside the rows of the tokens.
unsafe impl<P: Products> TileKernel<P> for RowPanel {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        next: &mut Next,
    ) -> [[__m256; 2]; T] {
        // What the kind says of signs is of no account to products that want none.
        const SIGNED: u16 = Kind::of::<Q8_0, Widening>();
        // SAFETY: all reads lie inside the panel and inside the rows of the tokens.
        unsafe {
            let quants: [*const i8; T] =
                std::array::from_fn(|t| acts.quants.add((first + t) * acts.quant_stride));
            let ones = [_mm256_set1_epi16(1); 2];
            let mut sums: [[__m256i; 2]; T] = std::array::from_fn(|t| {
                // What the weights are moved up by comes off first.
                let moved = if P::FOURS { MOVED } else { 0 };
                [_mm256_set1_epi32(moved * *acts.totals.add(first + t)); 2]
            });
            for g in 0..acts.k / 32 {
                next.ask();
                let weights = self.0.quants.add(g * 32 * 16);
                let starts = match P::FOURS {
                    true => [[_mm256_setzero_si256(); 2]; T],
                    false => starts::<SIGNED, T>(&self.0, acts, first, g, 2 * g..2 * g + 2),
                };
                let quants = quants.map(|q| q.add(32 * g));
                let dots = group::<P, SIGNED, T, 8>(weights, quants, starts, ones);
                for (sums, dots) in sums.iter_mut().zip(dots) {
                    for h in 0..2 {
                        sums[h] = _mm256_add_epi32(sums[h], dots[h]);
                    }
                }
            }
            let scales = halves(self.0.scales);
            std::array::from_fn(|t| {
                let scale = _mm256_broadcast_ss(&*acts.scales.add((first + t) * acts.group_stride));
                std::array::from_fn(|h| {
                    let sum = _mm256_cvtepi32_ps(sums[t][h]);
                    _mm256_mul_ps(sum, _mm256_mul_ps(scales[h], scale))
                })
            })
        }
    }
}

/// Integer products over `STEPS` × 4 elements: 16 rows in two halves, for each token, times the `factors` of the rows (a
/// word twice for each), added to `wide`.
///
/// `vpmaddubsw` wants one side without a sign. Of signed weights that is the magnitude; where one is below 0,
/// the bits of the activation are turned round, which makes of `a` not `−a` but `−a − 1`, so that the products
/// are too small by the magnitudes of all weights below 0 ([`Panel::starts`]). The instruction that negates
/// exactly starts where multiplications do.
///
/// # Safety
/// Needs AVX2, and what the products need; reads `STEPS` × 64 bytes of weights and `STEPS` × 4 of each token.
#[inline(always)]
unsafe fn group<P: Products, const KIND: u16, const T: usize, const STEPS: usize>(
    weights: *const u8,
    quants: [*const i8; T],
    mut wide: [[__m256i; 2]; T],
    factors: [__m256i; 2],
) -> [[__m256i; 2]; T] {
    // SAFETY: as the caller says.
    unsafe {
        let zero = _mm256_setzero_si256();
        let Kind { depth, signed, .. } = const { Kind::decode(KIND) };
        if depth == 2 && !signed {
            // Sums of 16 bits last for two steps, which are taken together.
            for step in (0..STEPS).step_by(2) {
                let weight = weights.add(64 * step).cast::<__m256i>();
                let a = [_mm256_load_si256(weight), _mm256_load_si256(weight.add(1))];
                let b = [
                    _mm256_load_si256(weight.add(2)),
                    _mm256_load_si256(weight.add(3)),
                ];
                for t in 0..T {
                    let act = quants[t].add(4 * step).cast::<i32>();
                    let act_a = _mm256_set1_epi32(act.read_unaligned());
                    let act_b = _mm256_set1_epi32(act.add(1).read_unaligned());
                    for h in 0..2 {
                        let pairs = _mm256_add_epi16(
                            _mm256_maddubs_epi16(a[h], act_a),
                            _mm256_maddubs_epi16(b[h], act_b),
                        );
                        let widened = _mm256_madd_epi16(pairs, factors[h]);
                        wide[t][h] = in_order(_mm256_add_epi32(wide[t][h], widened));
                    }
                }
            }
            return wide;
        }
        let mut narrow = [[zero; 2]; T];
        for step in 0..STEPS {
            let weight: [__m256i; 2] =
                std::array::from_fn(|h| _mm256_load_si256(weights.add(64 * step + 32 * h).cast()));
            let below = weight.map(|weight| _mm256_cmpgt_epi8(zero, weight));
            let magnitude = weight.map(|weight| _mm256_abs_epi8(weight));
            for t in 0..T {
                let act = _mm256_set1_epi32(quants[t].add(4 * step).cast::<i32>().read_unaligned());
                for h in 0..2 {
                    if P::FOURS {
                        wide[t][h] = P::add_fours(wide[t][h], weight[h], act);
                        continue;
                    }
                    let pairs = if signed {
                        _mm256_maddubs_epi16(magnitude[h], _mm256_xor_si256(act, below[h]))
                    } else {
                        _mm256_maddubs_epi16(weight[h], act)
                    };
                    narrow[t][h] = if step % depth == 0 {
                        pairs
                    } else {
                        _mm256_add_epi16(narrow[t][h], pairs)
                    };
                    if depth == 8 {
                        narrow[t][h] = in_order(narrow[t][h]);
                    }
                    if step % depth == depth - 1 || step == STEPS - 1 {
                        let widened = _mm256_madd_epi16(narrow[t][h], factors[h]);
                        wide[t][h] = _mm256_add_epi32(wide[t][h], widened);
                    }
                }
            }
        }
        wide
    }
}

/// The same vector, in a register at this point of the program. Left to itself the compiler adds up a whole group
/// token by token, which has more in registers than there are, and reads weights again for each token.
///
/// # Safety
/// Needs AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn in_order(mut vector: __m256i) -> __m256i {
    // SAFETY: there is no instruction.
    unsafe {
        asm!("/* {0} */", inout(ymm_reg) vector, options(nomem, nostack, preserves_flags));
    }
    vector
}

/// Sixteen floats in two vectors.
///
/// # Safety
/// Needs AVX2, and 16 readable floats, aligned to 32 bytes.
#[inline(always)]
unsafe fn halves(p: *const f32) -> [__m256; 2] {
    // SAFETY: as the caller says.
    unsafe { [_mm256_load_ps(p), _mm256_load_ps(p.add(8))] }
}
