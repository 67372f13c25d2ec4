//! Attention over the paged cache, a chunk of keys at a time.
//!
//! The keys and values of a chunk are converted to floats, which all queries share. Its scores become weights
//! by the online softmax and are multiplied with its values.

use std::ops::Range;

use super::float::to_floats;
use super::math::{exp, tanh};
use super::vector::{F32x4, I32x4};
use crate::ops;
use crate::ops::attention::AttentionArgs;
use crate::ops::matmul::{Scratch, grown};

/// Keys of a chunk.
const CHUNK: usize = 64;

/// Queries that share the loads of keys and values.
const QUERIES: usize = 4;

/// Largest score so far, and sum of weights.
type Stats = [f32; 2];

/// See [`crate::Kernels::attention_part`].
pub(crate) fn attention_part(
    args: &AttentionArgs<'_>,
    keys: Range<usize>,
    part: &mut [f32],
    scratch: &mut Scratch,
) {
    let (k_dim, v_dim) = (args.kv.k_dim, args.kv.v_dim);
    if !k_dim.is_multiple_of(4) || !v_dim.is_multiple_of(4) {
        return ops::attention::attention_part(args, keys, part, scratch);
    }
    for record in part.chunks_exact_mut(v_dim + 2) {
        record.fill(0.0);
        record[0] = f32::NEG_INFINITY;
    }
    let buffer = grown(&mut scratch.floats, CHUNK * (k_dim + v_dim));
    let (k, v) = buffer.split_at_mut(CHUNK * k_dim);
    let visible = args.visible.iter().filter(|range| !range.is_empty());
    let first = visible.map(|range| range.start as usize).min();
    for start in (first.unwrap_or(0).max(keys.start)..keys.end).step_by(CHUNK) {
        let chunk = start..keys.end.min(start + CHUNK);
        let visible = |visible: &Range<u32>| {
            (visible.start as usize) < chunk.end && (visible.end as usize) > chunk.start
        };
        if !args.visible.iter().any(visible) {
            continue;
        }
        let rows = k.chunks_exact_mut(k_dim).zip(v.chunks_exact_mut(v_dim));
        for (key, (k, v)) in chunk.clone().zip(rows) {
            to_floats(args.kv.k_ty.tensor_type(), args.kv.key(key), k);
            to_floats(args.kv.v_ty.tensor_type(), args.kv.value(key), v);
        }
        let (k, v) = (&k[..chunk.len() * k_dim], &v[..chunk.len() * v_dim]);
        let queries = args.tokens() * args.heads;
        for first in (0..queries).step_by(QUERIES) {
            let last = (first + QUERIES).min(queries) - 1;
            let mut tokens = args.visible[first / args.heads..=last / args.heads].iter();
            if !tokens.any(visible) {
                continue;
            }
            let records = &mut part[first * (v_dim + 2)..(last + 1) * (v_dim + 2)];
            match last - first {
                0 => step::<1>(args, first, chunk.clone(), k, v, records),
                1 => step::<2>(args, first, chunk.clone(), k, v, records),
                2 => step::<3>(args, first, chunk.clone(), k, v, records),
                _ => step::<QUERIES>(args, first, chunk.clone(), k, v, records),
            }
        }
    }
}

/// One chunk for `N` queries from `first` on: scores, weights, weighted values.
fn step<const N: usize>(
    args: &AttentionArgs<'_>,
    first: usize,
    chunk: Range<usize>,
    k: &[f32],
    v: &[f32],
    records: &mut [f32],
) {
    let query = |i: usize| ((first + i) / args.heads, (first + i) % args.heads);
    let mut weights = [[0.0; CHUNK]; N];
    let queries: [&[[f32; 4]]; N] = std::array::from_fn(|i| {
        let (token, head) = query(i);
        args.query(token, head).as_chunks().0
    });
    scores(queries, k, &mut weights);
    let mut rescale = [1.0; N];
    let mut records = records.chunks_exact_mut(args.kv.v_dim + 2);
    let sums: [&mut [[f32; 4]]; N] = std::array::from_fn(|i| {
        let record = records
            .next()
            .and_then(|record| record.split_first_chunk_mut());
        let (stats, sums) = record.expect("a record for each query");
        rescale[i] = exp_sum(args, query(i), chunk.clone(), &mut weights[i], stats);
        sums.as_chunks_mut().0
    });
    values(sums, v, &weights, rescale);
}

