//! Mapping from tensor types to the quantized formats of an instruction set.

/// Evaluates `$body` with `$F` as the format of a tensor type in `$module`, or `$none` for a type without a
/// format.
macro_rules! with_format_of {
    ($($module:ident)::+, $ty:expr, $F:ident => $body:expr, $none:expr) => {{
        use $($module)::+::*;
        use $crate::quant::TensorType;
        macro_rules! arm {
            ($format:ty) => {{
                type $F = $format;
                $body
            }};
        }
        match $ty {
            TensorType::Q4_0 => arm!(Q4_0),
            TensorType::Q4_1 => arm!(Q4_1),
            TensorType::Q5_0 => arm!(Q5_0),
            TensorType::Q5_1 => arm!(Q5_1),
            TensorType::Q8_0 | TensorType::INT8 => arm!(Q8_0),
            TensorType::Q2_K => arm!(Q2K),
            TensorType::Q3_K => arm!(Q3K),
            TensorType::Q4_K => arm!(Q4K),
            TensorType::Q5_K => arm!(Q5K),
            TensorType::Q6_K => arm!(Q6K),
            TensorType::IQ1_S => arm!(Iq1S),
            TensorType::IQ1_M => arm!(Iq1M),
            TensorType::IQ2_XXS => arm!(Iq2Xxs),
            TensorType::IQ2_XS => arm!(Iq2Xs),
            TensorType::IQ2_S => arm!(Iq2S),
            TensorType::IQ3_XXS => arm!(Iq3Xxs),
            TensorType::IQ3_S => arm!(Iq3S),
            TensorType::IQ4_NL => arm!(Iq4Nl),
            TensorType::IQ4_XS => arm!(Iq4Xs),
            TensorType::TQ1_0 => arm!(Tq1_0),
            TensorType::TQ2_0 => arm!(Tq2_0),
            TensorType::MXFP4 => arm!(Mxfp4),
            TensorType::NVFP4 => arm!(Nvfp4),
            TensorType::IQ1_S_REPACKED => arm!(Iq1SRepacked),
            TensorType::IQ1_M_REPACKED => arm!(Iq1MRepacked),
            TensorType::IQ2_XXS_REPACKED => arm!(Iq2XxsRepacked),
            TensorType::IQ2_S_REPACKED => arm!(Iq2SRepacked),
            TensorType::IQ3_XXS_REPACKED => arm!(Iq3XxsRepacked),
            TensorType::IQ3_S_REPACKED => arm!(Iq3SRepacked),
            _ => $none,
        }
    }};
}
pub(crate) use with_format_of;
