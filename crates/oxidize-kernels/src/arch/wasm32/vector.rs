//! The registers of WebAssembly's SIMD, with the operations that `simd128` uses.
//!
//! `aarch64/vector.rs` has the same types and methods.

use std::arch::wasm32::*;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Sub};

/// Four floats.
#[derive(Clone, Copy)]
pub(crate) struct F32x4(v128);

/// Four integers, or masks that are all ones in lanes where a condition holds.
#[derive(Clone, Copy)]
pub(crate) struct I32x4(pub(super) v128);

/// Sixteen bytes, signed unless a method says otherwise.
#[derive(Clone, Copy)]
pub(crate) struct I8x16(pub(super) v128);

macro_rules! operators {
    ($ty:ident: $($trait:ident $method:ident $intrinsic:ident),*) => {$(
        impl $trait for $ty {
            type Output = $ty;
            #[inline(always)]
            fn $method(self, other: $ty) -> $ty {
                $ty($intrinsic(self.0, other.0))
            }
        }
    )*};
}

operators!(F32x4: Add add f32x4_add, Sub sub f32x4_sub, Mul mul f32x4_mul, Div div f32x4_div);
operators!(I32x4: Add add i32x4_add, Sub sub i32x4_sub, BitAnd bitand v128_and,
    BitOr bitor v128_or, BitXor bitxor v128_xor);
operators!(I8x16: Add add i8x16_add, Sub sub i8x16_sub, BitAnd bitand v128_and,
    BitOr bitor v128_or, BitXor bitxor v128_xor);

/// Loads 16 bytes from any address.
#[inline(always)]
fn load<T>(x: &T) -> v128 {
    const { assert!(size_of::<T>() == 16) };
    // SAFETY: the reference is to a value of 16 bytes, as asserted above; the load needs no alignment.
    unsafe { v128_load(std::ptr::from_ref(x).cast()) }
}

/// Stores 16 bytes to any address.
#[inline(always)]
fn store<T: bytemuck::Pod>(x: v128, out: &mut T) {
    const { assert!(size_of::<T>() == 16) };
    // SAFETY: the reference is to a value of 16 bytes, as asserted above, and of type `Pod`, of which any
    // bits are a value; the store needs no alignment.
    unsafe { v128_store(std::ptr::from_mut(out).cast(), x) }
}

impl F32x4 {
    /// One number in every lane.
    #[inline(always)]
    pub(crate) fn splat(x: f32) -> Self {
        F32x4(f32x4_splat(x))
    }

    #[inline(always)]
    pub(crate) fn load(x: &[f32; 4]) -> Self {
        F32x4(load(x))
    }

    #[inline(always)]
    pub(crate) fn store(self, out: &mut [f32; 4]) {
        store(self.0, out);
    }

    /// Four numbers of half precision.
    #[inline(always)]
    pub(crate) fn from_halves(x: [u16; 4]) -> Self {
        // SAFETY: the array has the eight bytes that are loaded.
        let bits = I32x4(unsafe { u32x4_load_extend_u16x4(x.as_ptr()) });
        // The bias of the exponent grows by 127 − 15; the product also normalizes subnormals, exactly.
        let magnitude = (bits & I32x4::splat(0x7fff)).shift_left::<13>();
        let scaled = magnitude.as_floats() * F32x4::splat(f32::from_bits((127 + 112) << 23));
        // Numbers from 65536 on are infinities or NaN.
        let finite = F32x4::splat(65536.0).greater(scaled);
        let special = I32x4(v128_andnot(i32x4_splat(0x7f80_0000), finite.0));
        let sign = (bits & I32x4::splat(0x8000)).shift_left::<16>();
        (scaled.bits() | special | sign).as_floats()
    }

