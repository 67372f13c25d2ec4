//! Quantization of activations to integers.

use super::gemm_i16;
use super::slices::largest;
use super::vector::{F32x4, I8x16};
use crate::ops::matmul::{GROUP, I8Row, QuantizedRow, ZERO_POINT};

/// See [`crate::Kernels::quantize_activations`].
pub(crate) fn quantize_activation_row(x: &[f32], out: QuantizedRow<'_>) {
    match out {
        QuantizedRow::I8(out) => quantize_i8(x, out),
        QuantizedRow::I16(out) => gemm_i16::quantize(x, out),
    }
}

fn quantize_i8(x: &[f32], mut out: I8Row<'_>) {
    let mut common = None;
    let mut total = 0;
    for (g, group) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        common = out.shared_from(g, x).map(magnitude).or(common);
        let scale = common.unwrap_or_else(|| magnitude(group)) / 127.0;
        // A scale too small to be inverted makes a group of zeros.
        let inverse = match scale > f32::MIN_POSITIVE {
            true => F32x4::splat(1.0 / scale),
            false => F32x4::splat(0.0),
        };
        let (halves, _) = group.as_chunks::<16>();
        let quants = &mut out.quants.as_chunks_mut::<GROUP>().0[g];
        let quants: &mut [[u8; 16]; 2] = bytemuck::cast_mut(quants);
        let mut sum = 0;
        for (half, (x, quants)) in halves.iter().zip(quants).enumerate() {
            let (x, _) = x.as_chunks();
            let ints = std::array::from_fn(|i| (F32x4::load(&x[i]) * inverse).rounded());
            let bytes = I8x16::narrow(ints);
            bytes.store(quants);
            let half_sum = bytes.sum();
            out.half_sums[2 * g + half] = scale * half_sum as f32;
            out.zero_point_sums[2 * g + half] = ZERO_POINT * half_sum;
            sum += half_sum;
        }
        out.scales[g] = scale;
        out.sums[g] = scale * sum as f32;
        total += sum;
    }
    *out.total = total;
    out.clear_padding(x.len() / GROUP);
}

/// The largest magnitude, ignoring NaN.
#[inline(always)]
fn magnitude(x: &[f32]) -> f32 {
    largest(x, 0.0, F32x4::abs)
}
