//! The tile registers: eight of 16 rows of 64 bytes. The compiler does not know them, so that what is in them
//! lives from one function of this module to the next.
//!
//! Registers 0 and 1 hold sums (a row a token, a lane a weight row), 2 and 4 activations (a row a token), 3 and 5
//! weights (a row for each four elements, as a panel has them).

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::avx2::panel::ROWS;

/// Tokens of a tile.
pub(super) const TOKENS: usize = 16;

/// Two products of tokens with a panel.
#[repr(C, align(64))]
pub(super) struct Products([[[i32; ROWS]; TOKENS]; 2]);

impl Products {
    pub(super) const ZERO: Products = Products([[[0; ROWS]; TOKENS]; 2]);

    /// One of the products of a token.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn row(&self, product: usize, token: usize) -> __m512i {
        // SAFETY: 16 integers, aligned.
        unsafe { _mm512_load_si512(self.0[product][token].as_ptr().cast()) }
    }
}

/// Sets the sizes of all registers, for up to [`TOKENS`] tokens and groups of `ELEMENTS` that are multiplied at once.
///
/// # Safety
/// Needs AMX.
pub(super) unsafe fn configure<const ELEMENTS: usize>(tokens: usize) {
    /// The layout that `ldtilecfg` reads.
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
    // SAFETY: the caller has the instruction; it reads 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
}

/// Gives the registers back, so that a switch of threads need not save them.
///
/// # Safety
/// Needs AMX.
pub(super) unsafe fn release() {
    // SAFETY: the caller has the instruction.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// Two products, of neighbouring groups of elements.
///
/// # Safety
/// Needs AMX, configured for such groups; `a` has both groups of each token, tokens `stride` bytes apart, and `b` of
/// the panel.
#[inline(always)]
pub(super) unsafe fn multiply_two<const ELEMENTS: usize>(
    a: *const i8,
    stride: usize,
    b: *const u8,
    out: &mut Products,
) {
    // SAFETY: as the caller says; each product is 16 rows of 64 bytes at most.
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

/// One product.
///
/// # Safety
/// As [`multiply_two`], for one group.
#[inline(always)]
pub(super) unsafe fn multiply_one(a: *const i8, stride: usize, b: *const u8, out: &mut Products) {
    // SAFETY: as the caller says.
    unsafe {
        clear();
        add_one(a, stride, b);
        store(out);
    }
}

/// Clears the first sums.
///
/// # Safety
/// Needs AMX, configured.
#[inline(always)]
pub(super) unsafe fn clear() {
    // SAFETY: as the caller says.
    unsafe { asm!("tilezero tmm0", options(nostack, nomem)) };
}

/// Adds a product to the first sums.
///
/// # Safety
/// As [`multiply_one`].
#[inline(always)]
pub(super) unsafe fn add_one(a: *const i8, stride: usize, b: *const u8) {
    // SAFETY: as the caller says.
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

/// Stores the first sums.
///
/// # Safety
/// Needs AMX, configured.
#[inline(always)]
pub(super) unsafe fn store(out: &mut Products) {
    // SAFETY: 16 rows of 64 bytes at most.
    unsafe {
        asm!(
            "tilestored [{c} + {line}*1], tmm0",
            c = in(reg) out.0.as_mut_ptr(),
            line = in(reg) 64usize,
            options(nostack),
        );
    }
}
