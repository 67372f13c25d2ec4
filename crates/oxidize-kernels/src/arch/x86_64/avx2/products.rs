//! [`Products`]: the step of the integer kernels in which the instruction sets that share them differ.

use std::arch::x86_64::*;

/// What bytes of weights a multiplication wants.
pub(crate) trait Bytes {
    /// Whether one instruction adds up four products of bytes.
    const FOURS: bool;

    /// With [`Bytes::FOURS`], the byte that stands for 0 in panels of weights that are a scale times an integer. Most
    /// instructions want weights without a sign, so that those are multiplied as `q + 128`.
    const CENTRE: u8 = 128;
}

/// How integers are multiplied in registers of 256 bits.
///
/// # Safety
/// The methods need AVX2, and what else the implementation says.
pub(crate) unsafe trait Products: Bytes {
    /// Adds to each of eight lanes the products of four weights without a sign with four activations. Without
    /// [`Bytes::FOURS`], those of two must fit into 16 bits.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn add_fours(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i;

    /// Adds to each of eight lanes the products of two words with two.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn add_pairs(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i;
}

/// AVX2's own: bytes to pairs of 16 bits (`vpmaddubsw`), and those to 32 (`vpmaddwd`).
pub(crate) struct Widening;

impl Bytes for Widening {
    const FOURS: bool = false;
}

// SAFETY: needs nothing else.
unsafe impl Products for Widening {
    #[inline(always)]
    unsafe fn add_fours(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe {
            let pairs = _mm256_maddubs_epi16(weights, acts);
            Self::add_pairs(sum, pairs, _mm256_set1_epi16(1))
        }
    }

    #[inline(always)]
    unsafe fn add_pairs(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(weights, acts)) }
    }
}
