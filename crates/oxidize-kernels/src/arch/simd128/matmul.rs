//! Dispatch of the matrix product: chooses between GEMV, GEMM and products in floats.

use super::Int8Dot;
use super::dot::{self, GEMV_TOKENS};
use super::float::{self, Bf16, F16};
use super::format::Format;
use super::formats::with_format;
use super::gemm_i16;
use super::panel::{self, Panel};
use super::tile::{TileRows, multiply_panel};
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, Scratch, WeightRows};
use crate::out::TileMut;
use crate::quant::TensorType;

/// See [`crate::Kernels::matmul`].
///
/// # Safety
/// The machine must have the instructions of `P`.
pub(crate) unsafe fn matmul<P: Int8Dot>(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller guarantees that the machine has the instructions of `P`.
    let products = unsafe { P::assume() };
    match (weight.ty(), acts.quantized_i16()) {
        (TensorType::F16, Some(acts)) if P::HAS_I16 => {
            return gemm_i16::matmul::<F16, P>(products, weight, acts, epilogue, out, scratch);
        }
        (TensorType::BF16, Some(acts)) if P::HAS_I16 => {
            return gemm_i16::matmul::<Bf16, P>(products, weight, acts, epilogue, out, scratch);
        }
        _ => {}
    }
    let Some(bytes) = acts.quantized_i8() else {
        return float::matmul(weight, acts, epilogue, out, scratch);
    };
    with_format!(
        weight.ty(),
        F => match acts.uses_gemv(GEMV_TOKENS) {
            true => dot::gemv::<F, P>(products, weight, bytes, epilogue, out),
            false => gemm::<F, P>(products, weight, bytes, epilogue, out, scratch),
        },
        float::matmul(weight, acts, epilogue, out, scratch)
    );
}

/// Products panel by panel. The weight is of format `F`.
fn gemm<F: Format, P: Int8Dot>(
    products: P,
    weight: WeightRows<'_>,
    acts: &QuantizedRows,
    epilogue: Epilogue<'_>,
    mut out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    let acts = TileRows::new::<P>(acts, &mut scratch.floats);
    let multiply = match (F::GROUP, F::MIN) {
        (16, true) => multiply_panel::<P, 16, true>,
        (16, false) => multiply_panel::<P, 16, false>,
        (_, true) => multiply_panel::<P, 32, true>,
        (_, false) => multiply_panel::<P, 32, false>,
    };
    for first_row in (0..weight.rows()).step_by(panel::ROWS) {
        let panel =
            Panel::unpack::<F, P>(&weight, first_row, &mut scratch.bytes, &mut scratch.scales);
        multiply(products, &panel, &acts, first_row, &epilogue, &mut out);
    }
}
