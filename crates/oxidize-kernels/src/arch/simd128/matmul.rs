//! The matrix product: chooses between direct products, tiles and floats.

use super::Products;
use super::dot::{self, direct};
use super::float::{self, Bf16, F16};
use super::format::Format;
use super::formats::with_format;
use super::panel::{self, Panel};
use super::tile::{TileRows, multiply_panel};
use super::words;
use crate::ops::matmul::{Activations, Epilogue, QuantizedRows, Scratch, WeightRows};
use crate::out::TileMut;
use crate::quant::TensorType;

/// See [`crate::Kernels::matmul`].
///
/// # Safety
/// The machine has the instructions of `P`; the shapes fit together.
pub(crate) unsafe fn matmul<P: Products>(
    weight: WeightRows<'_>,
    acts: &Activations<'_>,
    epilogue: Epilogue<'_>,
    out: TileMut<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: as the caller says.
    let products = unsafe { P::assume() };
    match (weight.ty(), acts.words()) {
        (TensorType::F16, Some(acts)) if P::WORDS => {
            return words::matmul::<F16, P>(products, weight, acts, epilogue, out, scratch);
        }
        (TensorType::BF16, Some(acts)) if P::WORDS => {
            return words::matmul::<Bf16, P>(products, weight, acts, epilogue, out, scratch);
        }
        _ => {}
    }
    let Some(bytes) = acts.bytes() else {
        return float::matmul(weight, acts, epilogue, out, scratch);
    };
    with_format!(
        weight.ty(),
        F => match acts.is_direct(dot::TOKENS) {
            true => direct::<F, P>(products, weight, bytes, epilogue, out),
            false => tiled::<F, P>(products, weight, bytes, epilogue, out, scratch),
        },
        float::matmul(weight, acts, epilogue, out, scratch)
    );
}

/// Panel by panel. The weight is of the format.
fn tiled<F: Format, P: Products>(
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
