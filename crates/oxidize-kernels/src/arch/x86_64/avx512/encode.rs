//! Weights to blocks: the plain quantisers, compiled for AVX-512.

use crate::quant::{self, Correlation, TensorType};

/// See [`crate::Kernels::encode`].
///
/// # Safety
/// Needs AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
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
/// Needs AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(crate) unsafe fn settle(
    ty: TensorType,
    rows: &[f32],
    correlation: &Correlation,
    out: &mut [u8],
) {
    quant::settle(ty, rows, correlation, out);
}
