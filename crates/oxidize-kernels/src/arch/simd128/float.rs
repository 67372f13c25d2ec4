//! The matrix product in floats: for weights that are floats, and for formats or activations without an
//! integer kernel, whose rows are converted to floats first.

use super::vector::{F32x4, I32x4};
use crate::ops::matmul::{Activations, Epilogue, Scratch, WeightRows, dequantize, grown};
use crate::out::TileMut;
use crate::quant::TensorType;

/// Number of tokens up to which weight rows are multiplied as they are stored.
const GEMV_TOKENS: usize = 4;

/// Tokens of a tile.
const TOKENS: usize = 4;

/// Rows of a panel: two registers of four.
const ROWS: usize = 8;

/// Elements of `k` in a panel: few enough for the panel to stay in the cache.
const PANEL_LEN: usize = 512;

/// See [`crate::Kernels::matmul`].
pub(crate) fn matmul(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    match acts.uses_gemv(GEMV_TOKENS) {
        true => gemv(weight, acts, epilogue, out, scratch),
        false => gemm(weight, acts, epilogue, out, scratch),
    }
}

/// Converts whole blocks to floats.
pub(crate) fn to_floats(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    match ty {
        TensorType::F16 => convert::<F16>(bytes, out),
        _ => dequantize(ty, bytes, out),
    }
}

fn convert<F: FloatFormat>(bytes: &[u8], out: &mut [f32]) {
    let (whole, rest) = quads::<F>(bytes);
    let (vectors, out_rest) = out.as_chunks_mut();
    for (x, out) in whole.iter().zip(vectors) {
        F::load(x).store(out);
    }
    out_rest.copy_from_slice(&F::load(&rest).lanes()[..out_rest.len()]);
}

/// A format whose elements are floats.
pub(crate) trait FloatFormat {
    /// Bytes of four elements.
    type Quad: bytemuck::Pod;

    fn load(x: &Self::Quad) -> F32x4;
}

struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl FloatFormat for F32 {
    type Quad = [[u8; 4]; 4];

    #[inline(always)]
    fn load(x: &Self::Quad) -> F32x4 {
        F32x4::load(&x.map(f32::from_le_bytes))
    }
}

impl FloatFormat for F16 {
    type Quad = [[u8; 2]; 4];

    #[inline(always)]
    fn load(x: &Self::Quad) -> F32x4 {
        F32x4::from_halves(x.map(u16::from_le_bytes))
    }
}

impl FloatFormat for Bf16 {
    type Quad = [[u8; 2]; 4];

    #[inline(always)]
    fn load(x: &Self::Quad) -> F32x4 {
        let bits = x.map(|x| i32::from(u16::from_le_bytes(x)) << 16);
        I32x4::load(&bits).as_floats()
    }
}

/// Splits a row into runs of four elements, and a last run padded with zeros.
#[inline(always)]
pub(crate) fn quads<F: FloatFormat>(row: &[u8]) -> (&[F::Quad], F::Quad) {
    let (whole, rest) = row.split_at(row.len() - row.len() % size_of::<F::Quad>());
    let mut last: F::Quad = bytemuck::Zeroable::zeroed();
    bytemuck::bytes_of_mut(&mut last)[..rest.len()].copy_from_slice(rest);
    (bytemuck::cast_slice(whole), last)
}

/// Products row by row, from rows as they are stored.
fn gemv(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // The number of sums of a product depends on the number of tokens.
    let together = if acts.is_batch_invariant() {
        1
    } else {
        GEMV_TOKENS
    };
    for r in 0..weight.rows() {
        let row = weight.row(r);
        // Other types are converted to floats once for all tokens.
        let (ty, row) = match weight.ty() {
            ty @ (TensorType::F32 | TensorType::F16 | TensorType::BF16) => (ty, row),
            ty => {
                let floats = scratch.floats(weight.k());
                dequantize(ty, row, floats);
                (TensorType::F32, bytemuck::cast_slice(floats))
            }
        };
        for first in (0..acts.rows()).step_by(together) {
            let n = together.min(acts.rows() - first);
            let tokens: [&[f32]; GEMV_TOKENS] =
                std::array::from_fn(|t| acts.float_row(first + t.min(n - 1)));
            let dots = match ty {
                TensorType::F16 => gemv_tokens::<F16>(row, tokens, n),
                TensorType::BF16 => gemv_tokens::<Bf16>(row, tokens, n),
                _ => gemv_tokens::<F32>(row, tokens, n),
            };
            for (t, dot) in dots[..n].iter().enumerate() {
                epilogue.write(&mut out.row(first + t)[r], r, *dot);
            }
        }
    }
}

/// Products of a row with the first `n` tokens.
fn gemv_tokens<F: FloatFormat>(
    row: &[u8],
    tokens: [&[f32]; GEMV_TOKENS],
    n: usize,
) -> [f32; GEMV_TOKENS] {
    let mut out = [0.0; GEMV_TOKENS];
    let [a, b, c, _] = tokens;
    match n {
        1 => out[..1].copy_from_slice(&dots::<F, 1, 4>(row, [a])),
        2 => out[..2].copy_from_slice(&dots::<F, 2, 2>(row, [a, b])),
        3 => out[..3].copy_from_slice(&dots::<F, 3, 2>(row, [a, b, c])),
        _ => out = dots::<F, 4, 2>(row, tokens),
    }
    out
}

