//! SIMD versions of the operations: one directory per instruction set, and `simd128` for the code that sets
//! with registers of 128 bits share.
//!
//! Each set has a witness type, which exists only if the machine has the instructions, and returns its table
//! of kernels for the witness.

#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod aarch64;
#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_feature = "neon"),
    all(target_arch = "wasm32", target_feature = "simd128")
))]
mod coefficients;
#[cfg(any(
    target_arch = "x86_64",
    all(target_arch = "aarch64", target_feature = "neon"),
    all(target_arch = "wasm32", target_feature = "simd128")
))]
mod formats;
#[cfg(any(
    all(target_arch = "aarch64", target_feature = "neon"),
    all(target_arch = "wasm32", target_feature = "simd128")
))]
mod simd128;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm32;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

use crate::table::{Isa, Kernels, SCALAR};

/// Returns the kernels of an instruction set if this machine has it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    match isa {
        Isa::Scalar => Some(&SCALAR),
        #[cfg(target_arch = "x86_64")]
        isa => x86_64::kernels(isa),
        #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
        isa => aarch64::kernels(isa),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        isa => wasm32::kernels(isa),
        #[cfg(not(any(
            target_arch = "x86_64",
            all(target_arch = "aarch64", target_feature = "neon"),
            all(target_arch = "wasm32", target_feature = "simd128")
        )))]
        _ => None,
    }
}
