//! The matrix product in floats: for weights that are floats, and for formats or activations that
//! the integer kernels do not take, whose rows become floats first.

use std::arch::x86_64::*;

use super::float_rows::{DIRECT_TOKENS, direct};
use super::format::transpose;
use super::vector::Vector;
use crate::ops::matmul::{Activations, Epilogue, Scratch, WeightRows, dequantize, grown};
use crate::out::TileMut;
use crate::quant::TensorType;

/// Elements of `k` that a panel holds: short enough for it to stay in the cache.
const PANEL_LEN: usize = 512;

/// Tokens of a tile.
pub(crate) const TOKENS: usize = 6;

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;

/// See [`crate::Kernels::matmul`].
///
/// # Safety
/// Needs AVX2, FMA and F16C; the shapes fit together.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn matmul(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller says.
    unsafe {
        if acts.is_direct(DIRECT_TOKENS) {
            return direct::<__m256>(weight, acts, epilogue, out, scratch);
        }
        tiled::<ROWS, TOKENS>(weight, acts, epilogue, out, scratch, multiply);
    }
}

/// A format whose elements are floats.
///
/// # Safety
/// `load` needs the instructions of the vector, and as many readable elements as it has lanes.
pub(crate) unsafe trait FloatFormat {
    /// Bytes of an element.
    const BYTES: usize;
    /// As many elements as the vector has lanes.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn load<V: Vector>(p: *const u8) -> V;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

macro_rules! float_format {
    ($name:ident, $bytes:literal, |$p:ident| $load:expr) => {
        // SAFETY: reads as many elements as the vector has lanes.
        unsafe impl FloatFormat for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<V: Vector>($p: *const u8) -> V {
                // SAFETY: as the trait says.
                unsafe { $load }
            }
        }
    };
}

float_format!(F32, 4, |p| V::load(p.cast()));
float_format!(F16, 2, |p| V::load_f16(p));
float_format!(Bf16, 2, |p| V::load_bf16(p));

/// Panel by panel: `R` rows of up to [`PANEL_LEN`] elements, times `T` tokens at once.
///
/// `multiply(n, panel, len, rows, sums)` is a [`Multiply`].
///
/// # Safety
/// As [`matmul`]; `multiply` reads and writes no more than it says.
#[inline(always)]
pub(crate) unsafe fn tiled<const R: usize, const T: usize>(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
    multiply: Multiply<T>,
) {
    let (k, m) = (weight.k(), acts.rows());
    let buffer = grown(&mut scratch.floats, 2 * R * PANEL_LEN + 16);
    let start = buffer.as_ptr().align_offset(64);
    let (panel, rows) = buffer[start..][..2 * R * PANEL_LEN].split_at_mut(R * PANEL_LEN);
    // Tiles of nearly equal size, rather than full ones and a small rest.
    let tile = m.div_ceil(m.div_ceil(T));
    for first_row in (0..weight.rows()).step_by(R) {
        let n_rows = R.min(weight.rows() - first_row);
        for from in (0..k).step_by(PANEL_LEN) {
            let len = PANEL_LEN.min(k - from);
            for (r, row) in rows.chunks_exact_mut(PANEL_LEN).enumerate() {
                let r = first_row + r.min(n_rows - 1);
                // SAFETY: the caller has the instructions.
                unsafe { load_row(&weight, r, from, &mut row[..len]) };
            }
            // SAFETY: both hold `R` rows of PANEL_LEN elements.
            unsafe { transpose_rows::<R>(rows, len, panel) };
            for token in (0..m).step_by(tile) {
                let n = tile.min(m - token);
                let mut sums = [[0.0; R]; T];
                if from > 0 {
                    for (t, sums) in sums[..n].iter_mut().enumerate() {
                        let so_far = &out.row(token + t)[first_row..][..n_rows];
                        sums[..n_rows].copy_from_slice(so_far);
                    }
                }
                // The last tile may be shorter; what lies past it is not read.
                let input: [*const f32; T] = std::array::from_fn(|t| {
                    acts.all_floats()
                        .as_ptr()
                        .wrapping_add((token + t) * k + from)
                });
                let outputs = sums.each_mut().map(|sums| sums.as_mut_ptr());
                // SAFETY: the panel has `len` elements of `R` rows, and so many the `n` tokens.
                unsafe { multiply(n, panel.as_ptr(), len, &input, &outputs) };
                for (t, sums) in sums[..n].iter().enumerate() {
                    let epilogue = if from == 0 { epilogue } else { Epilogue::STORE };
                    epilogue.write_rows(out.row(token + t), first_row, sums);
                }
            }
        }
    }
}

