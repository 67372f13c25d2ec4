//! Attention over the paged cache, a chunk of keys at a time.
//!
//! The scores of a chunk are computed for all queries, become weights by the online softmax (`softmax.rs`)
//! and are multiplied with its values. Few queries, as in decoding, are multiplied with the rows as they are
//! read (`stream.rs`); many queries share a chunk that was converted to floats (`blocked.rs`).

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

/// Number of queries from which on it is faster to convert a chunk first.
const BLOCKED_QUERIES: usize = 24;

/// See [`crate::Kernels::attention_part`].
///
/// # Safety
/// Needs AVX2, FMA and F16C; [`AttentionArgs::check`] has passed, `keys` end at [`AttentionArgs::end`] at
/// most, and `part` has [`AttentionArgs::part_len`] elements.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn attention_part(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    // SAFETY: AVX2, FMA and F16C are enabled here, which is all that `__m256` and `float::multiply` need.
    // `AttentionArgs::check` has passed, so queries, keys and values have the lengths that `args` states;
    // `keys` end at `args.end()` at most, and `part` has `args.part_len()` elements.
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
/// As [`attention_part`], and the machine has the instructions of `V` and `multiply`.
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
    // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `V` and `multiply`, and checked
    // arguments. Keys and values have a multiple of eight elements, and the registers of `V` are only used if
    // their lanes divide both.
    unsafe {
        if args.tokens() * args.heads >= BLOCKED_QUERIES {
            blocked::run::<R, T>(args, keys, part, scratch, multiply);
        } else if kv.k_dim.is_multiple_of(V::LANES) && kv.v_dim.is_multiple_of(V::LANES) {
            stream::<V>(args, keys, part, scratch);
        } else {
            stream::<__m256>(args, keys, part, scratch);
        }
    }
}

/// # Safety
/// As [`attention`], with keys and values of whole vectors `V`.
#[inline(always)]
unsafe fn stream<V: StreamVector>(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    // SAFETY: the caller has AVX2, FMA, F16C and the instructions of `V`. Keys and values have a multiple of
    // `V::LANES` elements, `keys` end at `args.end()` at most, `part` has `args.part_len()` elements, and each
    // arm reads the element types that the cache has.
    unsafe {
        match (args.kv.k_ty, args.kv.v_ty) {
            (KvType::F32, KvType::F32) => stream::run::<F32, V>(args, keys, part, scratch),
            (KvType::F16, KvType::F16) => stream::run::<F16, V>(args, keys, part, scratch),
            _ => stream::run_converted::<V>(args, keys, part, scratch),
        }
    }
}

/// Ranges of at most `size` keys, from the first key that is visible to some token on.
fn chunks(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    size: usize,
) -> impl Iterator<Item = Range<usize>> {
    let visible = args.visible.iter().filter(|range| !range.is_empty());
    let start = visible
        .map(|range| range.start as usize)
        .min()
        .unwrap_or(0)
        .max(keys.start);
    let starts = (start..keys.end).step_by(size);
    starts.map(move |first| first..keys.end.min(first + size))
}