/// Dot products of `N` queries with each key.
#[inline(always)]
fn scores<const N: usize>(queries: [&[[f32; 4]]; N], k: &[f32], out: &mut [[f32; CHUNK]; N]) {
    let dim = queries.first().map_or(0, |query| query.len());
    let queries = queries.map(|query| &query[..dim]);
    let mut key_pairs = k.as_chunks().0.chunks_exact(2 * dim);
    let mut write = |i: usize, sums: [F32x4; N]| {
        for (out, sum) in out.iter_mut().zip(sums) {
            out[i] = sum.sum();
        }
    };
    // Two keys share each load of a query.
    let mut i = 0;
    for pair in &mut key_pairs {
        let (a, b) = pair.split_at(dim);
        let mut sums = [[F32x4::splat(0.0); N]; 2];
        for (d, keys) in a.iter().zip(b).enumerate() {
            let keys: [F32x4; 2] = [keys.0, keys.1].map(F32x4::load);
            for n in 0..N {
                let query = F32x4::load(&queries[n][d]);
                for (sums, key) in sums.iter_mut().zip(keys) {
                    sums[n] = sums[n].add_product(key, query);
                }
            }
        }
        let [a, b] = sums;
        write(i, a);
        write(i + 1, b);
        i += 2;
    }
    let last = key_pairs.remainder();
    if !last.is_empty() {
        write(
            i,
            queries.map(|query| {
                let products = last.iter().zip(query);
                products.fold(F32x4::splat(0.0), |sum, (key, query)| {
                    sum.add_product(F32x4::load(key), F32x4::load(query))
                })
            }),
        );
    }
}

/// Adds the weighted values to `N` accumulators, each multiplied by its `rescale` first.
#[inline(always)]
fn values<const N: usize>(
    mut sums: [&mut [[f32; 4]]; N],
    v: &[f32],
    weights: &[[f32; CHUNK]; N],
    rescale: [f32; N],
) {
    let dim = sums.first().map_or(0, |sums| sums.len());
    let (v, _) = v.as_chunks();
    for d in (0..dim).step_by(2) {
        // Two vectors at a time; the last of an odd number alone.
        match d + 1 < dim {
            true => columns::<N, 2>(&mut sums, d, v, dim, weights, rescale),
            false => columns::<N, 1>(&mut sums, d, v, dim, weights, rescale),
        }
    }
}

/// [`values`] for the `W` vectors from `d` on of each accumulator.
#[inline(always)]
fn columns<const N: usize, const W: usize>(
    sums: &mut [&mut [[f32; 4]]; N],
    d: usize,
    v: &[[f32; 4]],
    dim: usize,
    weights: &[[f32; CHUNK]; N],
    rescale: [f32; N],
) {
    let mut acc: [[F32x4; W]; N] = std::array::from_fn(|n| {
        std::array::from_fn(|w| F32x4::load(&sums[n][d + w]) * F32x4::splat(rescale[n]))
    });
    for (i, value) in v.chunks_exact(dim).take(CHUNK).enumerate() {
        let value: [F32x4; W] = std::array::from_fn(|w| F32x4::load(&value[d + w]));
        for n in 0..N {
            let weight = F32x4::splat(weights[n][i]);
            for w in 0..W {
                acc[n][w] = acc[n][w].add_product(value[w], weight);
            }
        }
    }
    for (acc, sums) in acc.into_iter().zip(sums) {
        for (acc, sum) in acc.into_iter().zip(&mut sums[d..]) {
            acc.store(sum);
        }
    }
}

/// Replaces the dot products of a query with `keys` by their weights, and updates the maximum and sum. Keys
/// that the query does not see get weight 0, as do elements past the last key.
///
/// Returns the factor by which the query's accumulator must be multiplied.
fn exp_sum(
    args: &AttentionArgs<'_>,
    (token, head): (usize, usize),
    keys: Range<usize>,
    scores: &mut [f32; CHUNK],
    stats: &mut Stats,
) -> f32 {
    let Range {
        start: from,
        end: to,
    } = args.visible_in(token, &keys);
    if from >= to {
        scores.fill(0.0);
        return 1.0;
    }
    let minus_infinity = F32x4::splat(f32::NEG_INFINITY);
    let mut max = minus_infinity;
    for (i, s) in scores.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut x = F32x4::load(s) * F32x4::splat(args.scale);
        if let Some(cap) = args.softcap {
            x = F32x4::splat(cap) * tanh(x / F32x4::splat(cap));
        }
        let lane = I32x4::load(&[0, 1, 2, 3]) + I32x4::splat(4 * i as i32);
        if let Some(alibi) = &args.alibi {
            // Integers, exact in a float up to 2²⁴, beyond any context length.
            let position = alibi.positions[token] as i32 - keys.start as i32;
            let distance = (lane - I32x4::splat(position)).to_floats().abs();
            x = x.add_product(F32x4::splat(-alibi.slopes[head]), distance);
        }
        if let Some(relative) = &args.relative {
            let bias = std::array::from_fn(|lane| {
                relative.at(args.heads, (token, head), keys.start + 4 * i + lane)
            });
            x = x + F32x4::load(&bias);
        }
        let before = I32x4::splat(from as i32).greater(lane);
        let until = I32x4::splat(to as i32).greater(lane);
        x = until.select(before.select(minus_infinity, x), minus_infinity);
        max = max.or_larger(x);
        x.store(s);
    }
    let largest = stats[0].max(max.largest());
    if largest == f32::NEG_INFINITY {
        scores.fill(0.0);
        return 1.0;
    }
    let mut sum = F32x4::splat(0.0);
    for s in scores.as_chunks_mut().0 {
        let weight = exp(F32x4::load(s) - F32x4::splat(largest));
        sum = sum + weight;
        weight.store(s);
    }
    let rescale = (stats[0] - largest).exp();
    *stats = [largest, stats[1] * rescale + sum.sum()];
    rescale
}
