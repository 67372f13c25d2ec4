//! x86-64: AVX2 with FMA and F16C, AVX-VNNI or AVX-512 with VNNI on top of it, and AMX on top of the latter.

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
mod avx_vnni;

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

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

/// Proof that this machine has AVX-VNNI, beside AVX2.
#[derive(Clone, Copy)]
pub(crate) struct AvxVnni(());

impl AvxVnni {
    /// Asks the machine.
    pub(crate) fn new() -> Option<Self> {
        let has = Avx2::new().is_some() && is_x86_feature_detected!("avxvnni");
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

/// Proof that this machine has AMX for bytes, beside AVX-512, and that the system lets us use it.
#[derive(Clone, Copy)]
pub(crate) struct Amx(());

impl Amx {
    /// Asks the machine and the system.
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

/// Asks Linux for the tile registers, which it gives only to processes that want them.
#[cfg(target_os = "linux")]
fn allows_tiles() -> bool {
    const ARCH_PRCTL: usize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the call changes nothing but the process's permission; `syscall` overwrites rcx and r11.
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

/// The kernels of an instruction set, if this machine has it.
pub(crate) fn kernels(isa: Isa) -> Option<&'static Kernels> {
    match isa {
        Isa::Avx2 => Avx2::new().map(avx2::kernels),
        Isa::AvxVnni => AvxVnni::new().map(avx_vnni::kernels),
        Isa::Avx512 => Avx512::new().map(avx512::kernels),
        Isa::Amx => Amx::new().map(amx::kernels),
        _ => None,
    }
}
