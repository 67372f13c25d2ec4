//! Dispatch of the matrix product, shared by the x86-64 instruction sets: the type of the weight and the
//! format of the activations choose a kernel, and each set supplies its kernels as a [`MatmulIsa`].

use super::avx2::dot::GEMV_TOKENS;
use super::avx2::float::{Bf16, F16};
use super::avx2::format::Format;
use super::avx2::formats::with_format;
use super::avx2::gemm_i16::QuantizeI16;
use super::avx512::formats::GemvFormat;
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, Scratch, WeightRows};
use crate::out::TileMut;
use crate::quant::TensorType;

/// Matrix product kernels of an instruction set.
///
/// # Safety
/// Every method needs the instructions that its implementation names, and shapes that
/// [`crate::Kernels::matmul`] has checked: `acts` has rows of `weight.k()` elements, and `out` a row for each
/// of them and a column for each row of the weight. A method with a format parameter needs a weight of that
/// format, and activations in the format that it names.
pub(crate) unsafe trait MatmulIsa {
    /// Products with few tokens, in 8-bit integers, straight from the stored blocks.
    ///
    /// # Safety
    /// See the trait; `acts` holds 8-bit integers.
    unsafe fn gemv<F: GemvFormat>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
    );

    /// Products with many tokens, in 8-bit integers, from panels of unpacked rows.
    ///
    /// # Safety
    /// See the trait; `acts` holds 8-bit integers.
    unsafe fn gemm<F: Format>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    );

    /// Products of 16-bit floats with many tokens, in 16-bit integers.
    ///
    /// # Safety
    /// See the trait; `acts` holds 16-bit integers.
    unsafe fn gemm_i16<F: QuantizeI16>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    );

    /// Products in floats: for weights of any type.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn matmul_f32(
        weight: WeightRows<'_>,
        acts: &Activations<'_>,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    );
}

/// See [`crate::Kernels::matmul`].
///
/// # Safety
/// The machine has the instructions of `I`, and the shapes fit together as [`MatmulIsa`] says.
pub(crate) unsafe fn matmul<I: MatmulIsa>(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller has the instructions of `I`; `acts` has rows of `weight.k()` elements, and `out` is
    // `acts.rows()` × `weight.rows()`. Each arm runs the format that the weight's type names, on activations
    // of the integer width it matched.
    unsafe {
        match (weight.ty(), acts.quantized_i8(), acts.quantized_i16()) {
            (TensorType::F16, _, Some(acts)) => {
                I::gemm_i16::<F16>(weight, acts, epilogue, out, scratch);
            }
            (TensorType::BF16, _, Some(acts)) => {
                I::gemm_i16::<Bf16>(weight, acts, epilogue, out, scratch);
            }
            (ty, Some(quantized), _) => with_format!(
                ty,
                F => match acts.uses_gemv(GEMV_TOKENS) {
                    true => I::gemv::<F>(weight, quantized, epilogue, out),
                    false => I::gemm::<F>(weight, quantized, epilogue, out, scratch),
                },
                I::matmul_f32(weight, acts, epilogue, out, scratch)
            ),
            _ => I::matmul_f32(weight, acts, epilogue, out, scratch),
        }
    }
}
