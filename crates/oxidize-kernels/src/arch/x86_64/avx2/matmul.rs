//! The matrix product: chooses between direct products, tiles and floats, and writes the result.

use std::arch::x86_64::*;

use super::dot::{self, Narrow, RowProduct, direct};
use super::float::{self, Bf16, F16};
use super::format::Format;
use super::formats::with_format;
use super::panel::{self, Next, Panel};
use super::products::Products;
use super::tile::{BytePanel, Kind, RowPanel};
use super::words;
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, RawRows, Scratch, WeightRows};
use crate::out::TileMut;
use crate::quant::TensorType;

/// See [`crate::Kernels::matmul`].
///
/// # Safety
/// Needs AVX2, FMA and F16C, and what the products need; the shapes fit together.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn matmul<P: Products>(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller has the instructions and has checked the shapes; each arm runs the format
    // that the type names.
    unsafe {
        match (weight.ty(), acts.bytes(), acts.words()) {
            (TensorType::F16, _, Some(words)) => {
                words::matmul::<F16, P>(weight, words, epilogue, out, scratch);
            }
            (TensorType::BF16, _, Some(words)) => {
                words::matmul::<Bf16, P>(weight, words, epilogue, out, scratch);
            }
            (ty, Some(bytes), _) => with_format!(
                ty,
                F => {
                    if acts.is_direct(dot::TOKENS) {
                        return few::<Narrow<F, P>>(weight, bytes, epilogue, out);
                    }
                    tiled::<F, P>(weight, bytes, epilogue, out, scratch)
                },
                float::matmul(weight, acts, epilogue, out, scratch)
            ),
            _ => float::matmul(weight, acts, epilogue, out, scratch),
        }
    }
}

/// # Safety
/// As [`matmul`], for a weight that the product takes.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn few<R: RowProduct>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
) {
    // SAFETY: as the caller says.
    unsafe { direct::<R>(weight, acts, epilogue, out) }
}

/// # Safety
/// As [`matmul`], for a weight of the format.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiled<F: Format, P: Products>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    let multiply = match acts.is_one_scale_with(&weight) {
        true => multiply_one_scale::<P>,
        false => const { multiplier::<P>(Kind::of::<F, P>()) },
    };
    for first_row in (0..weight.rows()).step_by(panel::ROWS) {
        // SAFETY: the weight is of the format and has the row.
        unsafe {
            let panel = panel::unpack::<F, P, false>(&weight, first_row, scratch);
            multiply(&panel, &weight, acts, first_row, &epilogue, &mut out);
        }
    }
}

/// The function that multiplies a panel of a kind with all tokens.
const fn multiplier<P: Products>(
    kind: u16,
) -> unsafe fn(&Panel, &WeightRows<'_>, &QuantizedRows, usize, &Epilogue<'_>, &mut TileMut<'_>) {
    macro_rules! kinds {
        ($($kind:literal)*) => {
            match kind {
                $($kind => multiply_kind::<P, $kind>,)*
                _ => panic!("no format is of this kind"),
            }
        };
    }
    kinds!(4 5 7 13 15 16 18 19 24 26 27 99 130 138 192 200 224 232 281 283)
}

/// # Safety
/// As [`TileKernel`]; the panel is of the kind.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_kind<P: Products, const KIND: u16>(
    panel: &Panel,
    weight: &WeightRows<'_>,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    // SAFETY: as the caller says.
    unsafe {
        let panel = BytePanel::<KIND>(*panel);
        multiply_panel::<P, _>(&panel, weight, acts, first_row, epilogue, out)
    }
}

/// # Safety
/// As [`TileKernel`]; the panel is of INT8.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_one_scale<P: Products>(
    panel: &Panel,
    weight: &WeightRows<'_>,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    // SAFETY: as the caller says.
    unsafe { multiply_panel::<P, _>(&RowPanel(*panel), weight, acts, first_row, epilogue, out) }
}

/// Tokens of a tile.
const TOKENS: usize = 4;

/// A panel that can be multiplied with up to [`TOKENS`] tokens at once, in products `P`.
///
/// # Safety
/// `tile` needs AVX2 and FMA, what the products need, a panel of rows of `acts.k`, and `acts` with the tokens.
pub(crate) unsafe trait TileKernel<P: Products> {
    /// Elements of a row between one request for memory and the next.
    const STEP: usize = 32;

    /// The products of the panel's rows with tokens `first` to `first + T − 1`. Asks for some of
    /// what the `next` panel is made of, [`TileKernel::STEP`] elements after another.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        next: &mut Next,
    ) -> [[__m256; 2]; T];
}

/// Multiplies a panel with all tokens.
///
/// # Safety
/// As [`TileKernel`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn multiply_panel<P: Products, K: TileKernel<P>>(
    panel: &K,
    weight: &WeightRows<'_>,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    let (m, acts) = (acts.rows(), acts.raw());
    let times = m.div_ceil(TOKENS) * (acts.k / K::STEP);
    let mut next = Next::new(weight, first_row, times);
    for token in (0..m).step_by(TOKENS) {
        macro_rules! run {
            ($t:literal) => {
                // SAFETY: so many tokens are left.
                for (t, sums) in unsafe { panel.tile::<$t>(&acts, token, &mut next) }
                    .into_iter()
                    .enumerate()
                {
                    // SAFETY: the caller has the instructions.
                    unsafe { write_rows(out, token + t, first_row, sums, epilogue) };
                }
            };
        }
        match m - token {
            1 => run!(1),
            2 => run!(2),
            3 => run!(3),
            _ => run!(4),
        }
    }
}

/// Writes the products of a token with up to 16 weight rows from `first_row` on.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn write_rows(
    out: &mut TileMut<'_>,
    token: usize,
    first_row: usize,
    sums: [__m256; 2],
    epilogue: &Epilogue<'_>,
) {
    let mut buffer = [0.0f32; panel::ROWS];
    // SAFETY: the buffer has 16 elements.
    unsafe {
        _mm256_storeu_ps(buffer.as_mut_ptr(), sums[0]);
        _mm256_storeu_ps(buffer.as_mut_ptr().add(8), sums[1]);
    }
    epilogue.write_rows(out.row(token), first_row, &buffer);
}
