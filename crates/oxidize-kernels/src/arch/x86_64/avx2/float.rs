//! The matrix product in floats: for weights that are floats, and for formats or activations without an
//! integer kernel, whose rows are converted to floats first.

use std::arch::x86_64::*;

use super::float_rows::{GEMV_TOKENS, gemv};
use super::format::transpose;
use super::vector::{Vector, tile};
use crate::ops::matmul::{Activations, Epilogue, Scratch, WeightRows, dequantize, grown};
use crate::out::TileMut;
use crate::quant::TensorType;

/// Elements of `k` in a panel: few enough for the panel to stay in the cache.
const PANEL_LEN: usize = 512;

/// Tokens of a tile.
pub(crate) const TOKENS: usize = 6;

/// Rows of a panel.
pub(crate) const ROWS: usize = 16;

/// See [`crate::Kernels::matmul`].
///
/// # Safety
/// Needs AVX2, FMA and F16C; `acts` has rows of `weight.k()` elements, and `out` a row for each of them and a
/// column for each row of the weight.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn matmul(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: AVX2, FMA and F16C are enabled here, which is all that `__m256` and `multiply` need; `acts` has
    // rows of `weight.k()` elements, and `out` is `acts.rows()` × `weight.rows()`.
    unsafe {
        if acts.uses_gemv(GEMV_TOKENS) {
            return gemv::<__m256>(weight, acts, epilogue, out, scratch);
        }
        gemm::<ROWS, TOKENS>(weight, acts, epilogue, out, scratch, multiply);
    }
}

/// A format whose elements are floats.
///
/// # Safety
/// `load` needs the instructions of the vector, and as many readable elements as the vector has lanes.
pub(crate) unsafe trait FloatFormat {
    /// Bytes of an element.
    const BYTES: usize;
    /// Loads as many elements as the vector has lanes.
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
        // SAFETY: `load` reads as many elements as the vector has lanes.
        unsafe impl FloatFormat for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<V: Vector>($p: *const u8) -> V {
                // SAFETY: the caller has the vector's instructions, and `BYTES` readable bytes for each of
                // its lanes.
                unsafe { $load }
            }
        }
    };
}

float_format!(F32, 4, |p| V::load(p.cast()));
float_format!(F16, 2, |p| V::load_f16(p));
float_format!(Bf16, 2, |p| V::load_bf16(p));

/// Multiplies panels of `R` rows of up to [`PANEL_LEN`] elements with `T` tokens at a time.
///
/// # Safety
/// As [`matmul`]; the machine has the instructions of `multiply`, which keeps to the sizes of [`Multiply`].
#[inline(always)]
pub(crate) unsafe fn gemm<const R: usize, const T: usize>(
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
    // Tiles of nearly equal size instead of full ones and a small remainder.
    let tile = m.div_ceil(m.div_ceil(T));
    for first_row in (0..weight.rows()).step_by(R) {
        let n_rows = R.min(weight.rows() - first_row);
        for from in (0..k).step_by(PANEL_LEN) {
            let len = PANEL_LEN.min(k - from);
            for (r, row) in rows.chunks_exact_mut(PANEL_LEN).enumerate() {
                let r = first_row + r.min(n_rows - 1);
                // SAFETY: the caller has AVX2 and F16C; `r` is a row of the weight, and `from` a multiple of
                // a block.
                unsafe { load_row(&weight, r, from, &mut row[..len]) };
            }
            // SAFETY: the caller has AVX2; both buffers hold `R` rows of `PANEL_LEN` elements, and `len` is
            // no more.
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
                // The last tile may be shorter; pointers past it are not read.
                let input: [*const f32; T] = std::array::from_fn(|t| {
                    acts.all_floats()
                        .as_ptr()
                        .wrapping_add((token + t) * k + from)
                });
                let outputs = sums.each_mut().map(|sums| sums.as_mut_ptr());
                // SAFETY: the panel has `len` elements of `R` rows, each of the `n` tokens has `len` from
                // `from` on, and each of the sums has room for `R` products.
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
/// Needs AVX2 and F16C; the weight has the row, and the row the elements, in whole blocks.
#[inline(always)]
unsafe fn load_row(weight: &WeightRows<'_>, r: usize, from: usize, out: &mut [f32]) {
    let ty = weight.ty();
    let bytes = |n: usize| n / ty.block_len() * ty.block_bytes();
    let row = &weight.row(r)[bytes(from)..][..bytes(out.len())];
    // SAFETY: the caller has AVX2 and F16C; `row` is the bytes of `out.len()` elements.
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
    // SAFETY: the caller has AVX2 and F16C. At each step eight elements are left in both slices; the rest is
    // read from 32 bytes, which hold eight elements of any format, and written to eight floats.
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
    // SAFETY: the caller has AVX2. Row `r + j` is below `R` and element `i + 7` below `len`, so that all
    // offsets stay below `R · PANEL_LEN`.
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

/// The inner kernel of a blocked product, `multiply(n, panel, len, rows, sums)`: multiplies a panel
/// `[len][R]` with `n` rows of `len` elements and adds the products to `n` rows of `R` sums. Pointers from
/// the `n`th on are not read.
pub(crate) type Multiply<const T: usize> =
    unsafe fn(usize, *const f32, usize, &[*const f32; T], &[*mut f32; T]);

/// The [`Multiply`] of AVX2: panels of [`ROWS`] rows, up to [`TOKENS`] tokens.
///
/// # Safety
/// Needs AVX2 and FMA; pointers have the sizes that [`Multiply`] says, with [`ROWS`] for `R`, and `n` is 1 to
/// [`TOKENS`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn multiply(
    n: usize,
    panel: *const f32,
    len: usize,
    rows: &[*const f32; TOKENS],
    sums: &[*mut f32; TOKENS],
) {
    // SAFETY: AVX2 and FMA are enabled here; each arm reads `n` of the pointers, of the sizes that
    // [`Multiply`] says.
    unsafe {
        match n {
            1 => tile::<__m256, 1, _>(panel, len, rows, sums),
            2 => tile::<__m256, 2, _>(panel, len, rows, sums),
            3 => tile::<__m256, 3, _>(panel, len, rows, sums),
            4 => tile::<__m256, 4, _>(panel, len, rows, sums),
            5 => tile::<__m256, 5, _>(panel, len, rows, sums),
            _ => tile::<__m256, 6, _>(panel, len, rows, sums),
        }
    }
}
