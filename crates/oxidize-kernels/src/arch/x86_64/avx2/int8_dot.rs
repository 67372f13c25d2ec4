//! [`Int8Dot`]: the integer dot product instructions, in which the sets that share AVX2's kernels differ.

use std::arch::x86_64::*;

/// Form of a panel's bytes that an instruction multiplies.
pub(crate) trait PanelBytes {
    /// True if one instruction adds up four products of bytes.
    const HAS_VNNI: bool;

    /// With [`PanelBytes::HAS_VNNI`], the byte that stands for 0 in panels of symmetric weights. Most
    /// instructions take unsigned weights, so that `q` is stored as `q + 128`.
    const ZERO_POINT: u8 = 128;
}

/// Integer dot products in registers of 256 bits.
///
/// # Safety
/// The methods need AVX2, and the instructions that the implementation names.
pub(crate) unsafe trait Int8Dot: PanelBytes {
    /// Adds to each of eight lanes the products of four unsigned weights with four activations. Without
    /// [`PanelBytes::HAS_VNNI`], the sum of two products must fit into 16 bits.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn dot4(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i;

    /// Adds to each of eight lanes the products of two 16-bit integers with two.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn add_pairs(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i;
}

/// AVX2: products of bytes are added in 16 bits (`vpmaddubsw`), and those sums in 32 (`vpmaddwd`).
pub(crate) struct Widening;

impl PanelBytes for Widening {
    const HAS_VNNI: bool = false;
}

// SAFETY: the methods need AVX2 only.
unsafe impl Int8Dot for Widening {
    #[inline(always)]
    unsafe fn dot4(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2; the instructions work on registers only.
        unsafe {
            let pairs = _mm256_maddubs_epi16(weights, acts);
            Self::add_pairs(sum, pairs, _mm256_set1_epi16(1))
        }
    }

    #[inline(always)]
    unsafe fn add_pairs(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has AVX2; the instructions work on registers only.
        unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(weights, acts)) }
    }
}