    /// Rounds to half precision.
    #[inline(always)]
    pub(crate) fn to_halves(self) -> [u16; 4] {
        /// The first number above half precision, 2¹⁶, and the first that is not subnormal there, 2⁻¹⁴.
        const ABOVE: i32 = (127 + 16) << 23;
        const NORMAL: i32 = (127 - 14) << 23;
        /// Adding this moves the ten bits of a subnormal half to the end of a float, rounded.
        const MAGIC: i32 = (127 - 15 + 23 - 10 + 1) << 23;
        let sign = self.bits() & I32x4::splat(i32::MIN);
        let magnitude = self.bits() ^ sign;
        // Rounds to nearest even: adds just under a half, or a half if the kept part is odd.
        let odd = magnitude.shift_right::<13>() & I32x4::splat(1);
        let rebias = I32x4::splat(((15 - 127) << 23) + 0xfff);
        let normal = (magnitude + rebias + odd).shift_right::<13>();
        let shifted = magnitude.as_floats() + I32x4::splat(MAGIC).as_floats();
        let subnormal = shifted.bits() - I32x4::splat(MAGIC);
        let nan = magnitude.greater(I32x4::splat(0x7f80_0000));
        let payload = (magnitude.shift_right::<13>() & I32x4::splat(0x3ff)) | I32x4::splat(0x200);
        let special = I32x4::splat(0x7c00) | (payload & nan);
        let finite = I32x4(v128_bitselect(
            subnormal.0,
            normal.0,
            I32x4::splat(NORMAL).greater(magnitude).0,
        ));
        let above = magnitude.greater(I32x4::splat(ABOVE - 1));
        let half = I32x4(v128_bitselect(special.0, finite.0, above.0));
        let bits = half | sign.shift_right::<16>();
        let mut out = [0u16; 8];
        store(u16x8_narrow_i32x4(bits.0, bits.0), &mut out);
        [out[0], out[1], out[2], out[3]]
    }

    /// `self + x · y`.
    #[inline(always)]
    pub(crate) fn add_product(self, x: F32x4, y: F32x4) -> Self {
        self + x * y
    }

    /// `self`, or `x` where that is larger. NaN in `x` is never larger, and NaN in `self` stays.
    #[inline(always)]
    pub(crate) fn or_larger(self, x: F32x4) -> Self {
        F32x4(f32x4_pmax(self.0, x.0))
    }

    /// `self`, or `x` where that is smaller, with NaN as in [`F32x4::or_larger`].
    #[inline(always)]
    pub(crate) fn or_smaller(self, x: F32x4) -> Self {
        F32x4(f32x4_pmin(self.0, x.0))
    }

    #[inline(always)]
    pub(crate) fn abs(self) -> Self {
        F32x4(f32x4_abs(self.0))
    }

    /// Mask of the lanes in which `self > x`.
    #[inline(always)]
    pub(crate) fn greater(self, x: F32x4) -> I32x4 {
        I32x4(f32x4_gt(self.0, x.0))
    }

    /// Rounds to the nearest integers, ties to even; 0 for NaN.
    #[inline(always)]
    pub(crate) fn rounded(self) -> I32x4 {
        I32x4(i32x4_trunc_sat_f32x4(f32x4_nearest(self.0)))
    }

    #[inline(always)]
    pub(crate) fn bits(self) -> I32x4 {
        I32x4(self.0)
    }

    /// Interleaves the first lanes of both, and the last: `a0 b0 a1 b1`, `a2 b2 a3 b3`.
    #[inline(always)]
    pub(crate) fn interleave(self, other: F32x4) -> [F32x4; 2] {
        [
            F32x4(i32x4_shuffle::<0, 4, 1, 5>(self.0, other.0)),
            F32x4(i32x4_shuffle::<2, 6, 3, 7>(self.0, other.0)),
        ]
    }

    /// Lanes 1 0 3 2.
    #[inline(always)]
    pub(crate) fn swap_pairs(self) -> Self {
        F32x4(i32x4_shuffle::<1, 0, 3, 2>(self.0, self.0))
    }
}

impl I32x4 {
    /// One number in every lane.
    #[inline(always)]
    pub(crate) fn splat(x: i32) -> Self {
        I32x4(i32x4_splat(x))
    }

    #[inline(always)]
    pub(crate) fn load(x: &[i32; 4]) -> Self {
        I32x4(load(x))
    }

    #[inline(always)]
    pub(crate) fn store(self, out: &mut [i32; 4]) {
        store(self.0, out);
    }

    #[inline(always)]
    pub(crate) fn shift_left<const N: i32>(self) -> Self {
        I32x4(i32x4_shl(self.0, N as u32))
    }

    /// Shifts in zeros.
    #[inline(always)]
    pub(crate) fn shift_right<const N: i32>(self) -> Self {
        I32x4(u32x4_shr(self.0, N as u32))
    }

