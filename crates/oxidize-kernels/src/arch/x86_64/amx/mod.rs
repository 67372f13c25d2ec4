//! AMX: matrix products of many tokens in tile registers; all the rest is AVX-512's.

mod matmul;
mod tile;

use super::Amx;
use super::avx2::products::Bytes;
use super::avx512;
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

impl Bytes for Tiles {
    const FOURS: bool = true;
    const CENTRE: u8 = 0;
}