/// Elements `from` to `from + out.len()` of a weight row, as floats.
///
/// # Safety
/// Needs AVX2 and F16C; the row has the elements, in whole blocks.
#[inline(always)]
unsafe fn load_row(weight: &WeightRows<'_>, r: usize, from: usize, out: &mut [f32]) {
    let ty = weight.ty();
    let bytes = |n: usize| n / ty.block_len() * ty.block_bytes();
    let row = &weight.row(r)[bytes(from)..][..bytes(out.len())];
    // SAFETY: `row` holds exactly the elements that `out` takes.
    unsafe {
        match ty {
            TensorType::F16 => convert_row::<F16>(row, out),
            TensorType::BF16 => convert_row::<Bf16>(row, out),
            TensorType::F32 => convert_row::<F32>(row, out),
            _ => dequantize(ty, row, out),
        }
    }
}

/// # Safety
/// Needs AVX2 and F16C; `row` holds as many elements as `out`.
#[inline(always)]
unsafe fn convert_row<F: FloatFormat>(row: &[u8], out: &mut [f32]) {
    debug_assert_eq!(row.len(), out.len() * F::BYTES);
    let whole = out.len() / 8 * 8;
    // SAFETY: eight elements are left at each step, in both.
    unsafe {
        for i in (0..whole).step_by(8) {
            let eight: __m256 = F::load(row.as_ptr().add(i * F::BYTES));
            _mm256_storeu_ps(out.as_mut_ptr().add(i), eight);
        }
        if whole < out.len() {
            let mut bytes = [0u8; 32];
            bytes[..row.len() - whole * F::BYTES].copy_from_slice(&row[whole * F::BYTES..]);
            let mut rest = [0.0; 8];
            _mm256_storeu_ps(rest.as_mut_ptr(), F::load(bytes.as_ptr()));
            let n = out.len() - whole;
            out[whole..].copy_from_slice(&rest[..n]);
        }
    }
}

/// `R` rows, [`PANEL_LEN`] apart, of `len` elements, into a panel `[len][R]`.
///
/// # Safety
/// Needs AVX2; `rows` and `panel` have `R · PANEL_LEN` elements, and `R` is a multiple of 8.
#[inline(always)]
unsafe fn transpose_rows<const R: usize>(rows: &[f32], len: usize, panel: &mut [f32]) {
    let whole = len / 8 * 8;
    // SAFETY: all indices stay below `R · PANEL_LEN`.
    unsafe {
        for i in (0..whole).step_by(8) {
            for r in (0..R).step_by(8) {
                let block: [__m256i; 8] = std::array::from_fn(|j| {
                    _mm256_loadu_si256(rows.as_ptr().add((r + j) * PANEL_LEN + i).cast())
                });
                for (j, x) in transpose(block).into_iter().enumerate() {
                    _mm256_storeu_si256(panel.as_mut_ptr().add((i + j) * R + r).cast(), x);
                }
            }
        }
    }
    for i in whole..len {
        for r in 0..R {
            panel[i * R + r] = rows[r * PANEL_LEN + i];
        }
    }
}

/// Multiplies a panel `[len][R]` with `n` rows of `len` elements and adds the products to `n` rows of
/// `R`: the inner kernel of a blocked product. The arrays have room for `T` pointers.
pub(crate) type Multiply<const T: usize> =
    unsafe fn(usize, *const f32, usize, &[*const f32; T], &[*mut f32; T]);

/// The [`Multiply`] of AVX2: panels of [`ROWS`] rows, up to [`TOKENS`] tokens.
///
/// # Safety
/// Needs AVX2 and FMA; the sizes are as [`Multiply`] says.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn multiply(
    n: usize,
    panel: *const f32,
    len: usize,
    rows: &[*const f32; TOKENS],
    sums: &[*mut f32; TOKENS],
) {
    // SAFETY: as the caller says.
    unsafe {
        match n {
            1 => tile::<1>(panel, len, rows, sums),
            2 => tile::<2>(panel, len, rows, sums),
            3 => tile::<3>(panel, len, rows, sums),
            4 => tile::<4>(panel, len, rows, sums),
            5 => tile::<5>(panel, len, rows, sums),
            _ => tile::<6>(panel, len, rows, sums),
        }
    }
}

/// # Safety
/// As [`multiply`], for `T` tokens.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<const T: usize>(
    panel: *const f32,
    len: usize,
    rows: &[*const f32; TOKENS],
    sums: &[*mut f32; TOKENS],
) {
    // SAFETY: as the caller says.
    unsafe {
        let rows: [*const f32; T] = std::array::from_fn(|t| rows[t]);
        let mut acc: [[__m256; 2]; T] =
            std::array::from_fn(|t| std::array::from_fn(|h| _mm256_loadu_ps(sums[t].add(8 * h))));
        for i in 0..len {
            let w: [__m256; 2] =
                std::array::from_fn(|h| _mm256_loadu_ps(panel.add(i * ROWS + 8 * h)));
            for t in 0..T {
                let a = _mm256_broadcast_ss(&*rows[t].add(i));
                for h in 0..2 {
                    acc[t][h] = _mm256_fmadd_ps(w[h], a, acc[t][h]);
                }
            }
        }
        for t in 0..T {
            for h in 0..2 {
                _mm256_storeu_ps(sums[t].add(8 * h), acc[t][h]);
            }
        }
    }
}
