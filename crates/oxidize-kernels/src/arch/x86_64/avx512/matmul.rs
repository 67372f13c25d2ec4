//! The matrix product: chooses between direct products, tiles and floats, and writes the result.

use std::arch::x86_64::*;

use super::super::avx2::dot::{self, RowProduct, direct};
use super::super::avx2::float::{Bf16, F16};
use super::super::avx2::format::Format;
use super::super::avx2::formats::with_format;
use super::super::avx2::panel::{self, Next};
use super::formats::with_product;
use super::tile::{BytePanel, RowPanel};
use super::{Vnni, float, words};
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, RawRows, Scratch, WeightRows};
use crate::out::TileMut;
use crate::quant::TensorType;

/// See [`crate::Kernels::matmul`].
///
/// # Safety
/// Needs AVX-512 with VNNI; the shapes fit together.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn matmul(
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
                words::matmul::<F16>(weight, words, epilogue, out, scratch);
            }
            (TensorType::BF16, _, Some(words)) => {
                words::matmul::<Bf16>(weight, words, epilogue, out, scratch);
            }
            (ty, Some(bytes), _) if acts.is_direct(dot::TOKENS) => with_product!(
                ty,
                P => few::<P>(weight, bytes, epilogue, out),
                float::matmul(weight, acts, epilogue, out, scratch)
            ),
            (ty, Some(bytes), _) => with_format!(
                ty,
                F => tiled::<F>(weight, bytes, epilogue, out, scratch),
                float::matmul(weight, acts, epilogue, out, scratch)
            ),
            _ => float::matmul(weight, acts, epilogue, out, scratch),
        }
    }
}

/// # Safety
/// As [`matmul`], for a weight that the product takes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn few<P: RowProduct>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
) {
    // SAFETY: as the caller says.
    unsafe { direct::<P>(weight, acts, epilogue, out) }
}

/// # Safety
/// As [`matmul`], for a weight of the format.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn tiled<F: Format>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    let one_scale = acts.is_one_scale_with(&weight);
    // SAFETY: as the caller says; the weight is of the format and has the row.
    unsafe {
        for first_row in (0..weight.rows()).step_by(panel::ROWS) {
            let panel = match F::NIBBLES {
                true => panel::unpack::<F, Vnni, true>(&weight, first_row, scratch),
                false => panel::unpack::<F, Vnni, false>(&weight, first_row, scratch),
            };
            if one_scale {
                multiply_panel(
                    &RowPanel(panel),
                    &weight,
                    acts,
                    first_row,
                    &epilogue,
                    &mut out,
                );
                continue;
            }
            macro_rules! multiply {
                ($halves:literal, $centred:literal, $packed:literal) => {{
                    let panel = BytePanel::<$halves, $centred, $packed>(panel);
                    multiply_panel(&panel, &weight, acts, first_row, &epilogue, &mut out)
                }};
            }
            match (F::GROUP == 16, F::CENTRED) {
                (false, false) if F::NIBBLES => multiply!(false, false, true),
                (false, false) => multiply!(false, false, false),
                (false, true) => multiply!(false, true, false),
                (true, false) => multiply!(true, false, false),
                (true, true) => multiply!(true, true, false),
            }
        }
    }
}

/// Tokens of a tile.
const TOKENS: usize = 12;

/// A panel that can be multiplied with up to [`TOKENS`] tokens at once.
///
/// # Safety
/// `tile` needs AVX-512 with VNNI, a panel of rows of `acts.k`, and `acts` with the tokens.
pub(crate) unsafe trait TileKernel {
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
    ) -> [__m512; T];
}

/// Multiplies a panel with all tokens.
///
/// # Safety
/// As [`TileKernel`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn multiply_panel<P: TileKernel>(
    panel: &P,
    weight: &WeightRows<'_>,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    let (m, acts) = (acts.rows(), acts.raw());
    // Tiles of nearly equal size, rather than full ones and a small rest.
    let tiles = m.div_ceil(TOKENS);
    let tile_tokens = m.div_ceil(tiles);
    let mut next = Next::new(weight, first_row, tiles * (acts.k / P::STEP));
    for token in (0..m).step_by(tile_tokens) {
        macro_rules! run {
            ($t:literal) => {{
                // SAFETY: so many tokens are left.
                let sums = unsafe { panel.tile::<$t>(&acts, token, &mut next) };
                for (t, sums) in sums.iter().enumerate() {
                    let mut rows = [0.0; panel::ROWS];
                    // SAFETY: `rows` takes 16 floats.
                    unsafe { _mm512_storeu_ps(rows.as_mut_ptr(), *sums) };
                    epilogue.write_rows(out.row(token + t), first_row, &rows);
                }
            }};
        }
        match tile_tokens.min(m - token) {
            1 => run!(1),
            2 => run!(2),
            3 => run!(3),
            4 => run!(4),
            5 => run!(5),
            6 => run!(6),
            7 => run!(7),
            8 => run!(8),
            9 => run!(9),
            10 => run!(10),
            11 => run!(11),
            _ => run!(12),
        }
    }
}
