//! The tile registers: eight of 16 rows of 64 bytes. The compiler does not know them, so that their contents
//! survive from a call of this module to the following one.
//!
//! Registers 0 and 1 hold sums (a row per token, a lane per weight row), 2 and 4 activations (a row per
//! token), 3 and 5 weights (a row per four elements, as in a panel).

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::avx2::panel::ROWS;

/// Tokens of a tile.
pub(super) const TOKENS: usize = 16;

/// Products of tokens with two groups of a panel.
#[repr(C, align(64))]
pub(super) struct TileSums([[[i32; ROWS]; TOKENS]; 2]);

impl TileSums {
    pub(super) const ZERO: TileSums = TileSums([[[0; ROWS]; TOKENS]; 2]);

    /// Products of a token with one of the groups.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn row(&self, product: usize, token: usize) -> __m512i {
        // SAFETY: each row has 16 integers and begins at a multiple of 64 bytes, to which the struct is
        // aligned; AVX-512 F is enabled here.
        unsafe { _mm512_load_si512(self.0[product][token].as_ptr().cast()) }
    }
}

/// Sets the sizes of all registers, for up to [`TOKENS`] tokens and groups of `ELEMENTS` elements.
///
/// # Safety
/// Needs AMX; `ELEMENTS` is a multiple of 4 and at most 64.
pub(super) unsafe fn configure<const ELEMENTS: usize>(tokens: usize) {
    /// The memory layout that `ldtilecfg` reads.
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        bytes: [u16; 16],
        rows: [u8; 16],
    }
    let (tokens, elements) = (tokens.min(TOKENS) as u8, ELEMENTS as u16);
    let quads = ELEMENTS as u8 / 4;
    let mut config = Config {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        bytes: [0; 16],
        rows: [0; 16],
    };
    let sizes = [
        (tokens, 64),
        (tokens, 64),
        (tokens, elements),
        (quads, 64),
        (tokens, elements),
        (quads, 64),
    ];
    for (i, (rows, bytes)) in sizes.into_iter().enumerate() {
        (config.rows[i], config.bytes[i]) = (rows, bytes);
    }
    // SAFETY: the caller has AMX; the instruction reads the 64 bytes of `config`, whose sizes are within the
    // limits of palette 1.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
}

/// Releases the registers, so that a context switch need not save them.
///
/// # Safety
/// Needs AMX.
pub(super) unsafe fn release() {
    // SAFETY: the caller has AMX; the instruction reads and writes no memory.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Products of two neighboring groups of elements.
///
/// # Safety
/// Needs AMX, configured for groups of `ELEMENTS`; `a` has both groups of each configured token, tokens
/// `stride` bytes apart, and `b` both groups of the panel.
#[inline(always)]
pub(super) unsafe fn multiply_two<const ELEMENTS: usize>(
    a: *const i8,
    stride: usize,
    b: *const u8,
    out: &mut TileSums,
) {
    // SAFETY: the caller has AMX and both groups at `a` and `b`, whose second follows after `ELEMENTS` and
    // `ROWS · ELEMENTS` bytes; each half of `out` has the 16 rows of 64 bytes that are stored at most.
    unsafe {
        asm!(
            "tileloadd tmm2, [{a0} + {stride}*1]",
            "tileloadd tmm3, [{b0} + {line}*1]",
            "tilezero tmm0",
            "tdpbssd tmm0, tmm2, tmm3",
            "tileloadd tmm4, [{a1} + {stride}*1]",
            "tileloadd tmm5, [{b1} + {line}*1]",
            "tilezero tmm1",
            "tdpbssd tmm1, tmm4, tmm5",
            "tilestored [{c} + {line}*1], tmm0",
            "tilestored [{c} + {line}*1 + 1024], tmm1",
            a0 = in(reg) a,
            a1 = in(reg) a.add(ELEMENTS),
            b0 = in(reg) b,
            b1 = in(reg) b.add(ROWS * ELEMENTS),
            stride = in(reg) stride,
            line = in(reg) 64usize,
            c = in(reg) out.0.as_mut_ptr(),
            options(nostack),
        );
    }
}

/// Products of one group of elements.
///
/// # Safety
/// As [`multiply_two`], with one group at `a` and `b`.
#[inline(always)]
pub(super) unsafe fn multiply_one(a: *const i8, stride: usize, b: *const u8, out: &mut TileSums) {
    // SAFETY: the caller has AMX, configured, and one group at `a` and `b`.
    unsafe {
        clear();
        add_one(a, stride, b);
        store(out);
    }
}

/// Clears register 0.
///
/// # Safety
/// Needs AMX, configured.
#[inline(always)]
pub(super) unsafe fn clear() {
    // SAFETY: the caller has AMX and has configured the register; no memory is touched.
    unsafe { asm!("tilezero tmm0", options(nostack, nomem)) };
}

/// Adds the products of one group of elements to register 0.
///
/// # Safety
/// As [`multiply_one`].
#[inline(always)]
pub(super) unsafe fn add_one(a: *const i8, stride: usize, b: *const u8) {
    // SAFETY: the caller has AMX, configured, and one group of each configured token at `a` and of the panel
    // at `b`.
    unsafe {
        asm!(
            "tileloadd tmm2, [{a} + {stride}*1]",
            "tileloadd tmm3, [{b} + {line}*1]",
            "tdpbssd tmm0, tmm2, tmm3",
            a = in(reg) a,
            b = in(reg) b,
            stride = in(reg) stride,
            line = in(reg) 64usize,
            options(nostack, readonly),
        );
    }
}

/// Stores register 0.
///
/// # Safety
/// Needs AMX, configured.
#[inline(always)]
pub(super) unsafe fn store(out: &mut TileSums) {
    // SAFETY: the caller has AMX, configured; at most 16 rows of 64 bytes are stored, for which `out` has
    // room.
    unsafe {
        asm!(
            "tilestored [{c} + {line}*1], tmm0",
            c = in(reg) out.0.as_mut_ptr(),
            line = in(reg) 64usize,
            options(nostack),
        );
    }
}
