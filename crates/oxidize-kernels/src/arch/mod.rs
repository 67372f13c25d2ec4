//! SIMD versions of the operations, one folder an instruction set.
//!
//! Each set has a witness type that can only be had where the machine has the instructions, and
//! gives its table of kernels in exchange for it.

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

use crate::table::{Isa, Kernels, SCALAR};

/// The kernels of an instruction set, if this machine has it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    match isa {
        Isa::Scalar => Some(&SCALAR),
        #[cfg(target_arch = "x86_64")]
        isa => x86_64::kernels(isa),
        #[cfg(not(target_arch = "x86_64"))]
        _ => None,
    }
}
