//! Conversions between `f32` and the 16-bit floats, and rows of the key-value cache.

use half::f16;

use super::vector::F32x4;
use crate::ops::attention::{self, KvType};
use crate::ops::convert;

// The reference code for bfloat16 is integer arithmetic, which the compiler vectorizes.
pub(crate) use crate::ops::convert::{bf16_to_f32, f32_to_bf16};

pub(crate) fn f32_to_f16(x: &[f32], out: &mut [f16]) {
    let (vectors, rest) = x.as_chunks::<4>();
    let (out_vectors, out_rest) = out.as_chunks_mut::<4>();
    for (x, out) in vectors.iter().zip(out_vectors) {
        *out = F32x4::load(x).to_halves().map(f16::from_bits);
    }
    convert::f32_to_f16(rest, out_rest);
}

pub(crate) fn f16_to_f32(x: &[f16], out: &mut [f32]) {
    let (vectors, rest) = x.as_chunks::<4>();
    let (out_vectors, out_rest) = out.as_chunks_mut::<4>();
    for (x, out) in vectors.iter().zip(out_vectors) {
        F32x4::from_halves(x.map(f16::to_bits)).store(out);
    }
    convert::f16_to_f32(rest, out_rest);
}

/// See [`crate::Kernels::store_kv`].
pub(crate) fn store_kv(ty: KvType, x: &[f32], out: &mut [u8]) {
    if ty != KvType::F16 {
        return attention::store_kv(ty, x, out);
    }
    let (vectors, rest) = x.as_chunks::<4>();
    let (out_vectors, out_rest) = out.as_chunks_mut::<8>();
    for (x, out) in vectors.iter().zip(out_vectors) {
        *out = bytemuck::cast(F32x4::load(x).to_halves());
    }
    attention::store_kv(ty, rest, out_rest);
}
