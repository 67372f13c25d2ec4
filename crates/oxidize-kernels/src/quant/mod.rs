//! Every format a weight may be stored in: its layout, how it becomes floats and how floats become it.
//!
//! One file a format; [`TensorType`] is the registry of them all.

#![allow(non_camel_case_types, reason = "the formats' own spelling")]

/// Checks when compiling that a block has the size the format says and may lie at any address.
macro_rules! assert_layout {
    ($block:ty, $bytes:literal) => {
        const _: () = assert!(size_of::<$block>() == $bytes && align_of::<$block>() == 1);
    };
}

pub mod fields;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod nvfp4;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod q8_1;
pub mod q8_k;
pub mod tq1_0;
pub mod tq2_0;
mod types;

pub use types::TensorType;
