//! AVX-512 with VNNI: matrix products, attention, encoding and weights of logits of its own; the rest is AVX2's.

mod attention;
mod dot;
mod encode;
mod float;
mod formats;
pub(super) mod matmul;
mod tile;
mod weigh;
mod words;

use std::arch::x86_64::{__m256i, _mm256_dpbusd_epi32, _mm256_dpwssd_epi32};

use super::Avx512;
use super::avx2;
use super::avx2::products::{Bytes, Products};
use crate::table::{Functions, Isa, Kernels};

/// The table, for a machine that has the instructions.
pub(crate) fn kernels(_witness: Avx512) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::Avx512,
        functions: FUNCTIONS,
    };
    &KERNELS
}

/// The table's functions, for sets that add to this one.
pub(super) const FUNCTIONS: Functions = Functions {
    encode: encode::encode,
    settle: encode::settle,
    matmul: matmul::matmul,
    attention_part: attention::attention_part,
    weigh: weigh::weigh,
    ..avx2::FUNCTIONS
};

/// VNNI in registers of 256 bits, for what AVX2's code does here.
pub(super) struct Vnni;

impl Bytes for Vnni {
    const FOURS: bool = true;
}

// SAFETY: needs AVX-512 VL and VNNI.
unsafe impl Products for Vnni {
    #[inline(always)]
    unsafe fn add_fours(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has the instruction.
        unsafe { _mm256_dpbusd_epi32(sum, weights, acts) }
    }

    #[inline(always)]
    unsafe fn add_pairs(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has the instruction.
        unsafe { _mm256_dpwssd_epi32(sum, weights, acts) }
    }
}
