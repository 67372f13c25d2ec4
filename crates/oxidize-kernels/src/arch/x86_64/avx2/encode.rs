//! Weights to blocks: the plain quantisers, compiled for AVX2.

use crate::quant::{self, TensorType};

/// See [`crate::Kernels::encode`].
///
/// # Safety
/// Needs AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn encode(
    ty: TensorType,
    src: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) {
    quant::encode(ty, src, importance, out);
}
