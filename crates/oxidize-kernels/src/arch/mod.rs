//! SIMD versions of the operations, one folder an instruction set.
//!
//! Each folder has a witness type that only exists where the machine has the instructions, and gives
//! its table of kernels in exchange for it.

use crate::table::{Isa, Kernels};

/// The kernels of an instruction set, if this machine has it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    match isa {
        Isa::Scalar => Some(&crate::table::SCALAR),
        _ => None,
    }
}
