//! Quantization of weights: the reference code, compiled for AVX-512.

use crate::quant::{self, SecondMoment, TensorType};

/// See [`crate::Kernels::quantize_weights`].
///
/// # Safety
/// Needs AVX-512 F, BW, DQ and VL, and AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(crate) unsafe fn quantize_weights(
    ty: TensorType,
    src: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) {
    quant::quantize_weights(ty, src, importance, out);
}

/// See [`crate::Kernels::quantize_weights_compensated`].
///
/// # Safety
/// Needs AVX-512 F, BW, DQ and VL, and AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(crate) unsafe fn refine_codes(
    ty: TensorType,
    rows: &[f32],
    second_moment: &SecondMoment,
    out: &mut [u8],
) {
    quant::refine_codes(ty, rows, second_moment, out);
}
