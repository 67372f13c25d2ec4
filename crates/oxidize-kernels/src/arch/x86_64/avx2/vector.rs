//! [`Vector`]: a register of floats, so that kernels that differ only in its width are written once.

use std::arch::x86_64::*;

use super::dot::horizontal_sum;

/// A register of floats.
///
/// # Safety
/// The methods need the register's instructions (AVX2, FMA and F16C for `__m256`, AVX-512 F for `__m512`),
/// and [`Vector::LANES`] elements at each pointer, of any alignment; [`Vector::load_one`] needs one.
pub(crate) unsafe trait Vector: Copy {
    /// Floats in the register.
    const LANES: usize;

    /// Zeros.
    ///
    /// # Safety
    /// See the trait, for this method and the others.
    unsafe fn zero() -> Self;
    /// Loads a float for each lane.
    unsafe fn load(p: *const f32) -> Self;
    /// Loads one float into every lane.
    unsafe fn load_one(p: *const f32) -> Self;
    /// Stores every lane.
    unsafe fn store(self, p: *mut f32);
    /// Loads a half-precision number for each lane.
    unsafe fn load_f16(p: *const u8) -> Self;
    /// Loads a bfloat16 number for each lane.
    unsafe fn load_bf16(p: *const u8) -> Self;
    /// `self + x · y`.
    unsafe fn add_product(self, x: Self, y: Self) -> Self;
    /// `self + x`.
    unsafe fn plus(self, x: Self) -> Self;
    /// The sum of all lanes.
    unsafe fn sum(self) -> f32;
}

/// Adds the products of a panel of `len` rows, two registers each, with `T` tokens to their sums.
///
/// # Safety
/// Needs the instructions of the vector. The panel has `2 · len` registers; the first `T` pointers of `rows`
/// have `len` elements each, and those of `sums` two registers each.
#[inline(always)]
pub(crate) unsafe fn tile<V: Vector, const T: usize, const TOKENS: usize>(
    panel: *const f32,
    len: usize,
    rows: &[*const f32; TOKENS],
    sums: &[*mut f32; TOKENS],
) {
    // SAFETY: the caller has the vector's instructions; `i` is below `len`, `t` below `T` and `h` below 2,
    // the sizes that the caller guarantees.
    unsafe {
        let rows: [*const f32; T] = std::array::from_fn(|t| rows[t]);
        let mut acc: [[V; 2]; T] =
            std::array::from_fn(|t| std::array::from_fn(|h| V::load(sums[t].add(V::LANES * h))));
        for i in 0..len {
            let w: [V; 2] = std::array::from_fn(|h| V::load(panel.add((2 * i + h) * V::LANES)));
            for t in 0..T {
                let a = V::load_one(rows[t].add(i));
                for h in 0..2 {
                    acc[t][h] = acc[t][h].add_product(w[h], a);
                }
            }
        }
        for t in 0..T {
            for h in 0..2 {
                acc[t][h].store(sums[t].add(V::LANES * h));
            }
        }
    }
}

// SAFETY: the methods need AVX2, FMA and F16C, and read or write eight elements.
unsafe impl Vector for __m256 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C; registers only.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C and eight readable floats at `p`.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_one(p: *const f32) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C and a readable float at `p`.
        unsafe { _mm256_set1_ps(*p) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller has AVX2, FMA and F16C and room for eight floats at `p`.
        unsafe { _mm256_storeu_ps(p, self) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C and eight readable 16-bit numbers at `p`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C and eight readable 16-bit numbers at `p`.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, x: Self, y: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C; registers only.
        unsafe { _mm256_fmadd_ps(x, y, self) }
    }

    #[inline(always)]
    unsafe fn plus(self, x: Self) -> Self {
        // SAFETY: the caller has AVX2, FMA and F16C; registers only.
        unsafe { _mm256_add_ps(self, x) }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller has AVX2, FMA and F16C; registers only.
        unsafe { horizontal_sum(self) }
    }
}

// SAFETY: the methods need AVX-512 F, and read or write 16 elements.
unsafe impl Vector for __m512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller has AVX-512 F; registers only.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller has AVX-512 F and 16 readable floats at `p`.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_one(p: *const f32) -> Self {
        // SAFETY: the caller has AVX-512 F and a readable float at `p`.
        unsafe { _mm512_set1_ps(*p) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller has AVX-512 F and room for 16 floats at `p`.
        unsafe { _mm512_storeu_ps(p, self) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: the caller has AVX-512 F and 16 readable 16-bit numbers at `p`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        // SAFETY: the caller has AVX-512 F and 16 readable 16-bit numbers at `p`.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, x: Self, y: Self) -> Self {
        // SAFETY: the caller has AVX-512 F; registers only.
        unsafe { _mm512_fmadd_ps(x, y, self) }
    }

    #[inline(always)]
    unsafe fn plus(self, x: Self) -> Self {
        // SAFETY: the caller has AVX-512 F; registers only.
        unsafe { _mm512_add_ps(self, x) }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller has AVX-512 F; registers only.
        unsafe { _mm512_reduce_add_ps(self) }
    }
}
