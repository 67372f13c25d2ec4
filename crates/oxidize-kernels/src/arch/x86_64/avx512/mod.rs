//! AVX-512 with VNNI: matrix products, attention and encoding of its own; the rest is AVX2's.

mod attention;
mod dot;
mod encode;
mod float;
mod formats;
mod matmul;
mod tile;
mod words;

use super::Avx512;
use super::avx2::FUNCTIONS;
use crate::table::{Functions, Isa, Kernels};

/// The table, for a machine that has the instructions.
pub(crate) fn kernels(_witness: Avx512) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::Avx512,
        functions: Functions {
            encode: encode::encode,
            matmul: matmul::matmul,
            attention_part: attention::attention_part,
            ..FUNCTIONS
        },
    };
    &KERNELS
}
