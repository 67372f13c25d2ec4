//! The formats that are unpacked by their scalar code: TQ1_0, which packs base-3 digits, NVFP4, and the
//! repacked ones, which are not chosen for these instruction sets.

use super::super::format::{Format, Scales, bytes32};
use super::super::vector::I8x16;
use crate::quant::nvfp4::{self, NVFP4};
use crate::quant::repacked::*;
use crate::quant::tq1_0::TQ1_0;

/// Formats with a scale per `$group` weights; `$scales` are those of a block.
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
    Iq1SRepacked of IQ1_S_REPACKED, groups of 32, scales |block| block.group_scales();
    Iq1MRepacked of IQ1_M_REPACKED, groups of 16, scales |block| block.group_scales();
    Iq2XxsRepacked of IQ2_XXS_REPACKED, groups of 32, scales |block| block.group_scales();
    Iq2SRepacked of IQ2_S_REPACKED, groups of 16, scales |block| block.group_scales();
    Iq3XxsRepacked of IQ3_XXS_REPACKED, groups of 32, scales |block| block.group_scales();
    Iq3SRepacked of IQ3_S_REPACKED, groups of 32, scales |block| block.group_scales();
}
