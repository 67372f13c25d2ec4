//! Little-endian numbers of alignment 1, the fields that blocks are made of.
//!
//! A block may start at any byte of a mapped file, so no field may ask for alignment.

use bytemuck::{Pod, Zeroable};

macro_rules! field {
    ($(#[$doc:meta])* $name:ident([u8; $n:literal]) = $number:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(pub [u8; $n]);

        impl $name {
            /// The stored number.
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
    /// The stored number, widened.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        self.get().to_f32()
    }

    /// The nearest half to `value`; beyond ±65504 that is an infinity.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        half::f16::from_f32(value).into()
    }
}
