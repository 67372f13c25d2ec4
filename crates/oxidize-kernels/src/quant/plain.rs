//! Plain types: floats, integers and booleans, each a block of one element.
//!
//! Their activations are `f32`. Only the float types can be quantized to.

use bytemuck::{Pod, Zeroable};

use super::fields::F16Le;
use super::{Block, Dot, Quantize, TensorType};

macro_rules! plain {
    ($($ty:ident, $bytes:literal, $doc:literal, $stored:ident -> $to_f32:expr;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $ty(pub [u8; $bytes]);

        assert_layout!($ty, $bytes);

        impl Block for $ty {
            const TYPE: TensorType = TensorType::$ty;
            const LEN: usize = 1;

            #[inline(always)]
            fn dequantize(&self, out: &mut [f32]) {
                let $stored: [u8; $bytes] = self.0;
                out[0] = $to_f32;
            }
        }

        impl Dot for $ty {
            type Activation = F32;

            #[inline(always)]
            fn dot(&self, activations: &[F32]) -> f32 {
                let mut weight = [0.0];
                self.dequantize(&mut weight);
                weight[0] * f32::from_le_bytes(activations[0].0)
            }
        }
    )*};
}

plain! {
    F64, 8, "A 64-bit float.", b -> f64::from_le_bytes(b) as f32;
    F32, 4, "A 32-bit float.", b -> f32::from_le_bytes(b);
    F16, 2, "A 16-bit float (IEEE 754 half precision).", b -> F16Le(b).to_f32();
    BF16, 2, "A bfloat16.", b -> f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16);
    I8, 1, "A signed byte.", b -> i8::from_le_bytes(b) as f32;
    I16, 2, "A signed 16-bit integer.", b -> i16::from_le_bytes(b) as f32;
    I32, 4, "A signed 32-bit integer.", b -> i32::from_le_bytes(b) as f32;
    I64, 8, "A signed 64-bit integer.", b -> i64::from_le_bytes(b) as f32;
    U8, 1, "A byte.", b -> u8::from_le_bytes(b) as f32;
    U16, 2, "A 16-bit integer.", b -> u16::from_le_bytes(b) as f32;
    U32, 4, "A 32-bit integer.", b -> u32::from_le_bytes(b) as f32;
    U64, 8, "A 64-bit integer.", b -> u64::from_le_bytes(b) as f32;
    Bool, 1, "A boolean: 0.0, or 1.0 for any nonzero byte.", b -> if b[0] == 0 { 0.0 } else { 1.0 };
    F8E4M3, 1, "An OCP 8-bit float with 3 bits of mantissa, without infinities.", b -> e4m3_to_f32(b[0]);
    F8E5M2, 1, "An OCP 8-bit float with 2 bits of mantissa.", b -> F16Le([0, b[0]]).to_f32();
}

macro_rules! from_f32 {
    ($($ty:ident, $x:ident -> $convert:expr;)*) => {$(
        impl Quantize for $ty {
            #[inline(always)]
            fn quantize_weighted(src: &[f32], _: Option<&[f32]>) -> Self {
                let $x: f32 = src[0];
                $ty($convert.to_le_bytes())
            }
        }
    )*};
}

from_f32! {
    F64, x -> f64::from(x);
    F32, x -> x;
    F16, x -> half::f16::from_f32(x);
    BF16, x -> half::bf16::from_f32(x);
}

/// Returns the value of an OCP E4M3 float: bias 7, NaN if all exponent and mantissa bits are set.
#[inline(always)]
pub fn e4m3_to_f32(byte: u8) -> f32 {
    // The bits are those of an f32 with a bias of 7 instead of 127. The product corrects the bias and
    // normalizes subnormals, both exactly.
    let magnitude =
        f32::from_bits(u32::from(byte & 0x7f) << 20) * f32::from_bits((127 + 120) << 23);
    let magnitude = if byte & 0x7f == 0x7f {
        f32::NAN
    } else {
        magnitude
    };
    if byte & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::testing::{floats, power_of_two};

    #[test]
    fn known_values() {
        assert_eq!(floats(&F64((-2.5f64).to_le_bytes())), [-2.5]);
        assert_eq!(floats(&F32(1.25f32.to_le_bytes())), [1.25]);
        assert_eq!(floats(&F16([0x00, 0x3e])), [1.5]);
        assert_eq!(floats(&BF16([0xc0, 0xbf])), [-1.5]);
        assert_eq!(floats(&I8([0xff])), [-1.0]);
        assert_eq!(floats(&I16([0x00, 0x80])), [-32768.0]);
        assert_eq!(floats(&I32((-7i32).to_le_bytes())), [-7.0]);
        assert_eq!(
            floats(&I64((1i64 << 40).to_le_bytes())),
            [(1u64 << 40) as f32]
        );
        assert_eq!(floats(&U8([0xff])), [255.0]);
        assert_eq!(floats(&U16([0x00, 0x80])), [32768.0]);
        assert_eq!(floats(&U32(u32::MAX.to_le_bytes())), [4294967296.0]);
        assert_eq!(floats(&U64(3u64.to_le_bytes())), [3.0]);
        assert_eq!([floats(&Bool([0])), floats(&Bool([7]))], [[0.0], [1.0]]);
    }

    #[test]
    fn eight_bit_floats_match_ocp_definition() {
        for byte in 0..=255u8 {
            let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
            let define = |mantissa_bits: i32, bias: i32| {
                let mantissa = f64::from(byte & ((1 << mantissa_bits) - 1));
                let exponent = i32::from(byte & 0x7f) >> mantissa_bits;
                let fraction = mantissa / power_of_two(mantissa_bits) + f64::from(exponent.min(1));
                (sign * fraction * power_of_two(exponent.max(1) - bias)) as f32
            };
            let (e4m3, e5m2) = (floats(&F8E4M3([byte]))[0], floats(&F8E5M2([byte]))[0]);
            if byte & 0x7f == 0x7f {
                assert!(e4m3.is_nan());
            } else {
                assert_eq!(e4m3.to_bits(), define(3, 7).to_bits(), "{byte:#x}");
            }
            match byte & 0x7f {
                0x7c => assert_eq!(e5m2, sign as f32 * f32::INFINITY),
                0x7d.. => assert!(e5m2.is_nan()),
                _ => assert_eq!(e5m2.to_bits(), define(2, 15).to_bits(), "{byte:#x}"),
            }
        }
        assert_eq!(floats(&F8E4M3([0x7e])), [448.0]);
        assert_eq!(floats(&F8E5M2([0x7b])), [57344.0]);
    }

    #[test]
    fn quantize_rounds_to_nearest() {
        assert_eq!(
            F16::quantize(&[1.0 + power_of_two(-11) as f32]),
            F16([0x00, 0x3c])
        );
        assert_eq!(
            BF16::quantize(&[1.0 + 3.0 * power_of_two(-8) as f32]),
            BF16([0x82, 0x3f])
        );
        assert_eq!(F16::quantize(&[1e9]).0, half::f16::INFINITY.to_le_bytes());
        assert!(floats(&BF16::quantize(&[f32::NAN]))[0].is_nan());
        assert_eq!(floats(&F64::quantize(&[0.1])), [0.1]);
        assert_eq!(floats(&F32::quantize(&[0.1])), [0.1]);
    }
}
