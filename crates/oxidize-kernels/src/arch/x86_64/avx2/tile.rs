//! The integer tile kernel: a panel of 16 rows times up to four tokens, held in registers.
//!
//! AVX2 multiplies bytes and adds pairs of products in 16 bits (`vpmaddubsw`). The number of such sums that
//! can be added before they must be widened depends on the bits of the weights: eight for 4 bits, which is a
//! whole group. VNNI ([`PanelBytes::HAS_VNNI`](super::int8_dot::PanelBytes::HAS_VNNI)) adds four products
//! straight into 32 bits.
//!
//! Intrinsics are called directly in the loops: a closure that is not inlined is compiled without the target
//! features and calls each intrinsic as a function, which `make bench-check` shows.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use super::format::Format;
use super::formats::Q8_0;
use super::gemm::TileKernel;
use super::int8_dot::{Int8Dot, Widening};
use super::panel::{Panel, Prefetcher, has_integer_scales, has_mins};
use crate::ops::matmul::{RawRows, ZERO_POINT};

/// Layout of a panel's bytes, as far as the tile kernel needs to know it.
pub(crate) trait PanelLayout {
    /// Results of `vpmaddubsw`, each the sum of two products, whose sum fits into 16 bits.
    const DEPTH: usize;
    /// True if the bytes are signed.
    const SIGNED: bool;
    /// True if 16 elements share a scale, false if 32 do.
    const HALVES: bool;
    /// True if the panel has minima.
    const MIN: bool;
    /// True if the scales are integers.
    const INTEGER_SCALES: bool;
    /// The unsigned byte that stands for 0, a power of two, if the kernel must compensate for it.
    const ZERO_POINT: Option<u32>;
}

/// Panels of a format for `vpmaddubsw`.
pub(crate) struct MaddubsLayout<F>(PhantomData<F>);

impl<F: Format> PanelLayout for MaddubsLayout<F> {
    const DEPTH: usize = match F::BITS {
        0..=4 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    };
    const SIGNED: bool = F::SIGNED;
    const HALVES: bool = F::GROUP == 16;
    const MIN: bool = has_mins::<F, Widening>();
    const INTEGER_SCALES: bool = has_integer_scales::<F, Widening>();
    const ZERO_POINT: Option<u32> = match F::ZERO_POINT {
        0 => None,
        _ if Self::INTEGER_SCALES => None,
        zero_point => Some(zero_point as u32),
    };
}

/// Panels for VNNI, which takes unsigned bytes of any size. `HALVES`: true if 16 elements share a scale, false
/// if 32 do. `SYMMETRIC`: true if 128 stands for 0 and there are no minima.
pub(crate) struct VnniLayout<const HALVES: bool, const SYMMETRIC: bool>;

impl<const HALVES: bool, const SYMMETRIC: bool> PanelLayout for VnniLayout<HALVES, SYMMETRIC> {
    const DEPTH: usize = 1;
    const SIGNED: bool = false;
    const HALVES: bool = HALVES;
    const MIN: bool = !SYMMETRIC;
    const INTEGER_SCALES: bool = false;
    const ZERO_POINT: Option<u32> = if SYMMETRIC { Some(128) } else { None };
}

/// A panel of layout `L`.
pub(crate) struct BytePanel<L>(Panel, PhantomData<L>);

impl<L> BytePanel<L> {
    /// The panel, which has the layout.
    pub(crate) fn new(panel: Panel) -> Self {
        Self(panel, PhantomData)
    }
}

// SAFETY: `tile` reads only inside the panel and inside the rows of the tokens.
unsafe impl<P: Int8Dot, L: PanelLayout> TileKernel<P> for BytePanel<L> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        prefetcher: &mut Prefetcher,
    ) -> [[__m256; 2]; T] {
        // SAFETY: AVX2, FMA and F16C are enabled here, and the caller has the instructions of `P`. The panel
        // has layout `L` and rows of `acts.k` elements, and `first + T` is at most the tokens of `acts`.
        unsafe { tile::<P, L, T>(&self.0, acts, first, prefetcher) }
    }
}

