//! WebAssembly with SIMD (`-C target-feature=+simd128`): a module runs only where its instructions
//! are, so they are chosen when it is compiled.

pub(crate) mod vector;

use std::arch::wasm32::*;

use super::simd128::{self, Products};
use crate::table::{Isa, Kernels};
use vector::{I8x16, I32x4};

/// The kernels of an instruction set, if this module has it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    static KERNELS: Kernels = Kernels {
        isa: Isa::WasmSimd128,
        functions: simd128::functions::<Simd128>(),
    };
    (isa == Isa::WasmSimd128).then_some(&KERNELS)
}

/// Products of words: there are none of bytes.
#[derive(Clone, Copy)]
struct Simd128;

impl Products for Simd128 {
    type Stretched = [I8x16; 2];

    unsafe fn assume() -> Self {
        Simd128
    }

    #[inline(always)]
    fn add_products(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4 {
        let ([x0, x1], [y0, y1]) = (Self::stretch(x), Self::stretch(y));
        let low = i32x4_dot_i16x8(x0.0, y0.0);
        I32x4(i32x4_add(low, i32x4_dot_i16x8(x1.0, y1.0))) + sum
    }

    #[inline(always)]
    fn stretch(x: I8x16) -> [I8x16; 2] {
        [
            I8x16(i16x8_extend_low_i8x16(x.0)),
            I8x16(i16x8_extend_high_i8x16(x.0)),
        ]
    }

    #[inline(always)]
    fn add_lane<const LANE: usize>(self, sum: I32x4, x: I8x16, y: I8x16) -> I32x4 {
        let pair = match LANE {
            0 => i32x4_shuffle::<0, 0, 0, 0>(y.0, y.0),
            1 => i32x4_shuffle::<1, 1, 1, 1>(y.0, y.0),
            2 => i32x4_shuffle::<2, 2, 2, 2>(y.0, y.0),
            _ => i32x4_shuffle::<3, 3, 3, 3>(y.0, y.0),
        };
        I32x4(i32x4_add(i32x4_dot_i16x8(x.0, pair), sum.0))
    }
}
