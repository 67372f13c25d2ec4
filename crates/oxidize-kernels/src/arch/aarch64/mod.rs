//! aarch64: NEON, which every processor has, its dot products of four bytes (`dotprod`), on processors since
//! about 2018, and its products of 2 × 8 matrices of bytes (`i8mm`), since about 2021.

pub(crate) mod vector;

use std::arch::aarch64::*;
use std::arch::asm;

use super::simd128::{self, Int8Dot, Registers};
use crate::table::{Isa, Kernels};
use vector::{I8x16, I32x4, neon};

/// Returns the kernels of an instruction set if this machine has it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    static NEON: Kernels = Kernels {
        isa: Isa::Neon,
        functions: simd128::functions::<Neon>(),
    };
    static DOTPROD: Kernels = Kernels {
        isa: Isa::NeonDotprod,
        functions: simd128::functions::<Dotprod>(),
    };
    static I8MM: Kernels = Kernels {
        isa: Isa::NeonI8mm,
        functions: simd128::functions::<I8mm>(),
    };
    let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
    let i8mm = dotprod && std::arch::is_aarch64_feature_detected!("i8mm");
    match isa {
        Isa::Neon => Some(&NEON),
        Isa::NeonDotprod => dotprod.then_some(&DOTPROD),
        Isa::NeonI8mm => i8mm.then_some(&I8MM),
        _ => None,
    }
}

/// Products by multiplications that widen to 16 bits. Two products fit there, because no activation is −128.
#[derive(Clone, Copy)]
struct Neon;

impl Int8Dot for Neon {
    type Widened = [I8x16; 1];

    unsafe fn assume() -> Self {
        Neon
    }

    #[inline(always)]
    fn add_products(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4 {
        let low = neon!(vmull_s8(vget_low_s8(x.0), vget_low_s8(y.0)));
        I32x4(neon!(vpadalq_s16(sum.0, vmlal_high_s8(low, x.0, y.0))))
    }

    #[inline(always)]
    fn widen(x: I8x16) -> [I8x16; 1] {
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

/// Proof that this machine has `dotprod`, whose intrinsics are not stable.
#[derive(Clone, Copy)]
struct Dotprod(());

impl Int8Dot for Dotprod {
    type Widened = [I8x16; 1];

    unsafe fn assume() -> Self {
        Dotprod(())
    }

    #[inline(always)]
    fn add_products(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4 {
        let mut sum = sum.0;
        // SAFETY: `self` proves that the machine has `dotprod`; the instruction works on registers only.
        unsafe {
            asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {x:v}.16b, {y:v}.16b",
                sum = inout(vreg) sum, x = in(vreg) x.0, y = in(vreg) y.0,
                options(pure, nomem, nostack, preserves_flags));
        }
        I32x4(sum)
    }

    #[inline(always)]
    fn widen(x: I8x16) -> [I8x16; 1] {
        [x]
    }

    #[inline(always)]
    fn add_lane<const LANE: usize>(self, sum: I32x4, x: I8x16, y: &[u8; 16]) -> I32x4 {
        let (mut sum, y) = (sum.0, I8x16::load(y).0);
        // SAFETY: `self` proves that the machine has `dotprod`; the instruction works on registers only.
        unsafe {
            asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {x:v}.16b, {y:v}.4b[{lane}]",
                sum = inout(vreg) sum, x = in(vreg) x.0, y = in(vreg) y, lane = const LANE,
                options(pure, nomem, nostack, preserves_flags));
        }
        I32x4(sum)
    }
}

/// Proof that this machine has `i8mm`, for tiles, and `dotprod`, for everything else.
#[derive(Clone, Copy)]
struct I8mm(Dotprod);

impl Int8Dot for I8mm {
    type Widened = [I8x16; 1];
    const TOKENS_PER_REGISTER: usize = 2;

    unsafe fn assume() -> Self {
        I8mm(Dotprod(()))
    }

    #[inline(always)]
    fn add_products(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4 {
        self.0.add_products(sum, x, y)
    }

    #[inline(always)]
    fn widen(x: I8x16) -> [I8x16; 1] {
        Dotprod::widen(x)
    }

    #[inline(always)]
    fn add_lane<const LANE: usize>(self, sum: I32x4, x: I8x16, y: &[u8; 16]) -> I32x4 {
        self.0.add_lane::<LANE>(sum, x, y)
    }

    /// Eight elements of two rows per register.
    #[inline(always)]
    fn transpose(rows: [I32x4; 4]) -> [I32x4; 4] {
        let [a, b, c, d] = rows.map(|row| neon!(vreinterpretq_s64_s32(row.0)));
        let first = |x, y| I32x4(neon!(vreinterpretq_s32_s64(vzip1q_s64(x, y))));
        let second = |x, y| I32x4(neon!(vreinterpretq_s32_s64(vzip2q_s64(x, y))));
        [first(a, b), first(c, d), second(a, b), second(c, d)]
    }

    #[inline(always)]
    fn multiply<const T: usize>(
        self,
        weights: &[[Registers; 4]],
        acts: [&[[u8; 16]]; T],
    ) -> [[I32x4; 2]; T] {
        // For every other token, its products and those of the following token with each pair of rows.
        let mut squares = [[I32x4::splat(0); 4]; T];
        for (i, weights) in weights.as_flattened().chunks_exact(2).enumerate() {
            let [rows01, rows45] = weights[0].each_ref().map(I8x16::load);
            let [rows23, rows67] = weights[1].each_ref().map(I8x16::load);
            for t in (0..T).step_by(2) {
                let tokens = I8x16::load(&acts[t][i]);
                for (square, rows) in squares[t].iter_mut().zip([rows01, rows23, rows45, rows67]) {
                    *square = self.add_square(*square, rows, tokens);
                }
            }
        }
        std::array::from_fn(|t| {
            std::array::from_fn(|h| {
                let [a, b] = [0, 1].map(|i| squares[t - t % 2][2 * h + i].0);
                I32x4(match t % 2 {
                    0 => neon!(vuzp1q_s32(a, b)),
                    _ => neon!(vuzp2q_s32(a, b)),
                })
            })
        })
    }
}

impl I8mm {
    /// Adds the dot products of each half of `x` with each half of `y`.
    #[inline(always)]
    fn add_square(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4 {
        let mut sum = sum.0;
        // SAFETY: `self` proves that the machine has `i8mm`; the instruction works on registers only.
        unsafe {
            asm!(".arch_extension i8mm", "smmla {sum:v}.4s, {x:v}.16b, {y:v}.16b",
                sum = inout(vreg) sum, x = in(vreg) x.0, y = in(vreg) y.0,
                options(pure, nomem, nostack, preserves_flags));
        }
        I32x4(sum)
    }
}
