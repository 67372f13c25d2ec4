//! AMX: matrix products of many tokens in tile registers. The other operations are AVX-512's.

mod gemm;
mod tile;

use super::avx2::int8_dot::PanelBytes;
use super::{Amx, avx512, matmul};
use crate::table::{Functions, Isa, Kernels};

/// The table of kernels; the witness proves that the machine has the instructions.
pub(crate) fn kernels(_witness: Amx) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::Amx,
        functions: Functions {
            matmul: matmul::matmul::<gemm::MatmulTiles>,
            ..avx512::FUNCTIONS
        },
    };
    &KERNELS
}

/// Panels of signed bytes, which tile registers multiply.
struct SignedBytes;

impl PanelBytes for SignedBytes {
    const HAS_VNNI: bool = true;
    const ZERO_POINT: u8 = 0;
}
