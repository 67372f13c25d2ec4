//! The registers of NEON, with the operations that `simd128` uses.
//!
//! `wasm32/vector.rs` has the same types and methods.

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Sub};

/// An expression of NEON intrinsics.
macro_rules! neon {
    ($e:expr) => {
        // SAFETY: this module is only compiled if NEON is a feature of the target; intrinsics that take
        // pointers are passed arrays as long as the register.
        unsafe { $e }
    };
}
pub(super) use neon;

/// Four floats.
#[derive(Clone, Copy)]
pub(crate) struct F32x4(float32x4_t);

/// Four integers, or masks that are all ones in lanes where a condition holds.
#[derive(Clone, Copy)]
pub(crate) struct I32x4(pub(super) int32x4_t);

/// Sixteen bytes, signed unless a method says otherwise.
#[derive(Clone, Copy)]
pub(crate) struct I8x16(pub(super) int8x16_t);

macro_rules! operators {
    ($ty:ident: $($trait:ident $method:ident $intrinsic:ident),*) => {$(
        impl $trait for $ty {
            type Output = $ty;
            #[inline(always)]
            fn $method(self, other: $ty) -> $ty {
                $ty(neon!($intrinsic(self.0, other.0)))
            }
        }
    )*};
}

operators!(F32x4: Add add vaddq_f32, Sub sub vsubq_f32, Mul mul vmulq_f32, Div div vdivq_f32);
operators!(I32x4: Add add vaddq_s32, Sub sub vsubq_s32, BitAnd bitand vandq_s32,
    BitOr bitor vorrq_s32, BitXor bitxor veorq_s32);
operators!(I8x16: Add add vaddq_s8, Sub sub vsubq_s8, BitAnd bitand vandq_s8,
    BitOr bitor vorrq_s8, BitXor bitxor veorq_s8);

impl F32x4 {
    /// One number in every lane.
    #[inline(always)]
    pub(crate) fn splat(x: f32) -> Self {
        F32x4(neon!(vdupq_n_f32(x)))
    }

    #[inline(always)]
    pub(crate) fn load(x: &[f32; 4]) -> Self {
        F32x4(neon!(vld1q_f32(x.as_ptr())))
    }

    #[inline(always)]
    pub(crate) fn store(self, out: &mut [f32; 4]) {
        neon!(vst1q_f32(out.as_mut_ptr(), self.0));
    }

    /// Four numbers of half precision.
    #[inline(always)]
    pub(crate) fn from_halves(x: [u16; 4]) -> Self {
        let out: float32x4_t;
        // SAFETY: `vld1_u16` reads the four elements of `x`; the instruction is part of NEON and works on
        // registers only. Its intrinsic is not stable.
        unsafe {
            asm!("fcvtl {out:v}.4s, {x:v}.4h", x = in(vreg) vld1_u16(x.as_ptr()), out = lateout(vreg) out,
                options(pure, nomem, nostack, preserves_flags));
        }
        F32x4(out)
    }

    /// Rounds to half precision.
    #[inline(always)]
    pub(crate) fn to_halves(self) -> [u16; 4] {
        let halves: uint16x4_t;
        let mut out = [0; 4];
        // SAFETY: the instruction is part of NEON and works on registers only; `out` has room for the four
        // numbers stored.
        unsafe {
            asm!("fcvtn {out:v}.4h, {x:v}.4s", x = in(vreg) self.0, out = lateout(vreg) halves,
                options(pure, nomem, nostack, preserves_flags));
            vst1_u16(out.as_mut_ptr(), halves);
        }
        out
    }

    /// `self + x · y`.
    #[inline(always)]
    pub(crate) fn add_product(self, x: F32x4, y: F32x4) -> Self {
        F32x4(neon!(vfmaq_f32(self.0, x.0, y.0)))
    }

    /// `self`, or `x` where that is larger. NaN in `x` is never larger, and NaN in `self` stays.
    #[inline(always)]
    pub(crate) fn or_larger(self, x: F32x4) -> Self {
        x.greater(self).select(x, self)
    }

    /// `self`, or `x` where that is smaller, with NaN as in [`F32x4::or_larger`].
    #[inline(always)]
    pub(crate) fn or_smaller(self, x: F32x4) -> Self {
        self.greater(x).select(x, self)
    }

    #[inline(always)]
    pub(crate) fn abs(self) -> Self {
        F32x4(neon!(vabsq_f32(self.0)))
    }

    /// Mask of the lanes in which `self > x`.
    #[inline(always)]
    pub(crate) fn greater(self, x: F32x4) -> I32x4 {
        I32x4(neon!(vreinterpretq_s32_u32(vcgtq_f32(self.0, x.0))))
    }

    /// Rounds to the nearest integers, ties to even; 0 for NaN.
    #[inline(always)]
    pub(crate) fn rounded(self) -> I32x4 {
        I32x4(neon!(vcvtnq_s32_f32(self.0)))
    }

    #[inline(always)]
    pub(crate) fn bits(self) -> I32x4 {
        I32x4(neon!(vreinterpretq_s32_f32(self.0)))
    }

    /// Interleaves the first lanes of both, and the last: `a0 b0 a1 b1`, `a2 b2 a3 b3`.
    #[inline(always)]
    pub(crate) fn interleave(self, other: F32x4) -> [F32x4; 2] {
        [
            F32x4(neon!(vzip1q_f32(self.0, other.0))),
            F32x4(neon!(vzip2q_f32(self.0, other.0))),
        ]
    }

    /// Lanes 1 0 3 2.
    #[inline(always)]
    pub(crate) fn swap_pairs(self) -> Self {
        F32x4(neon!(vrev64q_f32(self.0)))
    }
}

