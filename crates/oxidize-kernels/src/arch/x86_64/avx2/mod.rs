//! AVX2 with FMA and F16C.

pub(crate) mod dot;
pub(crate) mod float;
pub(crate) mod format;
pub(crate) mod formats;
pub(crate) mod matmul;
pub(crate) mod panel;
pub(crate) mod quantize;
mod tile;

use super::Avx2;
use crate::table::{Functions, Isa, Kernels};

/// The table, for a machine that has the instructions.
pub(crate) fn kernels(_witness: Avx2) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::Avx2,
        functions: FUNCTIONS,
    };
    &KERNELS
}

/// The functions of the table.
pub(crate) const FUNCTIONS: Functions = Functions {
    quantize_row: quantize::quantize_row,
    matmul: matmul::matmul,
    ..crate::table::SCALAR_FUNCTIONS
};
