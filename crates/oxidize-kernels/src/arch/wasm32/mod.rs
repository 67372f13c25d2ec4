//! WebAssembly with SIMD (`-C target-feature=+simd128`). An engine runs only modules whose instructions it
//! has, so they are selected at compile time.

pub(crate) mod vector;

use std::arch::wasm32::*;

use super::simd128::{self, Int8Dot};
use crate::table::{Isa, Kernels};
use vector::{I8x16, I32x4};

/// Returns the kernels of an instruction set if this module was compiled for it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    static KERNELS: Kernels = Kernels {
        isa: Isa::WasmSimd128,
        functions: simd128::functions::<Simd128>(),
    };
    (isa == Isa::WasmSimd128).then_some(&KERNELS)
}

/// Int8 products through 16-bit integers; WebAssembly has no 8-bit multiply.
#[derive(Clone, Copy)]
struct Simd128;

impl Int8Dot for Simd128 {
    type Widened = [I8x16; 2];

    unsafe fn assume() -> Self {
        Simd128
    }

    #[inline(always)]
    fn add_products(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4 {
        let ([x0, x1], [y0, y1]) = (Self::widen(x), Self::widen(y));
        let low = i32x4_dot_i16x8(x0.0, y0.0);
        I32x4(i32x4_add(low, i32x4_dot_i16x8(x1.0, y1.0))) + sum
    }

    #[inline(always)]
    fn widen(x: I8x16) -> [I8x16; 2] {
        [
            I8x16(i16x8_extend_low_i8x16(x.0)),
            I8x16(i16x8_extend_high_i8x16(x.0)),
        ]
    }

    #[inline(always)]
    fn add_lane<const LANE: usize>(self, sum: I32x4, x: I8x16, y: &[u8; 16]) -> I32x4 {
        // Loading one lane into all takes one instruction, and no register for the other lanes.
        let pair = i32x4_splat(bytemuck::cast::<_, [i32; 4]>(*y)[LANE]);
        I32x4(i32x4_dot_i16x8(x.0, pair)) + sum
    }
}
