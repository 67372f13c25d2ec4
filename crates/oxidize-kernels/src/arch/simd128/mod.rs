//! The operations in registers of 128 bits, written once for NEON and WebAssembly.
//!
//! `vector` is what the instruction set calls its registers, and [`Products`] how it multiplies bytes.
//! Everything here is made of those two and is safe code: what the machine must have is known from
//! the witness that `Products` is.

mod activation;
mod attention;
mod convert;
mod dot;
mod float;
mod format;
mod formats;
mod math;
mod matmul;
mod panel;
mod quantize;
mod row;
mod slices;
mod tile;
mod token;
mod words;

#[cfg(target_arch = "aarch64")]
use super::aarch64::vector;
#[cfg(target_arch = "wasm32")]
use super::wasm32::vector;

use crate::ops;
use crate::quant;
use crate::table::Functions;
use vector::{I8x16, I32x4};

/// How an instruction set multiplies bytes, of which the second of a product is never −128. A value of
/// the type is proof that the machine can.
pub(crate) trait Products: Copy {
    /// Sixteen elements in a tile: one register of bytes, or two of words.
    type Stretched: AsRef<[I8x16]>;

    /// Registers of [`Products::Stretched`].
    const WIDTH: usize = size_of::<Self::Stretched>() / 16;

    /// Whether tiles are of words. They then serve weights of 16-bit floats, too: an instruction multiplies
    /// twice as many words as floats.
    const WORDS: bool = Self::WIDTH == 2;

    /// Tokens that lie side by side in each register of a tile.
    const ABREAST: usize = 1;

    /// The proof, on the caller's word.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn assume() -> Self;

    /// Adds the sixteen products of two registers of bytes to four sums, it does not matter which to
    /// which.
    fn add_products(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4;

    /// Bytes as tiles hold them.
    fn stretch(x: I8x16) -> Self::Stretched;

    /// Adds to each lane the products of what `x` has there, stretched, with lane `LANE` of `y`.
    fn add_lane<const LANE: usize>(self, sum: I32x4, x: I8x16, y: &[u8; 16]) -> I32x4;

    /// A register of each of four rows, stretched, as four registers of a panel: here each lane is a row.
    #[inline(always)]
    fn turn(rows: [I32x4; 4]) -> [I32x4; 4] {
        I32x4::transpose(rows)
    }

    /// The products of a panel's registers with those of `T` tokens: of four rows, and of the other four.
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

/// A register of a panel's first four rows, and one of the others.
pub(crate) type Registers = [[u8; 16]; 2];

/// The functions of the table.
pub(crate) const fn functions<P: Products>() -> Functions {
    Functions {
        encode: quant::encode,
        settle: quant::settle,
        spell_out: quant::spell_out,
        quantize_row: quantize::quantize_row,
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
        weigh: ops::weigh::weigh,
        sum: ops::weigh::sum,
        f32_to_f16: convert::f32_to_f16,
        f16_to_f32: convert::f16_to_f32,
        f32_to_bf16: convert::f32_to_bf16,
        bf16_to_f32: convert::bf16_to_f32,
    }
}
