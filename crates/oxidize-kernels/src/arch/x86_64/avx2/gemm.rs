//! Matrix product kernels of AVX2, also used for AVX-VNNI.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::dot::{self, Dot256};
use super::float;
use super::format::Format;
use super::gemm_i16::{self, QuantizeI16};
use super::int8_dot::Int8Dot;
use super::panel::{self, Panel, Prefetcher};
use super::tile::{BytePanel, MaddubsLayout, PanelLayout, RowScalePanel, VnniLayout};
use crate::arch::x86_64::avx512::formats::GemvFormat;
use crate::arch::x86_64::matmul::MatmulIsa;
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, RawRows, Scratch, WeightRows};
use crate::out::TileMut;

/// Kernels in registers of 256 bits, with the integer dot products of `P`.
pub(crate) struct Matmul256<P>(PhantomData<P>);

// SAFETY: the methods need AVX2, FMA and F16C, and the instructions of `P`.
unsafe impl<P: Int8Dot> MatmulIsa for Matmul256<P> {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn gemv<F: GemvFormat>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
    ) {
        // SAFETY: AVX2, FMA and F16C are enabled here, and the machine has the instructions of `P`; the
        // weight is of format `F`, and the trait's shapes are those of `dot::gemv`.
        unsafe { dot::gemv::<Dot256<F, P>>(weight, acts, epilogue, out) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn gemm<F: Format>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        mut out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        let multiply = match acts.uses_row_scales(&weight) {
            true => multiply_row_scales::<P>,
            false => const { panel_multiplier::<F, P>() },
        };
        for first_row in (0..weight.rows()).step_by(panel::ROWS) {
            // SAFETY: `first_row` is a row of the weight, which is of format `F`; `multiply` takes panels
            // that were unpacked from `F` for `P`, of rows as long as those of `acts`.
            unsafe {
                let panel = panel::unpack::<F, P, false>(&weight, first_row, scratch);
                multiply(&panel, &weight, acts, first_row, &epilogue, &mut out);
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn gemm_i16<F: QuantizeI16>(
        weight: WeightRows<'_>,
        acts: &QuantizedRows,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: AVX2, FMA and F16C are enabled here, and the trait's caller has the instructions of `P`.
        // The weight is of format `F`, `acts` has rows of `weight.k()` 16-bit integers, and `out` is
        // `acts.rows()` × `weight.rows()`.
        unsafe { gemm_i16::matmul::<F, P>(weight, acts, epilogue, out, scratch) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn matmul_f32(
        weight: WeightRows<'_>,
        acts: &Activations<'_>,
        epilogue: Epilogue<'_>,
        out: TileMut<'_>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: AVX2, FMA and F16C are enabled here; `acts` has rows of `weight.k()` elements, and `out` is
        // `acts.rows()` × `weight.rows()`.
        unsafe { float::matmul(weight, acts, epilogue, out, scratch) }
    }
}

/// Multiplies a panel, which begins with the given row of the weight, with all tokens.
type MultiplyPanel =
    unsafe fn(&Panel, &WeightRows<'_>, &QuantizedRows, usize, &Epilogue<'_>, &mut TileMut<'_>);

/// The function that multiplies panels of a format.
const fn panel_multiplier<F: Format, P: Int8Dot>() -> MultiplyPanel {
    if !P::HAS_VNNI {
        return multiply_bytes::<P, MaddubsLayout<F>>;
    }
    // VNNI kernels depend on little of a format, so that formats share them.
    assert!(F::MIN || F::SYMMETRIC);
    match (F::GROUP == 16, F::SYMMETRIC) {
        (false, false) => multiply_bytes::<P, VnniLayout<false, false>>,
        (false, true) => multiply_bytes::<P, VnniLayout<false, true>>,
        (true, false) => multiply_bytes::<P, VnniLayout<true, false>>,
        (true, true) => multiply_bytes::<P, VnniLayout<true, true>>,
    }
}

/// # Safety
/// As [`multiply_panel`], for a panel of layout `L`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_bytes<P: Int8Dot, L: PanelLayout>(
    panel: &Panel,
    weight: &WeightRows<'_>,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    let panel = BytePanel::<L>::new(*panel);
    // SAFETY: AVX2, FMA and F16C are enabled here, and the caller has the instructions of `P`. The panel has
    // layout `L` and rows of `acts.k` elements, `first_row` is a row of the weight, and `out` has a row for
    // each token of `acts`.
    unsafe { multiply_panel::<P, _>(&panel, weight, acts, first_row, epilogue, out) }
}

/// # Safety
/// As [`multiply_panel`], for a panel of INT8, whose rows and tokens have one scale each.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply_row_scales<P: Int8Dot>(
    panel: &Panel,
    weight: &WeightRows<'_>,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    let panel = RowScalePanel(*panel);
    // SAFETY: AVX2, FMA and F16C are enabled here, and the caller has the instructions of `P`. The panel's
    // rows have `acts.k` elements and one scale each, `first_row` is a row of the weight, and `out` has a row
    // for each token of `acts`.
    unsafe { multiply_panel::<P, _>(&panel, weight, acts, first_row, epilogue, out) }
}

/// Tokens of a tile.
const TOKENS: usize = 4;

/// A panel that can be multiplied with up to [`TOKENS`] tokens at once, with the integer dot products of `P`.
///
/// # Safety
/// `tile` needs AVX2 and FMA and the instructions of `P`, a panel of rows of `acts.k` elements, and tokens
/// `first` to `first + T − 1` in `acts`.
pub(crate) unsafe trait TileKernel<P: Int8Dot> {
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
    ) -> [[__m256; 2]; T];
}

/// Multiplies a panel with all tokens.
///
/// # Safety
/// Needs AVX2 and FMA and the instructions of `P`; the panel has rows of as many elements as those of `acts`,
/// from row `first_row` of the weight on, and `out` has a row for each token.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn multiply_panel<P: Int8Dot, K: TileKernel<P>>(
    panel: &K,
    weight: &WeightRows<'_>,
    acts: &QuantizedRows,
    first_row: usize,
    epilogue: &Epilogue<'_>,
    out: &mut TileMut<'_>,
) {
    let (m, acts) = (acts.rows(), acts.raw());
    let times = m.div_ceil(TOKENS) * (acts.k / K::STEP);
    let mut prefetcher = Prefetcher::new(weight, first_row, times);
    for token in (0..m).step_by(TOKENS) {
        macro_rules! run {
            ($t:literal) => {
                // SAFETY: the match below leaves at least `$t` of the `m` tokens from `token` on.
                for (t, sums) in unsafe { panel.tile::<$t>(&acts, token, &mut prefetcher) }
                    .into_iter()
                    .enumerate()
                {
                    // SAFETY: AVX2, FMA and F16C are enabled here; `token + t` is less than `m`, the rows of
                    // `out`.
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
    // SAFETY: the buffer has room for both vectors of eight floats; the caller has AVX2.
    unsafe {
        _mm256_storeu_ps(buffer.as_mut_ptr(), sums[0]);
        _mm256_storeu_ps(buffer.as_mut_ptr().add(8), sums[1]);
    }
    epilogue.write_rows(out.row(token), first_row, &buffer);
}
