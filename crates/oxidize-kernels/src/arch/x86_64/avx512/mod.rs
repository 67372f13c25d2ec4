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

use super::Avx512;
use super::avx2;
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
