//! The formats that are unpacked by their scalar code: TQ1_0, which counts in base 3, NVFP4, and the
//! spelled-out ones, which nobody asks for here.

use super::super::format::{Format, Scales, bytes32};
use super::super::vector::I8x16;
use crate::quant::nvfp4::{self, NVFP4};
use crate::quant::spelled::*;
use crate::quant::tq1_0::TQ1_0;

/// Formats of `$group` weights a scale; `$scales` are those of a block.
macro_rules! by_levels {
    ($($name:ident of $ty:ty, groups of $group:literal, scales |$block:ident| $scales:expr;)*) => {$(
        pub(crate) struct $name;

        impl Format for $name {
            type Block = $ty;
            const GROUP: usize = $group;

            #[inline(always)]
            fn scales(chunk: &[$ty], out: &mut Scales) {
                let scales = chunk.iter().flat_map(|$block| $scales);
                out.scale.iter_mut().zip(scales).for_each(|(out, scale)| *out = scale);
            }

            #[inline(always)]
            fn unpack(block: &$ty, mut put: impl FnMut(usize, [I8x16; 2])) {
                let levels = block.levels();
                for (group, levels) in levels.as_chunks::<32>().0.iter().enumerate() {
                    put(group, bytes32(bytemuck::cast_ref(levels)));
                }
            }
        }
    )*};
}

by_levels! {
    Tq1_0 of TQ1_0, groups of 32, scales |block| [block.d.to_f32(); 8];
    Nvfp4 of NVFP4, groups of 16, scales |block| block.d.map(nvfp4::half_scale);
    Iq1SSpelled of IQ1_S_SPELLED, groups of 32, scales |block| block.group_scales();
    Iq1MSpelled of IQ1_M_SPELLED, groups of 16, scales |block| block.group_scales();
    Iq2XxsSpelled of IQ2_XXS_SPELLED, groups of 32, scales |block| block.group_scales();
    Iq2SSpelled of IQ2_S_SPELLED, groups of 16, scales |block| block.group_scales();
    Iq3XxsSpelled of IQ3_XXS_SPELLED, groups of 32, scales |block| block.group_scales();
    Iq3SSpelled of IQ3_S_SPELLED, groups of 32, scales |block| block.group_scales();
}
