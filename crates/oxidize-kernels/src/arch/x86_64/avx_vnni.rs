//! AVX-VNNI: AVX2's kernels with the integer dot product instructions of AVX-512 VNNI, on processors without
//! AVX-512.

use std::arch::asm;
use std::arch::x86_64::__m256i;

use super::avx2;
use super::avx2::gemm::Matmul256;
use super::avx2::int8_dot::{Int8Dot, PanelBytes};
use super::{AvxVnni, matmul};
use crate::table::{Functions, Isa, Kernels};

/// The table of kernels; the witness proves that the machine has the instructions.
pub(crate) fn kernels(_witness: AvxVnni) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::AvxVnni,
        functions: Functions {
            matmul: matmul::matmul::<Matmul256<VexVnni>>,
            ..avx2::FUNCTIONS
        },
    };
    &KERNELS
}

/// `vpdpbusd` and `vpdpwssd` in their VEX encoding, which needs no AVX-512.
///
/// In assembly, because the intrinsics are inlined only into functions compiled for AVX-VNNI, which would
/// mean a second copy of AVX2's functions.
struct VexVnni;

impl PanelBytes for VexVnni {
    const HAS_VNNI: bool = true;
}

// SAFETY: the methods need AVX2 and AVX-VNNI.
unsafe impl Int8Dot for VexVnni {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn dot4(mut sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has AVX-VNNI; the instruction works on registers only, and ymm registers need
        // AVX2.
        unsafe {
            asm!("{{vex}} vpdpbusd {sum}, {weights}, {acts}",
                sum = inout(ymm_reg) sum, weights = in(ymm_reg) weights, acts = in(ymm_reg) acts,
                options(pure, nomem, nostack, preserves_flags));
        }
        sum
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add_pairs(mut sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has AVX-VNNI; the instruction works on registers only.
        unsafe {
            asm!("{{vex}} vpdpwssd {sum}, {weights}, {acts}",
                sum = inout(ymm_reg) sum, weights = in(ymm_reg) weights, acts = in(ymm_reg) acts,
                options(pure, nomem, nostack, preserves_flags));
        }
        sum
    }
}
