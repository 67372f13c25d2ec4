//! The operations in registers of 128 bits, written once for NEON and WebAssembly.
//!
//! The instruction set supplies its registers (`vector`) and its integer dot products ([`Int8Dot`]).
//! Everything else here is built on those two and is safe code: a value of an `Int8Dot` type proves that the
//! machine has the instructions.

mod activation;
mod attention;
mod convert;
mod dot;
mod float;
mod format;
mod formats;
mod gemm_i16;
mod math;
mod matmul;
mod panel;
mod quantize;
mod row;
mod slices;
mod tile;
mod token;

#[cfg(target_arch = "aarch64")]
use super::aarch64::vector;
#[cfg(target_arch = "wasm32")]
use super::wasm32::vector;

use crate::ops;
use crate::quant;
use crate::table::Functions;
use vector::{I8x16, I32x4};

/// Integer dot products of an instruction set. The second factor of a product is never −128. A value of the
/// type proves that the machine has the instructions.
pub(crate) trait Int8Dot: Copy {
    /// Sixteen elements in a tile: one register of 8-bit integers, or two of 16-bit integers.
    type Widened: AsRef<[I8x16]>;

    /// Registers of [`Int8Dot::Widened`].
    const WIDTH: usize = size_of::<Self::Widened>() / 16;

    /// True if tiles are of 16-bit integers. They then also serve weights of 16-bit floats: an instruction
    /// multiplies twice as many 16-bit integers as floats.
    const HAS_I16: bool = Self::WIDTH == 2;

    /// Tokens that share each register of a tile.
    const TOKENS_PER_REGISTER: usize = 1;

    /// Creates the proof without a check.
    ///
    /// # Safety
    /// The machine must have the instructions.
    unsafe fn assume() -> Self;

    /// Adds the sixteen products of two registers of bytes to four sums, in any assignment.
    fn add_products(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4;

    /// Converts bytes to the integers of a tile.
    fn widen(x: I8x16) -> Self::Widened;

    /// Adds to each lane the products of the widened elements of `x` there with lane `LANE` of `y`.
    fn add_lane<const LANE: usize>(self, sum: I32x4, x: I8x16, y: &[u8; 16]) -> I32x4;

    /// Arranges a widened register of each of four rows as four registers of a panel: here each lane is a
    /// row.
    #[inline(always)]
    fn transpose(rows: [I32x4; 4]) -> [I32x4; 4] {
        I32x4::transpose(rows)
    }

    /// Products of a panel's registers with those of `T` tokens: of the first four rows, and of the other
    /// four.
    #[inline(always)]
    fn multiply<const T: usize>(
        self,
        weights: &[[Registers; 4]],
        acts: [&[[u8; 16]]; T],
    ) -> [[I32x4; 2]; T] {
        let mut dots = [[I32x4::splat(0); 2]; T];
        for (i, weights) in weights.iter().enumerate() {
            let acts = acts.map(|acts| &acts[i]);
            macro_rules! lane {
                ($lane:literal) => {
                    let weights = weights[$lane].each_ref().map(I8x16::load);
                    for t in 0..T {
                        for h in 0..2 {
                            dots[t][h] = self.add_lane::<$lane>(dots[t][h], weights[h], acts[t]);
                        }
                    }
                };
            }
            lane!(0);
            lane!(1);
            lane!(2);
            lane!(3);
        }
        dots
    }
}

/// A register of a panel's first four rows, and one of the other four.
pub(crate) type Registers = [[u8; 16]; 2];

/// Functions of the table.
pub(crate) const fn functions<P: Int8Dot>() -> Functions {
    Functions {
        quantize_weights: quant::quantize_weights,
        refine_codes: quant::refine_codes,
        repack: quant::repack,
        quantize_activation_row: quantize::quantize_activation_row,
        matmul: matmul::matmul::<P>,
        attention_part: attention::attention_part,
        store_kv: convert::store_kv,
        rms_norm: row::rms_norm,
        layer_norm: row::layer_norm,
        softmax: row::softmax,
        rope: row::rope,
        activate: activation::activate,
        glu: activation::glu,
        add: row::add,
        mul: row::mul,
        scale: row::scale,
        add_scaled: row::add_scaled,
        softcap: row::softcap,
        dot: row::dot,
        argmax: row::argmax,
        exp_sum: ops::exp_sum::exp_sum,
        sum: ops::exp_sum::sum,
        f32_to_f16: convert::f32_to_f16,
        f16_to_f32: convert::f16_to_f32,
        f32_to_bf16: convert::f32_to_bf16,
        bf16_to_f32: convert::bf16_to_f32,
    }
}