/// See [`TileKernel`].
///
/// # Safety
/// Needs AVX2 and FMA and the instructions of `P`. The panel has layout `L` and rows of `acts.k` elements,
/// and `acts` has tokens `first` to `first + T − 1`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<P: Int8Dot, L: PanelLayout, const T: usize>(
    panel: &Panel,
    acts: &RawRows,
    first: usize,
    prefetcher: &mut Prefetcher,
) -> [[__m256; 2]; T] {
    let mut sums = [[_mm256_setzero_ps(); 2]; T];
    // SAFETY: AVX2 and FMA are enabled here. Groups run to `acts.k / 32`, and the panel and each token's row
    // have as many of every array that is read; arrays of a panel are aligned to 64 bytes and read in steps
    // of 32.
    unsafe {
        let quants: [*const i8; T] =
            std::array::from_fn(|t| acts.quants.add((first + t) * acts.quant_stride));
        let at = first * acts.group_stride;
        let ones = [_mm256_set1_epi16(1); 2];
        for g in 0..acts.k / 32 {
            prefetcher.prefetch();
            if !L::HALVES {
                let quants = quants.map(|q| q.add(32 * g));
                let initial = initial_sums::<L, T>(panel, acts, first, g, 2 * g..2 * g + 2);
                let weights = panel.quants.add(g * 32 * 16);
                let dots = group::<P, L, T, 8>(weights, quants, initial, ones);
                let scales = halves(panel.scales.add(16 * g));
                add_scaled::<T>(scales, dots, acts, at + g, &mut sums);
                if L::MIN {
                    let mins = halves(panel.mins.add(16 * g));
                    add_mins::<T>(mins, acts.sums.add(at + g), acts.group_stride, &mut sums);
                }
                continue;
            }
            if L::INTEGER_SCALES {
                let mut dots = [[_mm256_setzero_si256(); 2]; T];
                for i in 2 * g..2 * g + 2 {
                    let quants = quants.map(|q| q.add(16 * i));
                    let weights = panel.quants.add(i * 16 * 16);
                    let scales = panel.scales.add(16 * i).cast::<__m256i>();
                    let scales = [_mm256_load_si256(scales), _mm256_load_si256(scales.add(1))];
                    dots = group::<P, L, T, 4>(weights, quants, dots, scales);
                }
                let super_scales = halves(panel.super_scales.add(16 * (g / 8)));
                add_scaled::<T>(super_scales, dots, acts, at + g, &mut sums);
            }
            for i in 2 * g..2 * g + 2 {
                if !L::INTEGER_SCALES {
                    let quants = quants.map(|q| q.add(16 * i));
                    let initial = initial_sums::<L, T>(panel, acts, first, i, i..i + 1);
                    let weights = panel.quants.add(i * 16 * 16);
                    let dots = group::<P, L, T, 4>(weights, quants, initial, ones);
                    let scales = halves(panel.scales.add(16 * i));
                    add_scaled::<T>(scales, dots, acts, at + g, &mut sums);
                }
                if L::MIN {
                    let mins = halves(panel.mins.add(16 * i));
                    let act_sums = acts.half_sums.add(2 * at + i);
                    add_mins::<T>(mins, act_sums, 2 * acts.group_stride, &mut sums);
                }
            }
        }
    }
    sums
}

/// Initial values of a group's integer sums, which make up for signs or for the zero point. `halves` are the
/// group's runs of 16 elements.
///
/// # Safety
/// As [`tile`]; the panel and the tokens have the group.
#[inline(always)]
unsafe fn initial_sums<L: PanelLayout, const T: usize>(
    panel: &Panel,
    acts: &RawRows,
    first: usize,
    group: usize,
    halves: Range<usize>,
) -> [[__m256i; 2]; T] {
    // SAFETY: the caller has AVX2. A panel of signed bytes has 16 aligned sums for each group; each token has
    // a zero-point sum for each 16 elements.
    unsafe {
        if L::SIGNED {
            let sums = panel.negative_sums.add(16 * group).cast::<__m256i>();
            return [[_mm256_load_si256(sums), _mm256_load_si256(sums.add(1))]; T];
        }
        let Some(zero_point) = L::ZERO_POINT else {
            return [[_mm256_setzero_si256(); 2]; T];
        };
        std::array::from_fn(|t| {
            let sums = acts
                .zero_point_sums
                .add(2 * (first + t) * acts.group_stride);
            let mut sum = _mm256_set1_epi32(*sums.add(halves.start));
            if halves.len() == 2 {
                sum = _mm256_add_epi32(sum, _mm256_set1_epi32(*sums.add(halves.start + 1)));
            }
            // The sums are for a zero point of 128.
            let bits = _mm_cvtsi32_si128((7 - zero_point.ilog2()) as i32);
            [_mm256_sra_epi32(sum, bits); 2]
        })
    }
}

