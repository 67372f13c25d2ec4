//! Conversions between `f32` and the 16-bit floats, and rows of the key-value cache.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::slices::{load, store};
use crate::ops::attention::{self, KvType};
use crate::ops::convert;

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn f32_to_f16(x: &[f32], out: &mut [f16]) {
    let (vectors, rest) = x.as_chunks::<8>();
    let (out_vectors, out_rest) = out.as_chunks_mut::<8>();
    for (x, out) in vectors.iter().zip(out_vectors) {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load(x));
        // SAFETY: the array has eight elements of two bytes; AVX2 is enabled here.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), halves) };
    }
    convert::f32_to_f16(rest, out_rest);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn f16_to_f32(x: &[f16], out: &mut [f32]) {
    let (vectors, rest) = x.as_chunks::<8>();
    let (out_vectors, out_rest) = out.as_chunks_mut::<8>();
    for (x, out) in vectors.iter().zip(out_vectors) {
        // SAFETY: the array has eight elements of two bytes; AVX2 is enabled here.
        let halves = unsafe { _mm_loadu_si128(x.as_ptr().cast()) };
        store(out, _mm256_cvtph_ps(halves));
    }
    convert::f16_to_f32(rest, out_rest);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn f32_to_bf16(x: &[f32], out: &mut [bf16]) {
    let (vectors, rest) = x.as_chunks::<8>();
    let (out_vectors, out_rest) = out.as_chunks_mut::<8>();
    for (x, out) in vectors.iter().zip(out_vectors) {
        let x = load(x);
        let bits = _mm256_castps_si256(x);
        // Rounds to nearest even: adds just under a half, or a half if the kept part is odd.
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_add_epi32(bits, bias);
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        let kept = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
        let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(kept, kept));
        // SAFETY: the array has eight elements of two bytes; AVX2 is enabled here.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_castsi256_si128(packed)) };
    }
    convert::f32_to_bf16(rest, out_rest);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn bf16_to_f32(x: &[bf16], out: &mut [f32]) {
    let (vectors, rest) = x.as_chunks::<8>();
    let (out_vectors, out_rest) = out.as_chunks_mut::<8>();
    for (x, out) in vectors.iter().zip(out_vectors) {
        // SAFETY: the array has eight elements of two bytes; AVX2 is enabled here.
        let wide = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(x.as_ptr().cast()) });
        store(out, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)));
    }
    convert::bf16_to_f32(rest, out_rest);
}

/// See [`crate::Kernels::store_kv`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store_kv(ty: KvType, x: &[f32], out: &mut [u8]) {
    if ty != KvType::F16 {
        return attention::store_kv(ty, x, out);
    }
    let (vectors, rest) = x.as_chunks::<8>();
    let (out_vectors, out_rest) = out.as_chunks_mut::<16>();
    for (x, out) in vectors.iter().zip(out_vectors) {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load(x));
        // SAFETY: the array has 16 bytes; AVX2 is enabled here.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), halves) };
    }
    attention::store_kv(ty, rest, out_rest);
}
