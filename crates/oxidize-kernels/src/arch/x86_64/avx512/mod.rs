//! AVX-512 with VNNI: matrix products, attention, quantization of weights and softmax weights of logits. The
//! other operations are AVX2's.

mod attention;
mod dot;
mod exp_sum;
mod float;
pub(super) mod formats;
pub(super) mod gemm;
mod gemm_i16;
mod quantize_weights;
mod tile;

use std::arch::x86_64::{__m256i, _mm256_dpbusd_epi32, _mm256_dpwssd_epi32};

use super::Avx512;
use super::avx2;
use super::avx2::int8_dot::{Int8Dot, PanelBytes};
use super::matmul;
use crate::table::{Functions, Isa, Kernels};
use gemm::Matmul512;

/// The table of kernels; the witness proves that the machine has the instructions.
pub(crate) fn kernels(_witness: Avx512) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::Avx512,
        functions: FUNCTIONS,
    };
    &KERNELS
}

/// Functions of the table, from which AMX takes those it does not replace.
pub(super) const FUNCTIONS: Functions = Functions {
    quantize_weights: quantize_weights::quantize_weights,
    refine_codes: quantize_weights::refine_codes,
    matmul: matmul::matmul::<Matmul512>,
    attention_part: attention::attention_part,
    exp_sum: exp_sum::exp_sum,
    ..avx2::FUNCTIONS
};

/// VNNI in registers of 256 bits, for kernels that are AVX2's.
pub(crate) struct Vnni;

impl PanelBytes for Vnni {
    const HAS_VNNI: bool = true;
}

// SAFETY: the methods need AVX-512 VL and VNNI.
unsafe impl Int8Dot for Vnni {
    #[inline(always)]
    unsafe fn dot4(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has AVX-512 VL and VNNI; the instruction works on registers only.
        unsafe { _mm256_dpbusd_epi32(sum, weights, acts) }
    }

    #[inline(always)]
    unsafe fn add_pairs(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has AVX-512 VL and VNNI; the instruction works on registers only.
        unsafe { _mm256_dpwssd_epi32(sum, weights, acts) }
    }
}
