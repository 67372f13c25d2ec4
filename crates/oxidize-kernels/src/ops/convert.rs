//! Conversions between `f32` and the 16-bit floats, rounding to nearest even.

use half::{bf16, f16};

pub(crate) fn f32_to_f16(x: &[f32], out: &mut [f16]) {
    x.iter()
        .zip(out)
        .for_each(|(&x, out)| *out = f16::from_f32(x));
}

pub(crate) fn f16_to_f32(x: &[f16], out: &mut [f32]) {
    x.iter().zip(out).for_each(|(x, out)| *out = x.to_f32());
}

pub(crate) fn f32_to_bf16(x: &[f32], out: &mut [bf16]) {
    x.iter()
        .zip(out)
        .for_each(|(&x, out)| *out = bf16::from_f32(x));
}

pub(crate) fn bf16_to_f32(x: &[bf16], out: &mut [f32]) {
    x.iter().zip(out).for_each(|(x, out)| *out = x.to_f32());
}
