//! The formats that are faster in registers of 512 bits, each as a [`WideFormat`](super::dot::WideFormat); one
//! file a family, as in AVX2's `formats/`.

mod grid;
mod linear;
mod spelled;

pub(crate) use grid::{Iq2Xxs, Iq3Xxs};
pub(crate) use linear::{Q4_0, Q4_1, Q4K, Q6K};
pub(crate) use spelled::{
    Iq1MSpelled, Iq1SSpelled, Iq2SSpelled, Iq2XxsSpelled, Iq3SSpelled, Iq3XxsSpelled,
};

/// Runs `$body` with `$P` being the [`RowProduct`](crate::arch::x86_64::avx2::dot::RowProduct) of a
/// tensor type, or `$none` for a type that has none.
macro_rules! with_product {
    ($ty:expr, $P:ident => $body:expr, $none:expr) => {{
        use $crate::arch::x86_64::avx2::dot::Narrow;
        use $crate::arch::x86_64::avx2::formats as narrow;
        use $crate::arch::x86_64::avx512::Vnni;
        use $crate::arch::x86_64::avx512::dot::Wide;
        use $crate::arch::x86_64::avx512::formats as wide;
        use $crate::quant::TensorType;
        macro_rules! arm {
            ($product:ty) => {{
                type $P = $product;
                $body
            }};
        }
        match $ty {
            TensorType::Q4_0 => arm!(Wide<wide::Q4_0>),
            TensorType::Q4_1 => arm!(Wide<wide::Q4_1>),
            TensorType::Q5_0 => arm!(Narrow<narrow::Q5_0, Vnni>),
            TensorType::Q5_1 => arm!(Narrow<narrow::Q5_1, Vnni>),
            TensorType::Q8_0 | TensorType::INT8 => arm!(Narrow<narrow::Q8_0, Vnni>),
            TensorType::Q2_K => arm!(Narrow<narrow::Q2K, Vnni>),
            TensorType::Q3_K => arm!(Narrow<narrow::Q3K, Vnni>),
            TensorType::Q4_K => arm!(Wide<wide::Q4K>),
            TensorType::Q5_K => arm!(Narrow<narrow::Q5K, Vnni>),
            TensorType::Q6_K => arm!(Wide<wide::Q6K>),
            TensorType::IQ1_S => arm!(Narrow<narrow::Iq1S, Vnni>),
            TensorType::IQ1_M => arm!(Narrow<narrow::Iq1M, Vnni>),
            TensorType::IQ2_XXS => arm!(Wide<wide::Iq2Xxs>),
            TensorType::IQ2_XS => arm!(Narrow<narrow::Iq2Xs, Vnni>),
            TensorType::IQ2_S => arm!(Narrow<narrow::Iq2S, Vnni>),
            TensorType::IQ3_XXS => arm!(Wide<wide::Iq3Xxs>),
            TensorType::IQ3_S => arm!(Narrow<narrow::Iq3S, Vnni>),
            TensorType::IQ4_NL => arm!(Narrow<narrow::Iq4Nl, Vnni>),
            TensorType::IQ4_XS => arm!(Narrow<narrow::Iq4Xs, Vnni>),
            TensorType::TQ1_0 => arm!(Narrow<narrow::Tq1_0, Vnni>),
            TensorType::TQ2_0 => arm!(Narrow<narrow::Tq2_0, Vnni>),
            TensorType::MXFP4 => arm!(Narrow<narrow::Mxfp4, Vnni>),
            TensorType::NVFP4 => arm!(Narrow<narrow::Nvfp4, Vnni>),
            TensorType::IQ1_S_SPELLED => arm!(Wide<wide::Iq1SSpelled>),
            TensorType::IQ1_M_SPELLED => arm!(Wide<wide::Iq1MSpelled>),
            TensorType::IQ2_XXS_SPELLED => arm!(Wide<wide::Iq2XxsSpelled>),
            TensorType::IQ2_S_SPELLED => arm!(Wide<wide::Iq2SSpelled>),
            TensorType::IQ3_XXS_SPELLED => arm!(Wide<wide::Iq3XxsSpelled>),
            TensorType::IQ3_S_SPELLED => arm!(Wide<wide::Iq3SSpelled>),
            _ => $none,
        }
    }};
}
pub(crate) use with_product;

#[cfg(test)]
mod tests {
    use crate::arch::x86_64::avx2::formats::with_format;
    use crate::quant::TensorType;

    #[test]
    fn every_format_has_a_product() {
        for ty in TensorType::all() {
            let has_format = with_format!(ty, F => size_of::<F>() == 0, false);
            let has_product = with_product!(ty, P => size_of::<P>() == 0, false);
            assert_eq!(has_format, has_product, "{ty}");
        }
    }
}