impl I32x4 {
    /// One number in every lane.
    #[inline(always)]
    pub(crate) fn splat(x: i32) -> Self {
        I32x4(neon!(vdupq_n_s32(x)))
    }

    #[inline(always)]
    pub(crate) fn load(x: &[i32; 4]) -> Self {
        I32x4(neon!(vld1q_s32(x.as_ptr())))
    }

    #[inline(always)]
    pub(crate) fn shift_left<const N: i32>(self) -> Self {
        I32x4(neon!(vshlq_n_s32::<N>(self.0)))
    }

    /// Shifts in the sign.
    #[inline(always)]
    pub(crate) fn shift_right_signed<const N: i32>(self) -> Self {
        I32x4(neon!(vshrq_n_s32::<N>(self.0)))
    }

    /// Mask of the lanes in which `self > x`.
    #[inline(always)]
    pub(crate) fn greater(self, x: I32x4) -> I32x4 {
        I32x4(neon!(vreinterpretq_s32_u32(vcgtq_s32(self.0, x.0))))
    }

    /// `yes` where this mask is all ones, `no` where it is zeros.
    #[inline(always)]
    pub(crate) fn select(self, yes: F32x4, no: F32x4) -> F32x4 {
        let mask = neon!(vreinterpretq_u32_s32(self.0));
        F32x4(neon!(vbslq_f32(mask, yes.0, no.0)))
    }

    /// Converts the numbers to floats.
    #[inline(always)]
    pub(crate) fn to_floats(self) -> F32x4 {
        F32x4(neon!(vcvtq_f32_s32(self.0)))
    }

    /// Reinterprets the bits as floats.
    #[inline(always)]
    pub(crate) fn as_floats(self) -> F32x4 {
        F32x4(neon!(vreinterpretq_f32_s32(self.0)))
    }

    /// Reinterprets the bits as bytes.
    #[inline(always)]
    pub(crate) fn as_bytes(self) -> I8x16 {
        I8x16(neon!(vreinterpretq_s8_s32(self.0)))
    }

    /// The low 16 bits of each of eight integers.
    #[inline(always)]
    pub(crate) fn low_i16(self, other: I32x4) -> I8x16 {
        let words = |x: I32x4| neon!(vreinterpretq_s16_s32(x.0));
        I8x16(neon!(vreinterpretq_s8_s16(vuzp1q_s16(
            words(self),
            words(other)
        ))))
    }

    /// Transposes four rows of four.
    #[inline(always)]
    pub(crate) fn transpose([a, b, c, d]: [I32x4; 4]) -> [I32x4; 4] {
        let zip = |x: I32x4, y: I32x4| {
            [
                I32x4(neon!(vzip1q_s32(x.0, y.0))),
                I32x4(neon!(vzip2q_s32(x.0, y.0))),
            ]
        };
        let ([ac0, ac1], [bd0, bd1]) = (zip(a, c), zip(b, d));
        let ([r0, r1], [r2, r3]) = (zip(ac0, bd0), zip(ac1, bd1));
        [r0, r1, r2, r3]
    }
}

impl I8x16 {
    /// One number in every lane.
    #[inline(always)]
    pub(crate) fn splat(x: u8) -> Self {
        I8x16(neon!(vdupq_n_s8(x as i8)))
    }

    #[inline(always)]
    pub(crate) fn load(x: &[u8; 16]) -> Self {
        I8x16(neon!(vld1q_s8(x.as_ptr().cast())))
    }

    #[inline(always)]
    pub(crate) fn store(self, out: &mut [u8; 16]) {
        neon!(vst1q_s8(out.as_mut_ptr().cast(), self.0));
    }

    /// Shifts each byte.
    #[inline(always)]
    pub(crate) fn shift_left<const N: i32>(self) -> Self {
        I8x16(neon!(vshlq_n_s8::<N>(self.0)))
    }

    /// Shifts each byte, zeros coming in.
    #[inline(always)]
    pub(crate) fn shift_right<const N: i32>(self) -> Self {
        let bits = neon!(vreinterpretq_u8_s8(self.0));
        I8x16(neon!(vreinterpretq_s8_u8(vshrq_n_u8::<N>(bits))))
    }

    /// Mask of the bytes that are equal.
    #[inline(always)]
    pub(crate) fn equal(self, other: I8x16) -> Self {
        I8x16(neon!(vreinterpretq_s8_u8(vceqq_s8(self.0, other.0))))
    }

    /// Looks up `indices` below 16 in this table of bytes.
    #[inline(always)]
    pub(crate) fn lookup(self, indices: I8x16) -> Self {
        let indices = neon!(vreinterpretq_u8_s8(indices.0));
        I8x16(neon!(vqtbl1q_s8(self.0, indices)))
    }

    /// Reinterprets the bits as 32-bit integers.
    #[inline(always)]
    pub(crate) fn as_ints(self) -> I32x4 {
        I32x4(neon!(vreinterpretq_s32_s8(self.0)))
    }

    /// Converts the numbers to bytes, saturating.
    #[inline(always)]
    pub(crate) fn narrow([a, b, c, d]: [I32x4; 4]) -> Self {
        let low = neon!(vcombine_s16(vqmovn_s32(a.0), vqmovn_s32(b.0)));
        let high = neon!(vcombine_s16(vqmovn_s32(c.0), vqmovn_s32(d.0)));
        I8x16(neon!(vcombine_s8(vqmovn_s16(low), vqmovn_s16(high))))
    }

    /// The sum of the bytes.
    #[inline(always)]
    pub(crate) fn sum(self) -> i32 {
        i32::from(neon!(vaddlvq_s8(self.0)))
    }
}
