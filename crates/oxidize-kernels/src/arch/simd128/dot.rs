//! GEMV: dot products of a weight row with a few tokens, straight from the stored blocks. Decoding runs this.

use super::Int8Dot;
use super::format::{Format, Scales};
use super::token::Token;
use super::vector::{F32x4, I8x16, I32x4};
use crate::ops::matmul::{Epilogue, QuantizedRows, WeightRows};
use crate::out::TileMut;

/// Number of tokens up to which rows are multiplied straight from the blocks; for more, unpacking panels is
/// faster.
pub(crate) const GEMV_TOKENS: usize = 3;

/// Products with all tokens, a few at a time: batch-invariant. The weight is of format `F`.
pub(crate) fn gemv<F: Format, P: Int8Dot>(
    products: P,
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
) {
    let m = acts.rows();
    for first in (0..m).step_by(GEMV_TOKENS) {
        let tokens: [Token<'_>; GEMV_TOKENS] =
            std::array::from_fn(|t| Token::new(acts, (first + t).min(m - 1)));
        for r in 0..weight.rows() {
            let row: &[F::Block] = bytemuck::cast_slice(weight.row(r));
            let mut write = |dots: &[f32]| {
                for (t, &dot) in dots.iter().enumerate() {
                    epilogue.write(&mut out.row(first + t)[r], r, dot);
                }
            };
            let [a, b, c] = &tokens;
            match m - first {
                1 => write(&dot::<F, P, 1>(products, row, [a])),
                2 => write(&dot::<F, P, 2>(products, row, [a, b])),
                _ => write(&dot::<F, P, GEMV_TOKENS>(products, row, [a, b, c])),
            }
        }
    }
}

/// Dot products of one weight row with `M` tokens.
#[inline(always)]
fn dot<F: Format, P: Int8Dot, const M: usize>(
    products: P,
    row: &[F::Block],
    tokens: [&Token<'_>; M],
) -> [f32; M] {
    let zero = F32x4::splat(0.0);
    // One sum for even groups and one for odd, to hide the latency of additions.
    let mut sums = [[zero; 2]; M];
    let mut mins = [zero; M];
    let mut scales = Scales::ZERO;
    for (c, chunk) in row.chunks(F::BLOCKS).enumerate() {
        F::scales(chunk, &mut scales);
        let mut factors = [[0.0; 16]; M];
        for t in 0..M {
            multiply_scales::<F>(&scales, tokens[t], c, &mut factors[t], &mut mins[t]);
        }
        for (b, block) in chunk.iter().enumerate() {
            F::unpack(block, |group, weights| {
                let group = b * (8 / F::BLOCKS) + group;
                for t in 0..M {
                    let acts = tokens[t].group(8 * c + group);
                    let sum = &mut sums[t][group % 2];
                    *sum = add_group::<F, P>(products, *sum, weights, acts, &factors[t], group);
                }
            });
        }
    }
    std::array::from_fn(|t| (sums[t][0] + sums[t][1] + mins[t]).sum())
}

/// Multiplies the scales of a chunk by those of a token, and adds the minima times the token's sums.
#[inline(always)]
fn multiply_scales<F: Format>(
    scales: &Scales,
    token: &Token<'_>,
    c: usize,
    factors: &mut [f32; 16],
    mins: &mut F32x4,
) {
    let load = |x: &[f32], i: usize| F32x4::load(&x.as_chunks().0[i]);
    let act_scales = [0, 1].map(|half| load(&token.scales[c], half));
    let (out, _) = factors.as_chunks_mut();
    for i in 0..64 / F::GROUP {
        let scale = load(&scales.scale, i);
        let (act_scale, act_sum) = match F::GROUP {
            32 => (act_scales[i], load(&token.sums[c], i)),
            _ => {
                let twice = act_scales[i / 2].interleave(act_scales[i / 2]);
                (twice[i % 2], load(&token.half_sums[c], i))
            }
        };
        (scale * act_scale).store(&mut out[i]);
        if F::OFFSET > 0 {
            // Cheaper than subtracting the offset from each byte.
            let offset = F32x4::splat(-f32::from(F::OFFSET));
            *mins = mins.add_product(scale * offset, act_sum);
        }
        if F::MIN {
            *mins = mins.add_product(load(&scales.min, i), act_sum);
        }
    }
}

/// Adds the products of a group of 32, times the factors of the group.
#[inline(always)]
fn add_group<F: Format, P: Int8Dot>(
    products: P,
    sum: F32x4,
    weights: [I8x16; 2],
    acts: [I8x16; 2],
    factors: &[f32; 16],
    group: usize,
) -> F32x4 {
    let zero = I32x4::splat(0);
    let first = products.add_products(zero, weights[0], acts[0]);
    if F::GROUP == 32 {
        let dot = products.add_products(first, weights[1], acts[1]);
        return sum.add_product(dot.to_floats(), F32x4::splat(factors[group]));
    }
    let second = products.add_products(zero, weights[1], acts[1]);
    sum.add_product(first.to_floats(), F32x4::splat(factors[2 * group]))
        .add_product(second.to_floats(), F32x4::splat(factors[2 * group + 1]))
}
