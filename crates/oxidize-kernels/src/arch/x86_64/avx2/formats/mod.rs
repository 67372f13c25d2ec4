//! The quantized formats, each as a [`super::format::Format`]; one file per family.

mod codebook;
mod grid;
mod k_quants;
mod legacy;
mod repacked;
mod ternary;

pub(crate) use codebook::{Iq4Nl, Iq4Xs, Mxfp4, Nvfp4};
pub(crate) use grid::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub(crate) use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use repacked::{
    IQ2_LEVELS, IQ3_XXS_SHIFTED, Iq1MRepacked, Iq1SRepacked, Iq2SRepacked, Iq2XxsRepacked,
    Iq3SRepacked, Iq3XxsRepacked, REPACKED_OFFSET,
};
pub(crate) use ternary::{Tq1_0, Tq2_0};

/// Evaluates `$body` with `$F` as the [`super::format::Format`] of a tensor type, or `$none` for a type
/// without one.
macro_rules! with_format {
    ($ty:expr, $F:ident => $body:expr, $none:expr) => {
        $crate::arch::formats::with_format_of!(
            crate::arch::x86_64::avx2::formats, $ty, $F => $body, $none
        )
    };
}
pub(crate) use with_format;

#[cfg(test)]
mod tests {
    use super::super::format::{CHUNK, Format};
    use crate::quant::TensorType;

    #[test]
    fn chunk_bytes_match_tensor_types() {
        for ty in TensorType::all() {
            let bytes = with_format!(ty, F => Some(F::CHUNK_BYTES as u64), None);
            if let Some(bytes) = bytes {
                assert_eq!(ty.bytes_for(CHUNK as u64), Some(bytes), "{ty}");
            }
        }
    }
}
