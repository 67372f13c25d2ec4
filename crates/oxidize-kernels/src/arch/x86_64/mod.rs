//! x86-64: AVX2 with FMA and F16C, AVX-VNNI and AVX-512 with VNNI, which both extend it, and AMX, which
//! extends AVX-512.

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
mod avx_vnni;
mod matmul;

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use crate::table::{Isa, Kernels};

/// Proof that this machine has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Returns the proof if the processor has the instructions.
    pub(crate) fn new() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// Proof that this machine has AVX-VNNI, in addition to AVX2.
#[derive(Clone, Copy)]
pub(crate) struct AvxVnni(());

impl AvxVnni {
    /// Returns the proof if the processor has the instructions.
    pub(crate) fn new() -> Option<Self> {
        let has = Avx2::new().is_some() && is_x86_feature_detected!("avxvnni");
        has.then_some(Self(()))
    }
}

/// Proof that this machine has AVX-512 F, BW, DQ, VL and VNNI, in addition to AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Returns the proof if the processor has the instructions.
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

/// Proof that this machine has AMX for bytes, in addition to AVX-512, and that the operating system permits it.
#[derive(Clone, Copy)]
pub(crate) struct Amx(());

impl Amx {
    /// Returns the proof if the processor has the instructions and the system permits them.
    pub(crate) fn new() -> Option<Self> {
        static HAS: OnceLock<bool> = OnceLock::new();
        let has = || {
            const TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
            let edx = __cpuid_count(7, 0).edx;
            Avx512::new().is_some() && edx & TILE_AND_INT8 == TILE_AND_INT8 && allows_tiles()
        };
        HAS.get_or_init(has).then_some(Self(()))
    }
}

/// Requests the tile registers from Linux, which grants them only to processes that request them.
#[cfg(target_os = "linux")]
fn allows_tiles() -> bool {
    const ARCH_PRCTL: usize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: `arch_prctl` with this code takes two integers and changes only the process's permission;
    // `syscall` overwrites rax, rcx and r11, which are declared, and writes no memory.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn allows_tiles() -> bool {
    false
}

/// Returns the kernels of an instruction set if this machine has it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    match isa {
        Isa::Avx2 => Avx2::new().map(avx2::kernels),
        Isa::AvxVnni => AvxVnni::new().map(avx_vnni::kernels),
        Isa::Avx512 => Avx512::new().map(avx512::kernels),
        Isa::Amx => Amx::new().map(amx::kernels),
        _ => None,
    }
}
