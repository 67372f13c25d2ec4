//! The quantized formats, each as a [`super::format::Format`]; one file per family.

mod codebook;
mod grid;
mod k_quants;
mod legacy;
mod levels;

pub(crate) use codebook::{Iq4Nl, Iq4Xs, Mxfp4};
pub(crate) use grid::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub(crate) use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K, Tq2_0};
pub(crate) use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use levels::{
    Iq1MRepacked, Iq1SRepacked, Iq2SRepacked, Iq2XxsRepacked, Iq3SRepacked, Iq3XxsRepacked, Nvfp4,
    Tq1_0,
};

/// Evaluates `$body` with `$F` as the [`super::format::Format`] of a tensor type, or `$none` for a type
/// without one.
macro_rules! with_format {
    ($ty:expr, $F:ident => $body:expr, $none:expr) => {
        $crate::arch::formats::with_format_of!(
            crate::arch::simd128::formats, $ty, $F => $body, $none
        )
    };
}
pub(crate) use with_format;
