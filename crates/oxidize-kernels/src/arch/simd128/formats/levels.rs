//! The formats that are unpacked by their scalar code: they look up tables of several weights an entry,
//! count in base 3, or are rare. Their products are those of the others.

use super::super::format::{Format, Scales, bytes32};
use super::super::vector::I8x16;
use crate::quant::iq1_m::IQ1_M;
use crate::quant::iq1_s::IQ1_S;
use crate::quant::iq2_s::IQ2_S;
use crate::quant::iq2_xs::IQ2_XS;
use crate::quant::iq2_xxs::IQ2_XXS;
use crate::quant::iq3_s::IQ3_S;
use crate::quant::iq3_xxs::IQ3_XXS;
use crate::quant::nvfp4::{self, NVFP4};
use crate::quant::tq1_0::TQ1_0;

/// Formats of `$group` weights a scale; `$scales` are those of a block.
macro_rules! by_levels {
    ($($name:ident of $block:ty, groups of $group:literal, scales |$b:ident| $scales:expr;)*) => {$(
        pub(crate) struct $name;

        impl Format for $name {
            type Block = $block;
            const GROUP: usize = $group;

            #[inline(always)]
            fn scales(chunk: &[$block], out: &mut Scales) {
                let scales = chunk.iter().flat_map(|$b| $scales);
                out.scale.iter_mut().zip(scales).for_each(|(out, scale)| *out = scale);
            }

            #[inline(always)]
            fn unpack(block: &$block, mut put: impl FnMut(usize, [I8x16; 2])) {
                let levels = block.levels();
                for (group, levels) in levels.as_chunks::<32>().0.iter().enumerate() {
                    put(group, bytes32(bytemuck::cast_ref(levels)));
                }
            }
        }
    )*};
}

by_levels! {
    Iq1S of IQ1_S, groups of 32, scales |block| block.unpacked().scales();
    Iq1M of IQ1_M, groups of 16, scales |block| block.unpacked().scales();
    Iq2Xxs of IQ2_XXS, groups of 32, scales |block| block.unpacked().scales();
    Iq2Xs of IQ2_XS, groups of 16, scales |block| block.unpacked().scales();
    Iq2S of IQ2_S, groups of 16, scales |block| block.unpacked().scales();
    Iq3Xxs of IQ3_XXS, groups of 32, scales |block| block.unpacked().scales();
    Iq3S of IQ3_S, groups of 32, scales |block| block.unpacked().scales();
    Tq1_0 of TQ1_0, groups of 32, scales |block| [block.d.to_f32(); 8];
    Nvfp4 of NVFP4, groups of 16, scales |block| block.d.map(nvfp4::half_scale);
}