    /// Shifts in the sign.
    #[inline(always)]
    pub(crate) fn shift_right_signed<const N: i32>(self) -> Self {
        I32x4(i32x4_shr(self.0, N as u32))
    }

    /// Mask of the lanes in which `self > x`.
    #[inline(always)]
    pub(crate) fn greater(self, x: I32x4) -> I32x4 {
        I32x4(i32x4_gt(self.0, x.0))
    }

    /// `yes` where this mask is all ones, `no` where it is zeros.
    #[inline(always)]
    pub(crate) fn select(self, yes: F32x4, no: F32x4) -> F32x4 {
        F32x4(v128_bitselect(yes.0, no.0, self.0))
    }

    /// Converts the numbers to floats.
    #[inline(always)]
    pub(crate) fn to_floats(self) -> F32x4 {
        F32x4(f32x4_convert_i32x4(self.0))
    }

    /// Reinterprets the bits as floats.
    #[inline(always)]
    pub(crate) fn as_floats(self) -> F32x4 {
        F32x4(self.0)
    }

    /// Reinterprets the bits as bytes.
    #[inline(always)]
    pub(crate) fn as_bytes(self) -> I8x16 {
        I8x16(self.0)
    }

    /// The low 16 bits of each of eight integers.
    #[inline(always)]
    pub(crate) fn low_i16(self, other: I32x4) -> I8x16 {
        I8x16(i16x8_shuffle::<0, 2, 4, 6, 8, 10, 12, 14>(self.0, other.0))
    }

    /// Transposes four rows of four.
    #[inline(always)]
    pub(crate) fn transpose([a, b, c, d]: [I32x4; 4]) -> [I32x4; 4] {
        let zip = |x: I32x4, y: I32x4| {
            [
                I32x4(i32x4_shuffle::<0, 4, 1, 5>(x.0, y.0)),
                I32x4(i32x4_shuffle::<2, 6, 3, 7>(x.0, y.0)),
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
        I8x16(u8x16_splat(x))
    }

    #[inline(always)]
    pub(crate) fn load(x: &[u8; 16]) -> Self {
        I8x16(load(x))
    }

    #[inline(always)]
    pub(crate) fn store(self, out: &mut [u8; 16]) {
        store(self.0, out);
    }

    /// Shifts each byte, as engines compile `i8x16.shl`, but with a constant mask.
    #[inline(always)]
    pub(crate) fn shift_left<const N: i32>(self) -> Self {
        I8x16(i16x8_shl(self.0, N as u32)) & I8x16::splat(0xff << N)
    }

    /// Shifts each byte, zeros coming in.
    #[inline(always)]
    pub(crate) fn shift_right<const N: i32>(self) -> Self {
        I8x16(u16x8_shr(self.0, N as u32)) & I8x16::splat(0xff >> N)
    }

    /// Mask of the bytes that are equal.
    #[inline(always)]
    pub(crate) fn equal(self, other: I8x16) -> Self {
        I8x16(i8x16_eq(self.0, other.0))
    }

    /// Looks up `indices` below 16 in this table of bytes.
    #[inline(always)]
    pub(crate) fn lookup(self, indices: I8x16) -> Self {
        I8x16(i8x16_swizzle(self.0, indices.0))
    }

    /// Reinterprets the bits as 32-bit integers.
    #[inline(always)]
    pub(crate) fn as_ints(self) -> I32x4 {
        I32x4(self.0)
    }

    /// Converts the numbers to bytes, saturating.
    #[inline(always)]
    pub(crate) fn narrow([a, b, c, d]: [I32x4; 4]) -> Self {
        let (low, high) = (i16x8_narrow_i32x4(a.0, b.0), i16x8_narrow_i32x4(c.0, d.0));
        I8x16(i8x16_narrow_i16x8(low, high))
    }

    /// The sum of the bytes.
    #[inline(always)]
    pub(crate) fn sum(self) -> i32 {
        let pairs = i16x8_extadd_pairwise_i8x16(self.0);
        let mut lanes = [0; 4];
        I32x4(i32x4_extadd_pairwise_i16x8(pairs)).store(&mut lanes);
        lanes.iter().sum()
    }
}
