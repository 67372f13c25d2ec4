//! AVX2 with FMA and F16C.

mod activation;
pub(crate) mod attention;
mod convert;
pub(crate) mod dot;
pub(crate) mod float;
pub(crate) mod float_rows;
pub(crate) mod format;
pub(crate) mod formats;
pub(crate) mod gemm;
pub(crate) mod gemm_i16;
pub(crate) mod int8_dot;
mod math;
pub(crate) mod panel;
pub(crate) mod quantize;
mod quantize_weights;
mod row;
mod slices;
mod tile;
pub(crate) mod vector;

use super::{Avx2, matmul};
use crate::table::{Functions, Isa, Kernels};
use gemm::Matmul256;
use int8_dot::Widening;

/// The table of kernels; the witness proves that the machine has the instructions.
pub(crate) fn kernels(_witness: Avx2) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::Avx2,
        functions: FUNCTIONS,
    };
    &KERNELS
}

/// Functions of the table, from which other sets take those they do not replace.
pub(crate) const FUNCTIONS: Functions = Functions {
    quantize_weights: quantize_weights::quantize_weights,
    refine_codes: quantize_weights::refine_codes,
    repack: quantize_weights::repack,
    quantize_activation_row: quantize::quantize_activation_row,
    matmul: matmul::matmul::<Matmul256<Widening>>,
    attention_part: attention::attention_part,
    store_kv: convert::store_kv,
    rms_norm: row::rms_norm,
    layer_norm: row::layer_norm,
    softmax: row::softmax,
    rope: row::rope,
    activate: activation::activate,
    glu: activation::glu,
    add: row::add,
    mul: row::mul,
    scale: row::scale,
    add_scaled: row::add_scaled,
    softcap: row::softcap,
    dot: row::dot,
    argmax: row::argmax,
    exp_sum: row::exp_sum,
    sum: row::sum,
    f32_to_f16: convert::f32_to_f16,
    f16_to_f32: convert::f16_to_f32,
    f32_to_bf16: convert::f32_to_bf16,
    bf16_to_f32: convert::bf16_to_f32,
};
