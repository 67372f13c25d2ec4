//! AVX2 with FMA and F16C.

mod activation;
pub(crate) mod attention;
mod convert;
pub(crate) mod dot;
mod encode;
pub(crate) mod float;
pub(crate) mod float_rows;
pub(crate) mod format;
pub(crate) mod formats;
mod math;
pub(crate) mod matmul;
pub(crate) mod panel;
pub(crate) mod products;
pub(crate) mod quantize;
mod row;
mod slices;
mod tile;
pub(crate) mod vector;
pub(crate) mod words;

use super::Avx2;
use crate::table::{Functions, Isa, Kernels};
use products::Widening;

/// The table, for a machine that has the instructions.
pub(crate) fn kernels(_witness: Avx2) -> &'static Kernels {
    static KERNELS: Kernels = Kernels {
        isa: Isa::Avx2,
        functions: FUNCTIONS,
    };
    &KERNELS
}

/// The functions of the table.
pub(crate) const FUNCTIONS: Functions = Functions {
    encode: encode::encode,
    settle: encode::settle,
    spell_out: encode::spell_out,
    quantize_row: quantize::quantize_row,
    matmul: matmul::matmul::<Widening>,
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
    weigh: row::weigh,
    sum: row::sum,
    f32_to_f16: convert::f32_to_f16,
    f16_to_f32: convert::f16_to_f32,
    f32_to_bf16: convert::f32_to_bf16,
    bf16_to_f32: convert::bf16_to_f32,
};
