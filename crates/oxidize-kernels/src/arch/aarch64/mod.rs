//! aarch64: NEON, which every processor has, and its product of bytes (`dotprod`), which those since
//! about 2018 have.

pub(crate) mod vector;

use std::arch::aarch64::*;
use std::arch::asm;

use super::simd128::{self, Products};
use crate::table::{Isa, Kernels};
use vector::{I8x16, I32x4, neon};

/// The kernels of an instruction set, if this machine has it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    static NEON: Kernels = Kernels {
        isa: Isa::Neon,
        functions: simd128::functions::<Neon>(),
    };
    static DOTPROD: Kernels = Kernels {
        isa: Isa::NeonDotprod,
        functions: simd128::functions::<Dotprod>(),
    };
    match isa {
        Isa::Neon => Some(&NEON),
        Isa::NeonDotprod => std::arch::is_aarch64_feature_detected!("dotprod").then_some(&DOTPROD),
        _ => None,
    }
}

/// Products by multiplications that widen to 16 bits. Two products fit there, as no activation is −128.
#[derive(Clone, Copy)]
struct Neon;

impl Products for Neon {
    type Stretched = [I8x16; 1];

    unsafe fn assume() -> Self {
        Neon
    }

    #[inline(always)]
    fn add_products(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4 {
        let low = neon!(vmull_s8(vget_low_s8(x.0), vget_low_s8(y.0)));
        I32x4(neon!(vpadalq_s16(sum.0, vmlal_high_s8(low, x.0, y.0))))
    }

    #[inline(always)]
    fn stretch(x: I8x16) -> [I8x16; 1] {
        [x]
    }

    #[inline(always)]
    fn add_lane<const LANE: usize>(self, sum: I32x4, x: I8x16, y: &[u8; 16]) -> I32x4 {
        let y = I8x16::load(y).as_ints().0;
        let four = match LANE {
            0 => neon!(vdupq_laneq_s32::<0>(y)),
            1 => neon!(vdupq_laneq_s32::<1>(y)),
            2 => neon!(vdupq_laneq_s32::<2>(y)),
            _ => neon!(vdupq_laneq_s32::<3>(y)),
        };
        let y = I32x4(four).as_bytes();
        let low = neon!(vmull_s8(vget_low_s8(x.0), vget_low_s8(y.0)));
        let pairs = neon!(vpaddq_s16(low, vmull_high_s8(x.0, y.0)));
        I32x4(neon!(vpadalq_s16(sum.0, pairs)))
    }
}

/// Proof that this machine has the product of four bytes. Its intrinsics are not stable.
#[derive(Clone, Copy)]
struct Dotprod(());

impl Products for Dotprod {
    type Stretched = [I8x16; 1];

    unsafe fn assume() -> Self {
        Dotprod(())
    }

    #[inline(always)]
    fn add_products(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4 {
        let mut sum = sum.0;
        // SAFETY: the machine has the instruction, as `self` says; it works on registers only.
        unsafe {
            asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {x:v}.16b, {y:v}.16b",
                sum = inout(vreg) sum, x = in(vreg) x.0, y = in(vreg) y.0,
                options(pure, nomem, nostack, preserves_flags));
        }
        I32x4(sum)
    }

    #[inline(always)]
    fn stretch(x: I8x16) -> [I8x16; 1] {
        [x]
    }

    #[inline(always)]
    fn add_lane<const LANE: usize>(self, sum: I32x4, x: I8x16, y: &[u8; 16]) -> I32x4 {
        let (mut sum, y) = (sum.0, I8x16::load(y).0);
        // SAFETY: as above.
        unsafe {
            asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {x:v}.16b, {y:v}.4b[{lane}]",
                sum = inout(vreg) sum, x = in(vreg) x.0, y = in(vreg) y, lane = const LANE,
                options(pure, nomem, nostack, preserves_flags));
        }
        I32x4(sum)
    }
}
