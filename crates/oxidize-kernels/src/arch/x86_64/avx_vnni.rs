//! AVX-VNNI: AVX2's kernels with the instructions that multiply and add in one, as AVX-512 has them, on
//! processors without AVX-512.

use std::arch::asm;
use std::arch::x86_64::__m256i;

use super::AvxVnni;
use super::avx2::products::{Bytes, Products};
use super::avx2::{self, matmul};
use crate::table::{Functions, Isa, Kernels};

/// The table, for a machine that has the instructions.
pub(crate) fn kernels(_witness: AvxVnni) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::AvxVnni,
        functions: Functions {
            matmul: matmul::matmul::<Vex>,
            ..avx2::FUNCTIONS
        },
    };
    &KERNELS
}

/// `vpdpbusd` and `vpdpwssd` in their encoding without AVX-512.
///
/// The intrinsics could only be inlined into functions that are compiled for AVX-VNNI, of which there would
/// have to be as many as there are for AVX2.
struct Vex;

impl Bytes for Vex {
    const FOURS: bool = true;
}

// SAFETY: needs AVX-VNNI.
unsafe impl Products for Vex {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add_fours(mut sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: the caller has the instruction; it works on registers only.
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
        // SAFETY: as above.
        unsafe {
            asm!("{{vex}} vpdpwssd {sum}, {weights}, {acts}",
                sum = inout(ymm_reg) sum, weights = in(ymm_reg) weights, acts = in(ymm_reg) acts,
                options(pure, nomem, nostack, preserves_flags));
        }
        sum
    }
}
