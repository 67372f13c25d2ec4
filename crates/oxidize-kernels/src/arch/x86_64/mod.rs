//! x86-64: AVX2 with FMA and F16C, and AVX-512 with VNNI on top of it.

pub(crate) mod avx2;
pub(crate) mod avx512;

use crate::table::{Isa, Kernels};

/// Proof that this machine has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Asks the machine.
    pub(crate) fn new() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// Proof that this machine has AVX-512 F, BW, DQ, VL and VNNI, beside AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Asks the machine.
    pub(crate) fn new() -> Option<Self> {
        let has = Avx2::new().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        has.then_some(Self(()))
    }
}

/// The kernels of an instruction set, if this machine has it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    match isa {
        Isa::Avx2 => Avx2::new().map(avx2::kernels),
        Isa::Avx512 => Avx512::new().map(avx512::kernels),
        _ => None,
    }
}
