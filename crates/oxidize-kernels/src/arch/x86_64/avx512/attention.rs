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
    // SAFETY: AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C are enabled here, which is all that `__m512`
    // and `float::multiply` need. `AttentionArgs::check` has passed, so queries, keys and values have the
    // lengths that `args` states; `keys` end at `args.end()` at most, and `part` has `args.part_len()`
    // elements.
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