/// Adds the products of a group, with its scales and those of the activations, to the sums.
///
/// # Safety
/// Needs AVX2 and FMA; `act_group` is the index of the group's scale in the row of the first of `T` tokens.
#[inline(always)]
unsafe fn add_scaled<const T: usize>(
    scales: [__m256; 2],
    dots: [[__m256i; 2]; T],
    acts: &RawRows,
    act_group: usize,
    sums: &mut [[__m256; 2]; T],
) {
    // SAFETY: the caller has AVX2 and FMA, and each token's scale of the group lies `group_stride` after the
    // one before.
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
/// Needs AVX2 and FMA; `act_sums` points to the group's sum of the first of `T` tokens, and the following
/// tokens' sums are `stride` floats apart.
#[inline(always)]
unsafe fn add_mins<const T: usize>(
    mins: [__m256; 2],
    act_sums: *const f32,
    stride: usize,
    sums: &mut [[__m256; 2]; T],
) {
    // SAFETY: the caller has AVX2 and FMA, and there are `T` sums, `stride` apart.
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
pub(crate) struct RowScalePanel(pub(crate) Panel);

// SAFETY: `tile` reads only inside the panel and inside the rows of the tokens.
unsafe impl<P: Int8Dot> TileKernel<P> for RowScalePanel {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        prefetcher: &mut Prefetcher,
    ) -> [[__m256; 2]; T] {
        // VNNI ignores the signs of this layout: its panels are unsigned.
        type Signed = MaddubsLayout<Q8_0>;
        // SAFETY: AVX2 and FMA are enabled here. Groups run to `acts.k / 32`, and the panel and each token's
        // row have as many; a row of either has at least one scale.
        unsafe {
            let quants: [*const i8; T] =
                std::array::from_fn(|t| acts.quants.add((first + t) * acts.quant_stride));
            let ones = [_mm256_set1_epi16(1); 2];
            let mut sums: [[__m256i; 2]; T] = std::array::from_fn(|t| {
                // VNNI's panels are offset by 128, which comes off first.
                let offset = if P::HAS_VNNI { ZERO_POINT } else { 0 };
                [_mm256_set1_epi32(offset * *acts.totals.add(first + t)); 2]
            });
            for g in 0..acts.k / 32 {
                prefetcher.prefetch();
                let weights = self.0.quants.add(g * 32 * 16);
                let initial = match P::HAS_VNNI {
                    true => [[_mm256_setzero_si256(); 2]; T],
                    false => initial_sums::<Signed, T>(&self.0, acts, first, g, 2 * g..2 * g + 2),
                };
                let quants = quants.map(|q| q.add(32 * g));
                let dots = group::<P, Signed, T, 8>(weights, quants, initial, ones);
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

/// Adds integer products over `STEPS` × 4 elements to `wide`: of 16 rows in two halves with each token, times
/// the `factors` of the rows (an `i16` twice for each).
///
/// `vpmaddubsw` needs one unsigned operand. For signed weights that is the magnitude. Where a weight is
/// negative, the bits of the activation `a` are inverted, which makes it `−a − 1` instead of `−a`, so that
/// the sum is too small by the magnitudes of all negative weights ([`Panel::negative_sums`]). The instruction
/// that negates exactly (`vpsignb`) would compete with the multiplications for a port.
///
/// # Safety
/// Needs AVX2 and the instructions of `P`; `weights` has `STEPS` × 64 bytes, aligned to 32, and each token
/// `STEPS` × 4.
#[inline(always)]
unsafe fn group<P: Int8Dot, L: PanelLayout, const T: usize, const STEPS: usize>(
    weights: *const u8,
    quants: [*const i8; T],
    mut wide: [[__m256i; 2]; T],
    factors: [__m256i; 2],
) -> [[__m256i; 2]; T] {
    // SAFETY: the caller has AVX2 and the instructions of `P`; step `s` reads 64 bytes of weights from `64 ·
    // s` on, and four of each token from `4 · s` on.
    unsafe {
        let zero = _mm256_setzero_si256();
        let (depth, signed) = (L::DEPTH, L::SIGNED);
        if depth == 2 && !signed {
            // 16 bits hold the sums of two steps, which are computed together.
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
                        wide[t][h] = pin(_mm256_add_epi32(wide[t][h], widened));
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
                    if P::HAS_VNNI {
                        wide[t][h] = P::dot4(wide[t][h], weight[h], act);
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
                        narrow[t][h] = pin(narrow[t][h]);
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

/// Returns the vector unchanged, but forces it into a register at this point of the program. Otherwise the
/// compiler adds up a whole group token by token, which needs more registers than there are and loads the
/// weights again for each token.
///
/// # Safety
/// Needs AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn pin(mut vector: __m256i) -> __m256i {
    // SAFETY: the assembly is only a comment, which changes nothing.
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
    // SAFETY: the caller has AVX2 and 16 floats from `p` on, aligned to 32 bytes.
    unsafe { [_mm256_load_ps(p), _mm256_load_ps(p.add(8))] }
}
