//! Little-endian numbers of alignment 1, used as the fields of blocks.
//!
//! A block may start at any byte of a mapped file, so no field may require alignment.

use bytemuck::{Pod, Zeroable};

macro_rules! field {
    ($(#[$doc:meta])* $name:ident([u8; $n:literal]) = $number:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(pub [u8; $n]);

        impl $name {
            /// Returns the stored number.
            #[inline(always)]
            pub const fn get(self) -> $number {
                <$number>::from_le_bytes(self.0)
            }
        }

        impl From<$number> for $name {
            #[inline(always)]
            fn from(value: $number) -> Self {
                $name(value.to_le_bytes())
            }
        }
    };
}

field!(
    /// A `u16` field.
    U16Le([u8; 2]) = u16
);
field!(
    /// An `i16` field.
    I16Le([u8; 2]) = i16
);
field!(
    /// A `u32` field.
    U32Le([u8; 4]) = u32
);
field!(
    /// An `f32` field.
    F32Le([u8; 4]) = f32
);
field!(
    /// A half-precision field: the scale of most formats.
    F16Le([u8; 2]) = half::f16
);

impl F16Le {
    /// Returns the stored number as an `f32`.
    ///
    /// `half` detects CPU features in each call; this function inlines and vectorizes on every target.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let bits = u32::from(self.get().to_bits());
        // The product adds 127 - 15 to the exponent's bias and normalizes subnormals, both exactly.
        let scaled = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        let special = if scaled >= 65536.0 { 0x7f80_0000 } else { 0 };
        f32::from_bits(scaled.to_bits() | special | (bits & 0x8000) << 16)
    }

    /// Returns the nearest half to `value`, an infinity beyond ±65504.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        half::f16::from_f32(value).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_matches_half_crate() {
        // Miri is slow, so it checks a sample.
        for bits in (0..=u16::MAX).step_by(if cfg!(miri) { 509 } else { 1 }) {
            let half = half::f16::from_bits(bits);
            let ours = F16Le::from(half).to_f32();
            if half.is_nan() {
                assert!(ours.is_nan(), "{bits:#06x}");
            } else {
                assert_eq!(ours.to_bits(), half.to_f32().to_bits(), "{bits:#06x}");
            }
        }
    }
}
