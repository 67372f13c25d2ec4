//! AMX: matrix products of many tokens in tile registers; all the rest is AVX-512's.

mod matmul;
mod tile;

use std::arch::x86_64::__m256i;

use super::Amx;
use super::avx2::products::Products;
use super::avx512::{self, Vnni};
use crate::table::{Functions, Isa, Kernels};

/// The table, for a machine that has the instructions.
pub(crate) fn kernels(_witness: Amx) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::Amx,
        functions: Functions {
            matmul: matmul::matmul,
            ..avx512::FUNCTIONS
        },
    };
    &KERNELS
}

/// What panels are unpacked for: tiles multiply bytes with a sign.
struct Tiles;

// SAFETY: needs what VNNI needs.
unsafe impl Products for Tiles {
    const FOURS: bool = true;
    const CENTRE: u8 = 0;

    #[inline(always)]
    unsafe fn add_fours(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: as the caller says.
        unsafe { Vnni::add_fours(sum, weights, acts) }
    }

    #[inline(always)]
    unsafe fn add_pairs(sum: __m256i, weights: __m256i, acts: __m256i) -> __m256i {
        // SAFETY: as the caller says.
        unsafe { Vnni::add_pairs(sum, weights, acts) }
    }
}
