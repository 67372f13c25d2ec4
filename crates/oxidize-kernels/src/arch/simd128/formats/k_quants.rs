//! The K-quants, blocks of 256 with quantized scales, and TQ2_0, whose bits are packed in the same order.

use super::super::format::{Format, Scales, bits_set, bytes32, low_nibbles};
use super::super::vector::I8x16;
use crate::quant::q2_k::Q2_K;
use crate::quant::q3_k::Q3_K;
use crate::quant::q4_k::{Q4_K, scales_and_mins};
use crate::quant::q5_k::Q5_K;
use crate::quant::q6_k::Q6_K;
use crate::quant::tq2_0::TQ2_0;

pub(crate) struct Q4K;

impl Format for Q4K {
    type Block = Q4_K;
    const GROUP: usize = 32;
    const MIN: bool = true;

    #[inline(always)]
    fn scales(chunk: &[Q4_K], out: &mut Scales) {
        for Q4_K {
            d, dmin, scales, ..
        } in chunk
        {
            set_eight(out, d.to_f32(), -dmin.to_f32(), scales);
        }
    }

    #[inline(always)]
    fn unpack(block: &Q4_K, mut put: impl FnMut(usize, [I8x16; 2])) {
        for (pair, qs) in block.qs.as_chunks().0.iter().enumerate() {
            let x = bytes32(qs);
            put(2 * pair, x.map(low_nibbles));
            put(2 * pair + 1, x.map(I8x16::shift_right::<4>));
        }
    }
}

pub(crate) struct Q5K;

impl Format for Q5K {
    type Block = Q5_K;
    const GROUP: usize = 32;
    const MIN: bool = true;

    #[inline(always)]
    fn scales(chunk: &[Q5_K], out: &mut Scales) {
        for Q5_K {
            d, dmin, scales, ..
        } in chunk
        {
            set_eight(out, d.to_f32(), -dmin.to_f32(), scales);
        }
    }

    #[inline(always)]
    fn unpack(block: &Q5_K, mut put: impl FnMut(usize, [I8x16; 2])) {
        let high = bytes32(&block.qh);
        let fifth = |group: usize| high.map(|x| bits_set(x, I8x16::splat(1 << group), 0x10));
        for (pair, qs) in block.qs.as_chunks().0.iter().enumerate() {
            let [a, b] = bytes32(qs);
            let [c, d] = fifth(2 * pair);
            put(2 * pair, [low_nibbles(a) | c, low_nibbles(b) | d]);
            let [c, d] = fifth(2 * pair + 1);
            put(
                2 * pair + 1,
                [a.shift_right::<4>() | c, b.shift_right::<4>() | d],
            );
        }
    }
}

pub(crate) struct Q6K;

impl Format for Q6K {
    type Block = Q6_K;
    const GROUP: usize = 16;
    const OFFSET: u8 = 32;

    #[inline(always)]
    fn scales(chunk: &[Q6_K], out: &mut Scales) {
        for Q6_K { d, scales, .. } in chunk {
            out.scale = scales.map(|scale| d.to_f32() * f32::from(scale));
        }
    }

    #[inline(always)]
    fn unpack(block: &Q6_K, mut put: impl FnMut(usize, [I8x16; 2])) {
        let (low, high) = (block.ql.as_chunks::<32>().0, block.qh.as_chunks().0);
        for (half, high) in high.iter().enumerate() {
            let (a, b) = (bytes32(&low[2 * half]), bytes32(&low[2 * half + 1]));
            let high = bytes32(high);
            let two = I8x16::splat(0x30);
            let group = |low: [I8x16; 2], high: [I8x16; 2]| {
                [low[0] | high[0] & two, low[1] | high[1] & two]
            };
            let x = high.map(I8x16::shift_left::<4>);
            put(4 * half, group(a.map(low_nibbles), x));
            let x = high.map(I8x16::shift_left::<2>);
            put(4 * half + 1, group(b.map(low_nibbles), x));
            put(4 * half + 2, group(a.map(I8x16::shift_right::<4>), high));
            let x = high.map(I8x16::shift_right::<2>);
            put(4 * half + 3, group(b.map(I8x16::shift_right::<4>), x));
        }
    }
}

pub(crate) struct Q2K;

impl Format for Q2K {
    type Block = Q2_K;
    const GROUP: usize = 16;
    const MIN: bool = true;

    #[inline(always)]
    fn scales(chunk: &[Q2_K], out: &mut Scales) {
        for block in chunk {
            let (d, dmin) = (block.d.to_f32(), -block.dmin.to_f32());
            out.scale = block.scales.map(|x| d * f32::from(x & 15));
            out.min = block.scales.map(|x| dmin * f32::from(x >> 4));
        }
    }

    #[inline(always)]
    fn unpack(block: &Q2_K, put: impl FnMut(usize, [I8x16; 2])) {
        bit_pairs(&block.qs, put);
    }
}

pub(crate) struct Q3K;

impl Format for Q3K {
    type Block = Q3_K;
    const GROUP: usize = 16;
    const OFFSET: u8 = 4;

    #[inline(always)]
    fn scales(chunk: &[Q3_K], out: &mut Scales) {
        for block in chunk {
            let d = block.d.to_f32();
            out.scale = block.group_scales().map(|scale| d * f32::from(scale));
        }
    }

    #[inline(always)]
    fn unpack(block: &Q3_K, mut put: impl FnMut(usize, [I8x16; 2])) {
        let high = bytes32(&block.hmask);
        bit_pairs(&block.qs, |group, [a, b]| {
            let [c, d] = high.map(|x| bits_set(x, I8x16::splat(1 << group), 4));
            put(group, [a | c, b | d]);
        });
    }
}

pub(crate) struct Tq2_0;

impl Format for Tq2_0 {
    type Block = TQ2_0;
    const GROUP: usize = 32;
    const OFFSET: u8 = 1;

    #[inline(always)]
    fn scales(chunk: &[TQ2_0], out: &mut Scales) {
        for block in chunk {
            out.scale = [block.d.to_f32(); 16];
        }
    }

    #[inline(always)]
    fn unpack(block: &TQ2_0, put: impl FnMut(usize, [I8x16; 2])) {
        bit_pairs(&block.qs, put);
    }
}

/// Unpacks the scales and minima of Q4_K and Q5_K.
#[inline(always)]
fn set_eight(out: &mut Scales, d: f32, dmin: f32, packed: &[u8; 12]) {
    let (scales, mins) = scales_and_mins(packed);
    for i in 0..8 {
        out.scale[i] = d * f32::from(scales[i]);
        out.min[i] = dmin * f32::from(mins[i]);
    }
}

/// Unpacks groups of which 32 bytes hold four, two bits each.
#[inline(always)]
fn bit_pairs(qs: &[u8; 64], mut put: impl FnMut(usize, [I8x16; 2])) {
    let two = I8x16::splat(3);
    for (half, qs) in qs.as_chunks().0.iter().enumerate() {
        let x = bytes32(qs);
        put(4 * half, x.map(|x| x & two));
        put(4 * half + 1, x.map(|x| x.shift_right::<2>() & two));
        put(4 * half + 2, x.map(|x| x.shift_right::<4>() & two));
        put(4 * half + 3, x.map(I8x16::shift_right::<6>));
    }
}
