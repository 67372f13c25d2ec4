//! Matrix product kernels of AVX-512 with VNNI.

use std::arch::x86_64::*;

use super::super::avx2::dot;
use super::super::avx2::format::Format;
use super::super::avx2::gemm_i16::QuantizeI16;
use super::super::avx2::panel::{self, Prefetcher};
use super::super::matmul::MatmulIsa;
use super::formats::GemvFormat;
use super::tile::{BytePanel, RowScalePanel};
use super::{Vnni, float, gemm_i16};
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, RawRows, Scratch, WeightRows};
use crate::out::TileMut;

/// Kernels in registers of 512 bits.
pub(crate) struct Matmul512;

// SAFETY: the methods need AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C.
unsafe impl MatmulIsa for Matmul512 {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn gemv<F: GemvFormat>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
    ) {
        // SAFETY: the instructions are enabled here; `F::Dot` takes rows of `F`, which the weight is of, and
        // the trait's shapes are those of `dot::gemv`.
        unsafe { dot::gemv::<F::Dot>(weight, acts, epilogue, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn gemm<F: Format>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        mut out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        let row_scales = acts.uses_row_scales(&weight);
        // SAFETY: `first_row` is a row of the weight, which is of format `F`; each panel is multiplied as
        // what it was unpacked to, and has rows as long as those of `acts`.
        unsafe {
            for first_row in (0..weight.rows()).step_by(panel::ROWS) {
                let panel = match F::NIBBLES {
                    true => panel::unpack::<F, Vnni, true>(&weight, first_row, scratch),
                    false => panel::unpack::<F, Vnni, false>(&weight, first_row, scratch),
                };
                if row_scales {
                    let panel = RowScalePanel(panel);
                    multiply_panel(&panel, &weight, acts, first_row, &epilogue, &mut out);
                    continue;
                }
                macro_rules! multiply {
                    ($halves:literal, $symmetric:literal, $packed:literal) => {{
                        let panel = BytePanel::<$halves, $symmetric, $packed>(panel);
                        multiply_panel(&panel, &weight, acts, first_row, &epilogue, &mut out)
                    }};
                }
                match (F::GROUP == 16, F::SYMMETRIC) {
                    (false, false) if F::NIBBLES => multiply!(false, false, true),
                    (false, false) => multiply!(false, false, false),
                    (false, true) => multiply!(false, true, false),
                    (true, false) => multiply!(true, false, false),
                    (true, true) => multiply!(true, true, false),
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn gemm_i16<F: QuantizeI16>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: the instructions are enabled here; the weight is of format `F`, the activations are 16-bit
        // integers, and the trait's shapes are those of the function.
        unsafe { gemm_i16::matmul::<F>(weight, acts, epilogue, out, scratch) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn matmul_f32(
        weight: WeightRows<'_>,
        acts: &Activations<'_>,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C are enabled here; `acts` has rows of
        // `weight.k()` elements, and `out` is `acts.rows()` × `weight.rows()`.
        unsafe { float::matmul(weight, acts, epilogue, out, scratch) }
    }
}

/// Tokens of a tile.
const TOKENS: usize = 12;

/// A panel that can be multiplied with up to [`TOKENS`] tokens at once.
///
/// # Safety
/// `tile` needs AVX-512 F, BW, DQ, VL and VNNI, a panel of rows of `acts.k` elements, and tokens `first` to
/// `first + T − 1` in `acts`.
pub(crate) unsafe trait TileKernel {
    /// Elements of a row from one prefetch to the following one.
    const STEP: usize = 32;

    /// Products of the panel's rows with tokens `first` to `first + T − 1`. Prefetches part of the following
    /// panel every [`TileKernel::STEP`] elements.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn tile<const T: usize>(
        &self,
        acts: &RawRows,
        first: usize,
        prefetcher: &mut Prefetcher,
    ) -> [__m512; T];
}

/// Multiplies a panel with all tokens.
///
/// # Safety
/// Needs AVX-512 F, BW, DQ, VL and VNNI; the panel has rows of as many elements as those of `acts`, from row
/// `first_row` of the weight on, and `out` has a row for each token.
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
    // Tiles of nearly equal size instead of full ones and a small remainder.
    let tiles = m.div_ceil(TOKENS);
    let tile_tokens = m.div_ceil(tiles);
    let mut prefetcher = Prefetcher::new(weight, first_row, tiles * (acts.k / P::STEP));
    for token in (0..m).step_by(tile_tokens) {
        macro_rules! run {
            ($t:literal) => {{
                // SAFETY: the match below leaves at least `$t` of the `m` tokens from `token` on.
                let sums = unsafe { panel.tile::<$t>(&acts, token, &mut prefetcher) };
                for (t, sums) in sums.iter().enumerate() {
                    let mut rows = [0.0; panel::ROWS];
                    // SAFETY: `rows` has room for 16 floats.
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
