//! The formats whose codes index a grid, a table of vectors of 4 or 8 magnitudes: IQ1_S to IQ3_S.

use super::super::format::{Format, Scales, bytes32, spread_bits};
use super::super::vector::I8x16;
use crate::quant::grids::{
    IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID, even_signs,
};
use crate::quant::iq1_m::IQ1_M;
use crate::quant::iq1_s::IQ1_S;
use crate::quant::iq2_s::IQ2_S;
use crate::quant::iq2_xs::IQ2_XS;
use crate::quant::iq2_xxs::IQ2_XXS;
use crate::quant::iq3_s::IQ3_S;
use crate::quant::iq3_xxs::IQ3_XXS;

/// A format with one block per chunk: the scale of group `g` is `unit` times an odd number, and `weights` are
/// 32 of its weights.
macro_rules! grid {
    ($name:ident of $ty:ty, groups of $group:literal, |$block:ident, $g:ident|
     unit $unit:expr, scale $scale:expr, weights $weights:expr) => {
        pub(crate) struct $name;

        impl Format for $name {
            type Block = $ty;
            const GROUP: usize = $group;

            #[inline(always)]
            fn scales(chunk: &[$ty], out: &mut Scales) {
                for $block in chunk {
                    let unit: f32 = $unit;
                    for $g in 0..256 / $group {
                        let scale: u32 = $scale;
                        out.scale[$g] = unit * (2 * scale + 1) as f32;
                    }
                }
            }

            #[inline(always)]
            fn unpack($block: &$ty, mut put: impl FnMut(usize, [I8x16; 2])) {
                for $g in 0..8 {
                    put($g, $weights);
                }
            }
        }
    };
}

grid!(Iq2Xxs of IQ2_XXS, groups of 32, |block, g|
unit block.d.to_f32() * 0.125,
scale upper_u32(&block.qs[g]) >> 28,
weights {
    let entries = std::array::from_fn(|i| IQ2_XXS_GRID[usize::from(block.qs[g][i])]);
    signed(from_u64s(entries), seven_bits(upper_u32(&block.qs[g])))
});

grid!(Iq2Xs of IQ2_XS, groups of 16, |block, g|
unit block.d.to_f32() * 0.125,
scale nibble(&block.scales, g),
weights {
    let qs: [u16; 4] = std::array::from_fn(|i| block.qs[4 * g + i].get());
    let signs = qs.map(|q| even_signs((q >> 9) as u8));
    signed(from_u64s(qs.map(|q| IQ2_XS_GRID[usize::from(q & 511)])), signs)
});

grid!(Iq2S of IQ2_S, groups of 16, |block, g|
unit block.d.to_f32() * 0.125,
scale nibble(&block.scales, g),
weights {
    let entries = std::array::from_fn(|i| {
        let high = usize::from(block.qh[g] >> (2 * i) & 3);
        IQ2_S_GRID[usize::from(block.qs[4 * g + i]) | high << 8]
    });
    signed(from_u64s(entries), std::array::from_fn(|i| block.signs[4 * g + i]))
});

grid!(Iq3Xxs of IQ3_XXS, groups of 32, |block, g|
unit block.d.to_f32() * 0.25,
scale block.scales[g].get() >> 28,
weights {
    let entries = std::array::from_fn(|i| IQ3_XXS_GRID[usize::from(block.qs[8 * g + i])]);
    signed(from_u32s(entries), seven_bits(block.scales[g].get()))
});

grid!(Iq3S of IQ3_S, groups of 32, |block, g|
unit block.d.to_f32(),
scale nibble(&block.scales, g),
weights {
    let entries = std::array::from_fn(|i| {
        let high = usize::from(block.qh[g] >> i & 1);
        IQ3_S_GRID[usize::from(block.qs[8 * g + i]) | high << 8]
    });
    signed(from_u32s(entries), std::array::from_fn(|i| block.signs[4 * g + i]))
});

grid!(Iq1S of IQ1_S, groups of 32, |block, g|
unit block.d.to_f32() * 0.125,
scale u32::from(block.qh[g].get() >> 12 & 7),
weights {
    let high = block.qh[g].get();
    let entries = std::array::from_fn(|i| {
        let high = usize::from(high >> (3 * i) & 7);
        IQ1_GRID[usize::from(block.qs[4 * g + i]) | high << 8]
    });
    shifted(entries, [high & 0x8000 != 0; 4])
});

grid!(Iq1M of IQ1_M, groups of 16, |block, g|
unit block.d() * 0.125,
scale u32::from(block.scales[g / 4].get() >> (g % 4 * 3) & 7),
weights {
    let nibble = |i: usize| usize::from(block.qh[2 * g + i / 2] >> (i % 2 * 4) & 15);
    let entries = std::array::from_fn(|i| {
        IQ1_GRID[usize::from(block.qs[4 * g + i]) | (nibble(i) & 7) << 8]
    });
    shifted(entries, std::array::from_fn(|i| nibble(i) & 8 != 0))
});

/// The `i`th number of 4 bits, two per byte.
#[inline(always)]
fn nibble(packed: &[u8], i: usize) -> u32 {
    u32::from(packed[i / 2] >> (i % 2 * 4) & 15)
}

/// The last four of eight bytes.
#[inline(always)]
fn upper_u32(bytes: &[u8; 8]) -> u32 {
    u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// Four times seven sign bits, completed by the eighth, which makes the number of set bits even.
#[inline(always)]
fn seven_bits(word: u32) -> [u8; 4] {
    std::array::from_fn(|i| even_signs((word >> (7 * i)) as u8))
}

#[inline(always)]
fn from_u64s(entries: [u64; 4]) -> [I8x16; 2] {
    bytes32(bytemuck::cast_ref(&entries.map(u64::to_le_bytes)))
}

#[inline(always)]
fn from_u32s(entries: [u32; 8]) -> [I8x16; 2] {
    bytes32(bytemuck::cast_ref(&entries.map(u32::to_le_bytes)))
}

/// Magnitudes, negated where the bit of the same index is set.
#[inline(always)]
fn signed([a, b]: [I8x16; 2], signs: [u8; 4]) -> [I8x16; 2] {
    let [c, d] = spread_bits(u32::from_le_bytes(signs), 0xff);
    [(a ^ c) - c, (b ^ d) - d]
}

/// Eight times the entries' −1, 0 and 1, plus 1 for each eight weights, or minus 1 where `minus` is true.
#[inline(always)]
fn shifted(entries: [u64; 4], minus: [bool; 4]) -> [I8x16; 2] {
    let [a, b] = from_u64s(entries).map(I8x16::shift_left::<3>);
    let shifts = minus.map(|minus| {
        if minus {
            u64::MAX
        } else {
            0x0101_0101_0101_0101
        }
    });
    let [c, d] = from_u64s(shifts);
    [a + c, b + d]
}
