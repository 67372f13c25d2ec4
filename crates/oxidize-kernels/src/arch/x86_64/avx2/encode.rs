//! Weights to blocks: the plain quantisers, compiled for AVX2.

use crate::quant::{self, Correlation, TensorType};

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

/// See [`crate::Kernels::encode_correlated`].
///
/// # Safety
/// Needs AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn settle(
    ty: TensorType,
    rows: &[f32],
    correlation: &Correlation,
    out: &mut [u8],
) {
    quant::settle(ty, rows, correlation, out);
}

/// See [`crate::Kernels::spell_out`].
///
/// # Safety
/// Needs AVX2; the lengths fit together.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn spell_out(ty: TensorType, src: &[u8], out: &mut [u8]) {
    quant::spell_out(ty, src, out);
}
