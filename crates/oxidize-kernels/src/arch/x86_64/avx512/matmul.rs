//! The matrix product: chooses between direct products, tiles and floats, and writes the result.

use std::arch::x86_64::*;

use super::super::avx2::dot::dot_row;
use super::super::avx2::format::Format;
use super::super::avx2::formats::with_format;
use super::super::avx2::panel::{self, Panel};
use super::float;
use super::tile::{TOKENS, tile};
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, Scratch, WeightRows};
use crate::out::TileMut;

/// Up to so many tokens are multiplied straight from the blocks: beyond, unpacking panels is faster.
const DIRECT_TOKENS: usize = 3;

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
        let Some(quantized) = acts.quantized() else {
            return float::matmul(weight, acts, epilogue, out, scratch);
        };
        with_format!(
            weight.ty(),
            F => {
                if acts.is_direct(DIRECT_TOKENS) {
                    return direct::<F>(weight, quantized, epilogue, out);
                }
                tiled::<F>(weight, quantized, epilogue, out, scratch)
            },
            float::matmul(weight, acts, epilogue, out, scratch)
        )
    }
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
    // SAFETY: as the caller says; the weight is of the format and has the row.
    unsafe {
        for first_row in (0..weight.rows()).step_by(panel::ROWS) {
            let panel = panel::unpack::<F, true>(&weight, first_row, scratch);
            if F::GROUP == 16 {
                multiply_panel::<true>(&panel, acts, first_row, &epilogue, &mut out);
            } else {
                multiply_panel::<false>(&panel, acts, first_row, &epilogue, &mut out);
            }
        }
    }
}

/// A few tokens at a time, each as if it were alone.
///
/// # Safety
/// As [`matmul`], for a weight of the format.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn direct<F: Format>(
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
) {
    let (m, acts) = (acts.rows(), acts.raw());
    for r in 0..weight.rows() {
        let row = weight.row(r).as_ptr();
        let mut write = |token: usize, dots: &[f32]| {
            for (t, &dot) in dots.iter().enumerate() {
                epilogue.write(&mut out.row(token + t)[r], r, dot);
            }
        };
        for token in (0..m).step_by(DIRECT_TOKENS) {
            // SAFETY: the row is one of the weight's, of as many elements as `acts` has; so many
            // tokens are left.
            unsafe {
                match m - token {
                    1 => write(token, &dot_row::<F, true, 1>(row, &acts, token)),
                    2 => write(token, &dot_row::<F, true, 2>(row, &acts, token)),
                    _ => write(token, &dot_row::<F, true, DIRECT_TOKENS>(row, &acts, token)),
                }
            }
        }
    }
}

/// Multiplies a panel with all tokens.
///
/// # Safety
/// Needs AVX-512 with VNNI; the panel has scales as `HALVES` says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply_panel<const HALVES: bool>(
    panel: &Panel,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    let (m, acts) = (acts.rows(), acts.raw());
    // Tiles of nearly equal size, rather than full ones and a small rest.
    let tile_tokens = m.div_ceil(m.div_ceil(TOKENS));
    for token in (0..m).step_by(tile_tokens) {
        macro_rules! run {
            ($t:literal) => {{
                // SAFETY: so many tokens are left.
                let sums = unsafe { tile::<HALVES, $t>(panel, &acts, token) };
                for (t, sums) in sums.into_iter().enumerate() {
                    let mut rows = [0.0; panel::ROWS];
                    // SAFETY: `rows` takes 16 floats.
                    unsafe { _mm512_storeu_ps(rows.as_mut_ptr(), sums) };
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
