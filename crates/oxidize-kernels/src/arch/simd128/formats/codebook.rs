//! The formats whose 4-bit codes index a codebook of 16 levels: IQ4_NL, IQ4_XS, MXFP4.

use super::super::format::{Format, Scales, nibbles, set_halves};
use super::super::vector::I8x16;
use crate::quant::iq4_nl::{IQ4_NL, LEVELS};
use crate::quant::iq4_xs::IQ4_XS;
use crate::quant::mxfp4::{E2M1_DOUBLED, MXFP4};

pub(crate) struct Iq4Nl;

impl Format for Iq4Nl {
    type Block = IQ4_NL;
    const GROUP: usize = 32;

    #[inline(always)]
    fn scales(chunk: &[IQ4_NL], out: &mut Scales) {
        set_halves(&mut out.scale, chunk, |block| block.d);
    }

    #[inline(always)]
    fn unpack(block: &IQ4_NL, mut put: impl FnMut(usize, [I8x16; 2])) {
        put(0, levels(&LEVELS, &block.qs));
    }
}

pub(crate) struct Iq4Xs;

impl Format for Iq4Xs {
    type Block = IQ4_XS;
    const GROUP: usize = 32;

    #[inline(always)]
    fn scales(chunk: &[IQ4_XS], out: &mut Scales) {
        for block in chunk {
            let d = block.d.to_f32();
            for (out, scale) in out.scale.iter_mut().zip(block.group_scales()) {
                *out = d * f32::from(scale);
            }
        }
    }

    #[inline(always)]
    fn unpack(block: &IQ4_XS, mut put: impl FnMut(usize, [I8x16; 2])) {
        for (group, qs) in block.qs.as_chunks().0.iter().enumerate() {
            put(group, levels(&LEVELS, qs));
        }
    }
}

pub(crate) struct Mxfp4;

impl Format for Mxfp4 {
    type Block = MXFP4;
    const GROUP: usize = 32;

    #[inline(always)]
    fn scales(chunk: &[MXFP4], out: &mut Scales) {
        for (out, block) in out.scale.iter_mut().zip(chunk) {
            *out = block.half_scale();
        }
    }

    #[inline(always)]
    fn unpack(block: &MXFP4, mut put: impl FnMut(usize, [I8x16; 2])) {
        put(0, levels(&E2M1_DOUBLED, &block.qs));
    }
}

/// Looks up 32 nibbles in a table of levels.
#[inline(always)]
fn levels(table: &[i8; 16], qs: &[u8; 16]) -> [I8x16; 2] {
    let table = I8x16::load(bytemuck::cast_ref(table));
    nibbles(qs).map(|indices| table.lookup(indices))
}
