//! The formats whose rows are multiplied faster in registers of 512 bits, each as a
//! [`Format512`](super::dot::Format512), and the choice of registers for every format ([`GemvFormat`]). One
//! file per family, as in AVX2's `formats/`.

mod grid;
mod linear;
mod repacked;

pub(crate) use grid::{Iq2Xxs, Iq3Xxs};
pub(crate) use linear::{Q4_0, Q4_1, Q4K, Q6K};
pub(crate) use repacked::{
    Iq1MRepacked, Iq1SRepacked, Iq2SRepacked, Iq2XxsRepacked, Iq3SRepacked, Iq3XxsRepacked,
};

use super::super::avx2::dot::{Dot256, RowDot};
use super::super::avx2::format::Format;
use super::super::avx2::formats as avx2;
use super::Vnni;
use super::dot::Dot512;

/// A format with a dot product for AVX-512.
pub(crate) trait GemvFormat: Format {
    /// The dot product of its rows: in 512 bits if the format is a [`Format512`](super::dot::Format512), else
    /// in 256.
    type Dot: RowDot;
}

macro_rules! in_512_bits {
    ($($name:ident)*) => {$(
        impl GemvFormat for avx2::$name {
            type Dot = Dot512<$name>;
        }
    )*};
}

macro_rules! in_256_bits {
    ($($name:ident)*) => {$(
        impl GemvFormat for avx2::$name {
            type Dot = Dot256<avx2::$name, Vnni>;
        }
    )*};
}

in_512_bits! {
    Q4_0 Q4_1 Q4K Q6K Iq2Xxs Iq3Xxs
    Iq1SRepacked Iq1MRepacked Iq2XxsRepacked Iq2SRepacked Iq3XxsRepacked Iq3SRepacked
}

in_256_bits! {
    Q5_0 Q5_1 Q8_0 Q2K Q3K Q5K Iq1S Iq1M Iq2Xs Iq2S Iq3S Iq4Nl Iq4Xs Tq1_0 Tq2_0 Mxfp4 Nvfp4
}
