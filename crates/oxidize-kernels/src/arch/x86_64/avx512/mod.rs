//! AVX-512 with VNNI.

use super::Avx512;
use crate::table::Kernels;

/// The table, for a machine that has the instructions.
pub(crate) fn kernels(_witness: Avx512) -> Option<&'static Kernels> {
    None
}