/// Products of a row with `M` tokens, in `C` independent sums each.
#[inline(always)]
fn dots<F: FloatFormat, const M: usize, const C: usize>(
    row: &[u8],
    tokens: [&[f32]; M],
) -> [f32; M] {
    let (weights, last) = quads::<F>(row);
    let (blocks, rest) = weights.as_chunks::<C>();
    let vectors: [&[[f32; 4]]; M] = tokens.map(|token| token.as_chunks().0);
    let mut sums = [[F32x4::splat(0.0); C]; M];
    let act_blocks = vectors.map(|vectors| vectors.as_chunks::<C>().0);
    for (i, weights) in blocks.iter().enumerate() {
        let weights = weights.each_ref().map(F::load);
        for t in 0..M {
            let acts = act_blocks[t][i].each_ref().map(F32x4::load);
            for c in 0..C {
                sums[t][c] = sums[t][c].add_product(weights[c], acts[c]);
            }
        }
    }
    std::array::from_fn(|t| {
        let mut sum = sums[t].into_iter().fold(F32x4::splat(0.0), |a, b| a + b);
        for (w, x) in rest.iter().zip(&vectors[t][blocks.len() * C..]) {
            sum = sum.add_product(F::load(w), F32x4::load(x));
        }
        let x = super::slices::padded(tokens[t].as_chunks::<4>().1, 0.0);
        sum.add_product(F::load(&last), F32x4::load(&x)).sum()
    })
}

/// Products panel by panel, each with all tokens.
fn gemm(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    let (k, m, ty) = (weight.k(), acts.rows(), weight.ty());
    let buffer = grown(&mut scratch.floats, 2 * ROWS * PANEL_LEN);
    let (panel, rows) = buffer.split_at_mut(ROWS * PANEL_LEN);
    let bytes = |n: usize| n / ty.block_len() * ty.block_bytes();
    for first_row in (0..weight.rows()).step_by(ROWS) {
        let n_rows = ROWS.min(weight.rows() - first_row);
        for from in (0..k).step_by(PANEL_LEN) {
            let len = PANEL_LEN.min(k - from);
            for (r, row) in rows.chunks_exact_mut(PANEL_LEN).enumerate() {
                let stored = weight.row(first_row + r.min(n_rows - 1));
                to_floats(ty, &stored[bytes(from)..][..bytes(len)], &mut row[..len]);
                // A panel is whole runs of four elements, padded with zero weights.
                row[len..len.next_multiple_of(4)].fill(0.0);
            }
            let panel: &mut [[f32; ROWS]] = bytemuck::cast_slice_mut(&mut *panel);
            transpose(rows, &mut panel[..len.next_multiple_of(4)]);
            let epilogue = if from == 0 {
                epilogue
            } else {
                Epilogue::ACCUMULATE
            };
            for token in (0..m).step_by(TOKENS) {
                let inputs: [&[f32]; TOKENS] =
                    std::array::from_fn(|t| &acts.float_row((token + t).min(m - 1))[from..][..len]);
                let [a, b, c, _] = inputs;
                let mut write = |sums: &[[f32; ROWS]]| {
                    for (t, sums) in sums.iter().enumerate() {
                        epilogue.write_rows(out.row(token + t), first_row, sums);
                    }
                };
                match m - token {
                    1 => write(&tile(panel, [a])),
                    2 => write(&tile(panel, [a, b])),
                    3 => write(&tile(panel, [a, b, c])),
                    _ => write(&tile(panel, inputs)),
                }
            }
        }
    }
}

/// Transposes eight rows, [`PANEL_LEN`] apart, into a panel.
fn transpose(rows: &[f32], panel: &mut [[f32; ROWS]]) {
    let rows: &[[i32; 4]] = bytemuck::cast_slice(rows);
    for (i, out) in panel.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        for half in 0..2 {
            let block =
                std::array::from_fn(|r| I32x4::load(&rows[(4 * half + r) * (PANEL_LEN / 4) + i]));
            for (x, out) in I32x4::transpose(block).into_iter().zip(&mut *out) {
                x.as_floats().store(&mut out.as_chunks_mut().0[half]);
            }
        }
    }
}

/// Products of a panel's rows with `T` tokens.
#[inline(always)]
fn tile<const T: usize>(panel: &[[f32; ROWS]], tokens: [&[f32]; T]) -> [[f32; ROWS]; T] {
    let len = tokens[0].len();
    let tokens = tokens.map(|token| &token[..len]);
    let mut sums = [[F32x4::splat(0.0); 2]; T];
    for (i, weights) in panel[..len].iter().enumerate() {
        let (weights, _) = weights.as_chunks();
        let weights = [F32x4::load(&weights[0]), F32x4::load(&weights[1])];
        for t in 0..T {
            let x = F32x4::splat(tokens[t][i]);
            for h in 0..2 {
                sums[t][h] = sums[t][h].add_product(weights[h], x);
            }
        }
    }
    sums.map(|sums| bytemuck::cast(sums.map(F32x4::lanes)))
}
