//! Attention: the code of AVX2 with wider registers.

use std::arch::x86_64::__m512;
use std::ops::Range;

use super::super::avx2::attention::attention;
use super::float;
use crate::ops::attention::AttentionArgs;
use crate::ops::matmul::Scratch;

/// See [`crate::Kernels::attention_part`].
///
/// # Safety
/// Needs AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C; [`AttentionArgs::check`] has passed, `keys`
/// end at [`AttentionArgs::end`] at most, and `part` has [`AttentionArgs::part_len`] elements.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn attention_part(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    // SAFETY: the instructions of `__m512` and `float::multiply` are enabled here; the arguments are the
    // caller's.
    unsafe {
        attention::<__m512, { float::ROWS }, { float::TOKENS }>(
            args,
            keys,
            part,
            scratch,
            float::multiply,
        );
    }
}
