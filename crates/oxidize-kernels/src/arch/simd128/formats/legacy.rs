//! The formats with blocks of 32 and evenly spaced levels: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

use super::super::format::{Format, Scales, bytes32, nibbles, set_halves, spread_bits};
use super::super::vector::I8x16;
use crate::quant::fields::U32Le;
use crate::quant::{q4_0, q4_1, q5_0, q5_1, q8_0};

macro_rules! legacy {
    ($name:ident of $block:ty, offset $offset:literal, $(min $min:ident,)?
     unpack |$u:ident| $unpack:expr) => {
        pub(crate) struct $name;

        impl Format for $name {
            type Block = $block;
            const GROUP: usize = 32;
            const OFFSET: u8 = $offset;
            $(const MIN: bool = stringify!($min).len() > 0;)?

            #[inline(always)]
            fn scales(chunk: &[$block], out: &mut Scales) {
                set_halves(&mut out.scale, chunk, |block| block.d);
                $(set_halves(&mut out.min, chunk, |block| block.$min);)?
            }

            #[inline(always)]
            fn unpack($u: &$block, mut put: impl FnMut(usize, [I8x16; 2])) {
                put(0, $unpack);
            }
        }
    };
}

legacy!(Q4_0 of q4_0::Q4_0, offset 8, unpack |block| nibbles(&block.qs));
legacy!(Q4_1 of q4_1::Q4_1, offset 0, min m, unpack |block| nibbles(&block.qs));
legacy!(Q5_0 of q5_0::Q5_0, offset 16, unpack |block| five_bits(&block.qs, block.qh));
legacy!(Q5_1 of q5_1::Q5_1, offset 0, min m, unpack |block| five_bits(&block.qs, block.qh));
legacy!(Q8_0 of q8_0::Q8_0, offset 0, unpack |block| bytes32(bytemuck::cast_ref(&block.qs)));

/// 32 nibbles with their fifth bits.
#[inline(always)]
fn five_bits(qs: &[u8; 16], qh: U32Le) -> [I8x16; 2] {
    let ([a, b], [c, d]) = (nibbles(qs), spread_bits(qh.get(), 0x10));
    [a | c, b | d]
}
