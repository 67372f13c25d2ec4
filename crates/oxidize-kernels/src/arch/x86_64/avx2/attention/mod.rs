//! Attention over the paged cache, a chunk of keys at a time.
//!
//! A chunk's scores are computed for all queries, turned into weights by the online softmax
//! (`softmax.rs`) and multiplied with its values. Few queries, as in decoding, multiply the stored
//! rows as they stream by (`stream.rs`); many queries share a converted chunk (`blocked.rs`).

mod blocked;
mod rows;
mod softmax;
mod stream;

use std::arch::x86_64::__m256;
use std::ops::Range;

use super::float::{self, F16, F32, Multiply};
use crate::ops;
use crate::ops::attention::{AttentionArgs, KvType};
use crate::ops::matmul::Scratch;
use stream::StreamVector;

/// From so many queries on, converting a chunk first is faster.
const BLOCKED_QUERIES: usize = 24;

/// See [`crate::Kernels::attention_part`].
///
/// # Safety
/// Needs AVX2, FMA and F16C; the arguments have been checked.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn attention_part(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller says.
    unsafe {
        attention::<__m256, { float::ROWS }, { float::TOKENS }>(
            args,
            keys,
            part,
            scratch,
            float::multiply,
        );
    }
}

/// # Safety
/// Needs AVX2, FMA and F16C, and what the vector and `multiply` need; the arguments have been checked.
#[inline(always)]
pub(crate) unsafe fn attention<V: StreamVector, const R: usize, const T: usize>(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
    multiply: Multiply<T>,
) {
    let kv = &args.kv;
    if !kv.k_dim.is_multiple_of(8) || !kv.v_dim.is_multiple_of(8) {
        return ops::attention::attention_part(args, keys, part, scratch);
    }
    for record in part.chunks_exact_mut(kv.v_dim + 2) {
        record.fill(0.0);
        record[0] = f32::NEG_INFINITY;
    }
    // SAFETY: as the caller says; rows are multiples of eight.
    unsafe {
        if args.tokens() * args.heads >= BLOCKED_QUERIES {
            blocked::run::<R, T>(args, keys, part, scratch, multiply);
        } else if kv.k_dim.is_multiple_of(V::LANES) && kv.v_dim.is_multiple_of(V::LANES) {
            few::<V>(args, keys, part, scratch);
        } else {
            few::<__m256>(args, keys, part, scratch);
        }
    }
}

/// # Safety
/// Needs AVX2, FMA and F16C, and what the vector needs; the arguments have been checked, and rows are whole vectors.
#[inline(always)]
unsafe fn few<V: StreamVector>(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller says; each arm reads the type that the cache has.
    unsafe {
        match (args.kv.k_ty, args.kv.v_ty) {
            (KvType::F32, KvType::F32) => stream::run::<F32, V>(args, keys, part, scratch),
            (KvType::F16, KvType::F16) => stream::run::<F16, V>(args, keys, part, scratch),
            _ => stream::run_converted::<V>(args, keys, part, scratch),
        }
    }
}

/// Ranges of at most `size` of the keys that some token sees.
fn chunks(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    size: usize,
) -> impl Iterator<Item = Range<usize>> {
    let seen = args.visible.iter().filter(|visible| !visible.is_empty());
    let start = seen
        .map(|visible| visible.start as usize)
        .min()
        .unwrap_or(0)
        .max(keys.start);
    let starts = (start..keys.end).step_by(size);
    starts.map(move |first| first..keys.end.min(first + size))
}
